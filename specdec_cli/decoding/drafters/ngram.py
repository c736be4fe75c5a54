"""Drafts by lookup: what followed the same tokens the last time they occurred in this prompt and output."""

from collections.abc import Sequence

from ...errors import UsageError
from .base import Draft, DraftRequest, common_prefix


class NgramDrafter:
    """Takes the longest end of the context, of `max_match` down to `min_match` tokens, that occurred before.

    Of several occurrences the most recent one counts. The index grows with the context at a constant cost
    per token, whatever its length, and never looks beyond its own sequence. Confidence is the length of the
    match.
    """

    name = "ngram"
    needs_prefill = False

    def __init__(self, *, min_match: int = 3, max_match: int | None = None) -> None:
        """`max_match` is by default `min_match` + 3. Raises UsageError when the two do not fit together."""
        if min_match < 1:
            raise UsageError(f"the shortest n-gram match is {min_match}, it must be 1 or more")
        self.min_match = min_match
        self.max_match = min_match + 3 if max_match is None else max_match
        if self.max_match < self.min_match:
            raise UsageError(
                f"the longest n-gram match is {self.max_match}, shorter than the shortest, {self.min_match}"
            )
        self._indexes: dict[int, _Index] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request."""
        return [self._propose(request) for request in requests]

    def release(self, sequence: int) -> None:
        """Forget a sequence."""
        self._indexes.pop(sequence, None)

    def _propose(self, request: DraftRequest) -> Draft:
        context = request.context
        index = self._indexes.get(request.sequence)
        if index is None or not index.follows(context):
            index = self._indexes[request.sequence] = _Index(self.min_match, self.max_match)
        index.extend(context)
        start, length = index.find()
        if start is None or request.max_tokens < 1:
            return Draft()
        # A match that runs into the end of the context goes on with what it has just proposed.
        period = len(context) - start
        token_ids: list[int] = list(context[start : start + request.max_tokens])
        while len(token_ids) < request.max_tokens:
            token_ids.append(token_ids[-period])
        eog = next((i + 1 for i, token in enumerate(token_ids) if token in request.eog_ids), len(token_ids))
        return Draft(token_ids[:eog], [float(length)] * min(eog, len(token_ids)))


class _Index:
    """Where each n-gram of a growing context was last continued."""

    def __init__(self, min_match: int, max_match: int) -> None:
        self._lengths = range(max_match, min_match - 1, -1)
        self._last: dict[
            tuple[int, ...], int
        ] = {}  # n-gram to the position after its last occurrence but the present
        self._tokens: list[int] = []
        self._source: Sequence[int] = ()

    def follows(self, context: Sequence[int]) -> bool:
        """Whether the context begins with what is indexed."""
        known = len(self._tokens)
        if context is self._source and len(context) >= known and context[known - 1] == self._tokens[-1]:
            return True  # the same list, grown: no need to compare all of it
        return common_prefix(self._tokens, context) == known

    def extend(self, context: Sequence[int]) -> None:
        """Index the tokens that are new. An n-gram enters when its continuation is known."""
        tokens = self._tokens
        for position in range(len(tokens), len(context)):
            for length in self._lengths:
                if length <= position:
                    self._last[tuple(tokens[position - length :])] = position
            tokens.append(context[position])
        self._source = context

    def find(self) -> tuple[int | None, int]:
        """Position after the match, and its length; None without a match."""
        tokens = self._tokens
        for length in self._lengths:
            if length < len(tokens):
                position = self._last.get(tuple(tokens[-length:]))
                if position is not None:
                    return position, length
        return None, 0
