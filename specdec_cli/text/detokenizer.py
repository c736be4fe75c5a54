"""From token ids to text, token by token: only complete characters leave."""

import codecs
from collections.abc import Callable


class Detokenizer:
    """Decodes the bytes of one sequence of tokens.

    The texts that `push` and `flush` return are, joined, exactly `bytes.decode("utf-8", "replace")` of all
    bytes together: a character is held until its last byte is there, invalid bytes give U+FFFD as they do
    for the whole.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], *, strip_leading_space: bool = False) -> None:
        """With `strip_leading_space` the first token loses one space at its beginning."""
        self._token_bytes = token_bytes
        self._strip = strip_leading_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Take the next token and return the characters that it completes."""
        data = self._token_bytes(token_id)
        if self._strip:
            data = data.removeprefix(b" ")
            self._strip = False
        return self._decoder.decode(data)

    def flush(self) -> str:
        """End of the sequence: U+FFFD for an incomplete character, else nothing."""
        return self._decoder.decode(b"", final=True)
