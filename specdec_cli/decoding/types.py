"""What goes into the engine and what comes out: requests, events, results."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

from ..errors import UsageError
from ..sampling.params import SamplingParams
from .stats import SpecStats

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and how to continue it. Raises UsageError for values that make no sense.

    `max_tokens` None generates until the context is full. `logprobs` n asks for the log-probability of
    every token and of the n most likely ones. `ignore_eos` bans the end-of-generation tokens, so that only
    `max_tokens` or a stop string ends the text. `session`: requests with an equal, non-None key may reuse
    each other's computed prompt prefix; nothing is shared otherwise.
    """

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = 512
    stop: tuple[str, ...] = ()
    eog_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    ignore_eos: bool = False
    session: Hashable = None

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise UsageError("the prompt is empty: there is no token to continue from")
        if self.max_tokens is not None and self.max_tokens < 0:
            raise UsageError(f"the number of tokens to generate is {self.max_tokens}, it must be 0 or more")
        if any(not text for text in self.stop):
            raise UsageError("a stop string is empty")
        if self.logprobs is not None and self.logprobs < 0:
            raise UsageError(f"logprobs is {self.logprobs}, it must be 0 or more")


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probability of an emitted token under the target's own logits, before any processor."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # most likely (token id, logprob), best first, ties by lowest id


@dataclass(slots=True)
class Timings:
    """Durations of one request in milliseconds, and the token counts that they belong to."""

    prompt_n: int = 0  # prompt tokens computed
    prompt_reused_n: int = 0  # prompt tokens taken from an earlier request of the session
    prompt_ms: float = 0.0  # from the start of prefill to the first token
    predicted_n: int = 0  # tokens emitted; the first one comes out of the prompt pass
    predicted_ms: float = 0.0  # from the first token to the last
    ttft_ms: float | None = None  # from submission to the first token; None: there was none

    @property
    def prompt_per_second(self) -> float | None:
        """Prompt tokens computed per second; None when undefined."""
        return 1000 * self.prompt_n / self.prompt_ms if self.prompt_ms > 0 and self.prompt_n else None

    @property
    def predicted_per_second(self) -> float | None:
        """Tokens decoded per second; None when undefined. The prompt pass and its token are left out."""
        decoded = self.predicted_n - 1
        return 1000 * decoded / self.predicted_ms if self.predicted_ms > 0 and decoded > 0 else None


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished generation. `token_ids` ends with the token that stopped it; `text` is cut before a stop
    string.
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    seed: int
    prompt_token_ids: tuple[int, ...]
    timings: Timings
    stats: SpecStats
    logprobs: tuple[TokenLogprob, ...] | None = None  # one per token id when asked for


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A token was emitted. `text` is what may be shown now; it is empty while text is held back."""

    sequence: int
    token_id: int
    text: str
    from_draft: bool
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """A sequence ended. `text` is what was held back; all texts joined equal `result.text`."""

    sequence: int
    finish_reason: FinishReason
    text: str
    result: GenerationResult


Event = TokenEvent | FinishEvent
