"""The engine: sequences in, token events out; the one generation loop."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .decoding.drafters.base import Drafter
from .decoding.policy import DraftPolicy, FixedDraftLength
from .decoding.types import (
    Event,
    FinishEvent,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    Timings,
    TokenEvent,
    TokenLogprob,
)
from .protocols import LanguageModel

__all__ = [
    "Engine",
    "EngineOptions",
    "Event",
    "FinishEvent",
    "FinishReason",
    "GenerationRequest",
    "GenerationResult",
    "Timings",
    "TokenEvent",
    "TokenLogprob",
]

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Limits of the loop; none of them changes the output."""

    max_sequences: int = 8  # decoded together; further requests wait
    prefill_chunk: int = 512  # prompt rows per pass: bounds memory and the time until a cancel acts
    max_kept_sequences: int = 1  # finished sequences whose KV is kept for the next request of their session


class Engine:
    """Generates for any number of sequences with one target model and any drafters."""

    def __init__(
        self,
        model: LanguageModel,
        *,
        token_bytes: Callable[[int], bytes],
        drafters: Sequence[Drafter] = (),
        policy: DraftPolicy | None = None,
        options: EngineOptions | None = None,
        on_notice: Callable[[str], None] | None = None,
    ) -> None:
        self._model = model
        self._token_bytes = token_bytes
        self._drafters = drafters
        self._policy = policy or FixedDraftLength()
        self._options = options or EngineOptions()
        self._on_notice = on_notice

    def submit(self, request: GenerationRequest, progress: Progress | None = None) -> int:
        """Queue a request and return its number; `progress(done, total)` counts prompt tokens, reused ones
        included.

        Raises UsageError when the prompt does not fit.
        """
        raise NotImplementedError

    def step(self) -> list[Event]:
        """Run one target pass over all active sequences and return what happened, in order."""
        raise NotImplementedError

    @property
    def busy(self) -> bool:
        """Whether any sequence is active or waiting."""
        raise NotImplementedError

    def cancel(self, sequence: int | None = None) -> None:
        """End a sequence (None: all) with "cancelled" before its next pass; safe from a signal handler or
        thread.
        """
        raise NotImplementedError

    def discard(self, sequence: int) -> None:
        """Drop a sequence at once, without events; unknown or finished ones are ignored."""
        raise NotImplementedError

    def generate(self, request: GenerationRequest, progress: Progress | None = None) -> Iterator[Event]:
        """Events of one request, a FinishEvent last. Closing the iterator early frees everything it held."""
        raise NotImplementedError

    def forget(self, session: object = None) -> None:
        """Free what is kept for a session (None: for all)."""
        raise NotImplementedError

    def close(self) -> None:
        """Free all sequences; drafters forget them too."""
        raise NotImplementedError
