"""What a drafter is: something that proposes tokens. It never decides anything."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...sampling.sampler import Sampler

ROOT = -1  # parent of a draft's first token: the last token of the context


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One sequence that wants a draft.

    `sequence` is the key for what a drafter remembers; it stays the same while the target's KV is reused
    for the next request of a session, and ends with `Drafter.release`. `context` holds all ids so far,
    prompt and output; within one generation it is the same list, growing. `sampler` is the target's: a
    drafter may choose with it (position of the next token: `len(context)`), must accept each chosen token
    before the next choice, and must roll back all of them before it returns.
    """

    sequence: int
    context: Sequence[int]
    max_tokens: int
    sampler: Sampler
    eog_ids: frozenset[int] = frozenset()
    draft_p_min: float = 0.0  # stop before a token whose confidence is lower
    go_on: Callable[[Sequence[float]], bool] | None = None  # asked with the confidences before a further step
    num_prompt: int = 0  # tokens of `context` that are the prompt


@dataclass(slots=True)
class Draft:
    """A proposed continuation, empty when there is none. `parents` describes a tree; None is a chain.

    Token i follows token `parents[i]` of the draft (an earlier one), or the context where that is ROOT.
    """

    token_ids: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)  # per token; the scale is the drafter's own
    parents: list[int] | None = None
    notice: str | None = None  # told to the user once

    def parent(self, index: int) -> int:
        """Index of the token that token `index` follows, or ROOT."""
        return index - 1 if self.parents is None else self.parents[index]

    def child(self, node: int, token_id: int) -> int | None:
        """Index of the first token `token_id` that follows `node` (or ROOT); None when that was not
        drafted.
        """
        if self.parents is None:
            index = node + 1
            return index if index < len(self.token_ids) and self.token_ids[index] == token_id else None
        pairs = zip(self.token_ids, self.parents, strict=True)
        return next((i for i, pair in enumerate(pairs) if pair == (token_id, node)), None)

    def depths(self) -> list[int]:
        """Position of each token in the draft: 0 for those that follow the context."""
        depths: list[int] = []
        for index in range(len(self.token_ids)):
            parent = self.parent(index)
            depths.append(0 if parent == ROOT else depths[parent] + 1)
        return depths

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens; parents come before their children, so a tree stays a tree."""
        del self.token_ids[length:]
        del self.confidences[length:]
        if self.parents is not None:
            del self.parents[length:]


class Drafter(Protocol):
    """Proposes continuations. Whatever it does, the output stays the same; only the speed depends on it."""

    @property
    def name(self) -> str:
        """Short name for statistics and messages."""
        ...

    @property
    def needs_prefill(self) -> bool:
        """Whether a first draft is dear because the context must be computed first."""
        ...

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request, each of at most `max_tokens` tokens; an empty one where nothing comes to
        mind.
        """
        ...

    def release(self, sequence: int) -> None:
        """Forget a sequence; unknown ones are ignored."""
        ...


def common_prefix(a: Sequence[int], b: Sequence[int], start: int = 0) -> int:
    """Length of the longest common prefix, given that the first `start` elements are known to be equal."""
    end = min(len(a), len(b))
    if list(a[start:end]) == list(b[start:end]):
        return max(end, 0)
    return next(i for i in range(start, end) if a[i] != b[i])
