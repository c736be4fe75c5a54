"""Who drafts, and how much: the decision before each round, and the simplest way to make it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..errors import UsageError
from .drafters.base import Draft, Drafter


@dataclass(frozen=True, slots=True)
class SequenceState:
    """What a policy may know about a sequence before a round."""

    sequence: int  # number of the request in the engine
    context_length: int  # tokens so far, prompt and output
    num_emitted: int
    num_left: int  # tokens that may still be emitted, this round included
    max_draft: int  # longest draft that limits allow
    prompt_rows: (
        int  # prompt tokens that this pass still computes besides the last; > 0 only in the prompt pass
    )
    first_pass: bool  # nothing has been emitted yet
    kv: int = -1  # key of the sequence in drafters


@dataclass(frozen=True, slots=True)
class Attempt:
    """Ask `drafter` for up to `max_tokens`; a draft shorter than `min_tokens` is not used and the next one
    is asked. `go_on(confidences so far)` tells a model drafter whether one more token is worth its step.
    """

    drafter: str
    max_tokens: int
    min_tokens: int = 1
    p_min: float = 0.0
    go_on: Callable[[Sequence[float]], bool] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round did for one sequence."""

    sequence: int
    drafter: str | None  # None: no draft
    confidences: Sequence[float]  # of the verified draft tokens
    num_verified: int  # draft tokens in the target pass
    num_accepted: int
    num_emitted: int
    draft_ms: dict[str, float]  # per drafter that was asked, its time shared evenly within the batch


@dataclass(frozen=True, slots=True)
class RoundReport:
    """Measured costs of one target pass and what it brought."""

    num_rows: int
    num_prompt_rows: int  # of which belong to prompts
    forward_ms: float
    total_ms: float  # drafting, pass, sampling, bookkeeping
    outcomes: Sequence[Outcome]


class DraftPolicy(Protocol):
    """Decides per sequence which drafter proposes how many tokens. Its decisions change speed only, never
    output.
    """

    def plan(self, state: SequenceState, drafters: Sequence[Drafter]) -> Sequence[Attempt]:
        """Drafters to ask in this order until one has a draft; none for plain decoding."""
        ...

    def keep(self, state: SequenceState, drafter: str, draft: Draft) -> int:
        """How many of the drafted tokens are worth verifying."""
        ...

    def observe(self, report: RoundReport) -> None:
        """Learn from a finished round."""
        ...


@dataclass(frozen=True, slots=True)
class FixedDraftLength:
    """Always ask for `num_draft_tokens`, drafters in the given order; drafts under `min_tokens` are not used.

    Nothing that needs a prefill of its own is asked before the first token is out. `p_min` ends a draft
    before a token of lower confidence (only model drafters use it).
    """

    num_draft_tokens: int = 4
    min_tokens: int = 1
    p_min: float = 0.0

    def __post_init__(self) -> None:
        if self.num_draft_tokens < 0:
            raise UsageError(f"the draft length is {self.num_draft_tokens}, it must be 0 (off) or more")
        if not 0 <= self.min_tokens <= max(1, self.num_draft_tokens):
            raise UsageError(
                f"the minimum draft length is {self.min_tokens}, it must lie between 0 and the draft length"
                f" {self.num_draft_tokens}"
            )
        if not 0 <= self.p_min <= 1:
            raise UsageError(f"draft_p_min is {self.p_min:g}, it must lie between 0 and 1")

    def plan(self, state: SequenceState, drafters: Sequence[Drafter]) -> Sequence[Attempt]:
        """Every usable drafter, same length."""
        return [
            Attempt(drafter.name, self.num_draft_tokens, max(1, self.min_tokens), self.p_min)
            for drafter in drafters
            if not (state.first_pass and drafter.needs_prefill)
        ]

    def keep(self, state: SequenceState, drafter: str, draft: Draft) -> int:  # noqa: ARG002
        """All of it."""
        return len(draft.token_ids)

    def observe(self, report: RoundReport) -> None:
        """Nothing to learn."""
