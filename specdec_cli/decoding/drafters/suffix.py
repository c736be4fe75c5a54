"""Drafts by lookup of the longest suffix of prompt and output that occurred before."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...errors import UsageError
from .base import Draft, DraftRequest, common_prefix

_ROOT = 0
_COUNTED_SUFFIXES = 8  # shorter matches inside the longest one whose continuations are counted, too


class SuffixDrafter:
    """Continues the longest end of the context that occurred before, whatever its length.

    Of the tokens that followed it, the most frequent one counts, of equally frequent ones the most recent;
    the draft goes on as the text did after that token's last occurrence there. Confidence is the length of
    the match, times the share of the occurrences that agree. Nothing beyond the own sequence is looked at.
    The index is a suffix automaton (Blumer et al. 1985), so a token costs the same however long the context
    is.
    """

    name = "suffix"
    needs_prefill = False

    def __init__(self, *, min_match: int = 2) -> None:
        """Matches shorter than `min_match` tokens propose nothing. Raises UsageError below 1."""
        if min_match < 1:
            raise UsageError(f"the shortest suffix match is {min_match}, it must be 1 or more")
        self.min_match = min_match
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
            index = self._indexes[request.sequence] = _Index()
        index.extend(context)
        if index.match_length < self.min_match or request.max_tokens < 1:
            return Draft()
        start, share = index.continuation()
        # A match that runs into the end of the context goes on with what it has just proposed.
        period = len(context) - start
        token_ids: list[int] = list(context[start : start + request.max_tokens])
        while len(token_ids) < request.max_tokens:
            token_ids.append(token_ids[-period])
        eog = next((i + 1 for i, token in enumerate(token_ids) if token in request.eog_ids), len(token_ids))
        return Draft(token_ids[:eog], [max(1.0, index.match_length * share)] * eog)


@dataclass(slots=True)
class _Followers:
    """What came after the strings of a state: token to (times, position of the last time)."""

    by_token: dict[int, tuple[int, int]] = field(default_factory=dict)
    best: tuple[int, int] = (0, 0)  # the most frequent, of those the most recent
    total: int = 0

    def add(self, token_id: int, position: int) -> None:
        times, _ = self.by_token.get(token_id, (0, 0))
        entry = times + 1, position
        self.by_token[token_id] = entry
        self.best = max(self.best, entry)
        self.total += 1

    def copy(self) -> "_Followers":
        return _Followers(dict(self.by_token), self.best, self.total)


class _Index:
    """Suffix automaton of a growing text: a state stands for strings that end at the same places."""

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._first_end = [0]  # [state] position after the first occurrence of its strings
        self._followers: dict[int, _Followers] = {}  # of states that occurred more than once
        self._last = _ROOT
        self._tokens: list[int] = []
        self._source: Sequence[int] = ()
        self._match = _ROOT  # the state of the longest suffix that occurred before: the last state's link

    @property
    def match_length(self) -> int:
        """Length of the longest suffix that occurred before."""
        return self._length[self._match]

    def follows(self, context: Sequence[int]) -> bool:
        """Whether the context begins with what is indexed."""
        known = len(self._tokens)
        if known and context is self._source and len(context) >= known:
            return context[known - 1] == self._tokens[-1]  # the same list, grown: no need to compare it all
        return common_prefix(self._tokens, context) == known

    def extend(self, context: Sequence[int]) -> None:
        """Index the tokens that are new."""
        for position in range(len(self._tokens), len(context)):
            token_id = context[position]
            self._count(token_id, position)
            self._append(token_id)
        self._source = context

    def continuation(self) -> tuple[int, float]:
        """Position of the best continuation of the match, and the share of occurrences that agree."""
        followers = self._followers.get(self._match)
        if followers is None:
            return self._first_end[self._match], 1.0
        times, position = followers.best
        return position, times / followers.total

    def _count(self, token_id: int, position: int) -> None:
        """Note that `token_id` came after the match and the suffixes of it."""
        state = self._match
        for _ in range(_COUNTED_SUFFIXES):
            if state == _ROOT:
                return
            followers = self._followers.get(state)
            if followers is None:
                followers = self._followers[state] = _Followers()
                first = self._first_end[state]
                followers.add(self._tokens[first], first)
            followers.add(token_id, position)
            state = self._link[state]

    def _append(self, token_id: int) -> None:
        """Add a token to the automaton and move the match; amortised constant time."""
        self._tokens.append(token_id)
        end = len(self._tokens)
        new = self._add_state({}, -1, self._length[self._last] + 1, end)
        state = self._last
        self._last = new
        while state != -1 and token_id not in self._next[state]:
            self._next[state][token_id] = new
            state = self._link[state]
        if state == -1:
            self._link[new] = self._match = _ROOT
            return
        target = self._next[state][token_id]
        if self._length[target] == self._length[state] + 1:
            self._link[new] = self._match = target
            return
        clone = self._add_state(
            dict(self._next[target]), self._link[target], self._length[state] + 1, self._first_end[target]
        )
        if target in self._followers:
            self._followers[clone] = self._followers[target].copy()
        self._link[target] = self._link[new] = self._match = clone
        while state != -1 and self._next[state].get(token_id) == target:
            self._next[state][token_id] = clone
            state = self._link[state]

    def _add_state(self, following: dict[int, int], link: int, length: int, first_end: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._first_end.append(first_end)
        return len(self._next) - 1
