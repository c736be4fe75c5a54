"""Tokenizer of a GGUF model: text to ids and back. Ids equal llama.cpp's.

Text is never turned into control tokens unless the caller asks for it (`parse_special`): also where a
vocabulary would let ordinary merging end in one, which is the only intended difference.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, Self

from specdec_cli.errors import ModelError
from specdec_cli.text.bpe import ByteLevelBpe, byte_level_bytes
from specdec_cli.text.detokenizer import Detokenizer
from specdec_cli.text.metadata import get_str
from specdec_cli.text.partition import Fragment, SpecialSplitter
from specdec_cli.text.pretokenizers import find_pretokenizer
from specdec_cli.text.sentencepiece import SentencePieceBpe, spm_bytes
from specdec_cli.text.vocabulary import Vocabulary, read_vocabulary

_SURROGATE = re.compile(r"[\ud800-\udfff]")


class _Algorithm(Protocol):
    def encode(self, text: str) -> list[int]:
        """Ids of a text without special tokens."""
        ...


class Tokenizer:
    """A vocabulary and the algorithm that cuts ordinary text into its tokens."""

    def __init__(self, vocabulary: Vocabulary, algorithm: _Algorithm) -> None:
        self.vocabulary = vocabulary
        self._algorithm = algorithm
        self._spm = vocabulary.model == "llama"
        self._bytes: dict[int, bytes] = {}
        texts, kinds, strip = vocabulary.texts, vocabulary.kinds, vocabulary.strip_after
        special = vocabulary.special_ids
        shown = [i for i in special if kinds[i] == "user_defined"]
        self._split_shown = SpecialSplitter([(texts[i], i) for i in shown], strip)
        self._split_all = SpecialSplitter([(texts[i], i) for i in special], strip)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Self:
        """Build the tokenizer that a model file describes.

        Raises ModelError naming the key that is missing, malformed or not supported (`tokenizer.ggml.model`
        other than gpt2 and llama; an unknown `tokenizer.ggml.pre`).
        """
        model = get_str(metadata, "tokenizer.ggml.model")
        if model == "gpt2":
            pre = find_pretokenizer(get_str(metadata, "tokenizer.ggml.pre", ""))
            vocabulary = read_vocabulary(metadata, add_bos_default=pre.add_bos, spm=False)
            return cls(vocabulary, ByteLevelBpe.from_metadata(vocabulary, metadata, pre))
        if model == "llama":
            vocabulary = read_vocabulary(metadata, add_bos_default=True, spm=True)
            return cls(vocabulary, SentencePieceBpe(vocabulary))
        raise ModelError(f"tokenizer.ggml.model {model!r} is not supported (only gpt2 and llama are)")

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""
        return self.vocabulary.n_vocab

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, if the vocabulary names one."""
        return self.vocabulary.bos_id

    @property
    def eos_id(self) -> int | None:
        """The token that ends a text, if the vocabulary names one. What stops a generation is `eog_ids`."""
        return self.vocabulary.eos_id

    @property
    def add_bos(self) -> bool:
        """Whether a prompt begins with `bos_id`."""
        return self.vocabulary.add_bos

    @property
    def eog_ids(self) -> frozenset[int]:
        """All tokens that end a generation."""
        return self.vocabulary.eog_ids

    @property
    def add_space_prefix(self) -> bool:
        """Whether a text is tokenized with a space before it, which `decode` takes away again."""
        return self.vocabulary.add_space_prefix

    @property
    def texts(self) -> list[str]:
        """Vocabulary entries [n_vocab]; not to be changed."""
        return self.vocabulary.texts

    @property
    def kinds(self) -> list[str]:
        """Kinds of the tokens [n_vocab]; not to be changed."""
        return self.vocabulary.kinds

    def token_text(self, token_id: int) -> str:
        """The vocabulary entry of a token, as it is in the file."""
        return self.vocabulary.texts[token_id]

    def token_kind(self, token_id: int) -> str:
        """One of normal, control, user_defined, byte, unused, unknown, undefined."""
        return self.vocabulary.kinds[token_id]

    def encode(self, text: str, *, parse_special: bool = False, add_bos: bool = False) -> list[int]:
        """Ids of a text.

        With `parse_special` the texts of control tokens become these tokens; user-defined tokens are split
        off always. With `add_bos` the ids begin with exactly one BOS if the model wants one.
        """
        ids = self.encode_fragments(self.split_special(text, parse_special=parse_special))
        return self.with_bos(ids) if add_bos else ids

    def split_special(self, text: str, *, parse_special: bool) -> list[Fragment]:
        """The first step of `encode`: ordinary text and ids of special tokens in order."""
        splitter = self._split_all if parse_special else self._split_shown
        return splitter.split(_valid(text))

    def encode_fragments(self, fragments: Iterable[Fragment]) -> list[int]:
        """The second step of `encode`: tokenize the ordinary text among the fragments."""
        ids: list[int] = []
        space_before = self._spm and self.vocabulary.add_space_prefix
        after_special = True
        for fragment in fragments:
            if isinstance(fragment, int):
                ids.append(fragment)
            else:
                prefix = " " if space_before and after_special else ""
                ids += self._algorithm.encode(prefix + fragment)
            after_special = isinstance(fragment, int)
        return ids

    def with_bos(self, ids: list[int]) -> list[int]:
        """The ids with exactly one BOS before them, if the model wants one."""
        bos = self.vocabulary.bos_id
        if not self.vocabulary.add_bos or bos is None:
            return ids
        start = next((i for i, token_id in enumerate(ids) if token_id != bos), len(ids))
        return [bos, *ids[start:]]

    def token_bytes(self, token_id: int) -> bytes:
        """What a token writes into the output: nothing for control tokens and for rows without a token."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._token_bytes(token_id)
        return found

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Text of ids; with `special` control tokens appear as their texts.

        The space that SentencePiece vocabularies put before a text is taken away again. Invalid UTF-8 becomes
        U+FFFD.
        """
        write = self._shown_bytes if special else self.token_bytes
        detokenizer = Detokenizer(write, strip_leading_space=self._spm and self.add_space_prefix)
        return "".join(map(detokenizer.push, ids)) + detokenizer.flush()

    def _shown_bytes(self, token_id: int) -> bytes:
        if self.vocabulary.kinds[token_id] in ("control", "unknown"):
            return self.vocabulary.texts[token_id].encode("utf-8", "surrogateescape")
        return self.token_bytes(token_id)

    def _token_bytes(self, token_id: int) -> bytes:
        kind, text = self.vocabulary.kinds[token_id], self.vocabulary.texts[token_id]
        if kind == "normal":
            return spm_bytes(text) if self._spm else byte_level_bytes(text)
        if kind == "user_defined":
            return text.encode("utf-8", "surrogateescape")
        if kind == "byte":
            return _byte_of(text)
        return b""


def _byte_of(text: str) -> bytes:
    """The byte of an entry like <0x0A>."""
    try:
        return bytes([int(text.removeprefix("<0x").removesuffix(">"), 16)])
    except ValueError:
        return text.encode("utf-8", "surrogateescape")


def _valid(text: str) -> str:
    """The text with U+FFFD for what cannot be encoded (bytes of a broken command line or file)."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
