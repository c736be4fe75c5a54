"""One generation as the user sees it: progress, streamed text, Ctrl-C, figures. Shared by run and chat."""

import time
from contextlib import closing
from typing import TYPE_CHECKING, Protocol

from specdec_cli.cli.console import Reporter
from specdec_cli.cli.interrupt import on_interrupt
from specdec_cli.cli.session import Session
from specdec_cli.cli.summary import summary_line
from specdec_cli.decoding.types import FinishEvent, GenerationRequest, GenerationResult, TokenEvent

if TYPE_CHECKING:
    from specdec_cli.engine import Engine

_LONG_PROMPT = 256  # tokens; shorter prompts need no progress


class TextSink(Protocol):
    """Takes text piece by piece."""

    def write(self, text: str, *, accepted: bool = False) -> None:
        """Append a piece; `accepted` tells that it came with an accepted draft token."""
        ...


class HeldText:
    """Collects pieces until they are wanted."""

    def __init__(self) -> None:
        self._pieces: list[tuple[str, bool]] = []

    def write(self, text: str, *, accepted: bool = False) -> None:
        """Append a piece."""
        self._pieces.append((text, accepted))

    def release(self, sink: TextSink) -> None:
        """Write everything to `sink`."""
        for text, accepted in self._pieces:
            sink.write(text, accepted=accepted)


class PrefillProgress:
    """Shows how much of a long prompt is processed."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._started = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Update the line; `done` of `total` prompt tokens are processed."""
        if total < _LONG_PROMPT or done >= total:
            self._reporter.clear_status()
            return
        speed = done / max(1e-3, time.monotonic() - self._started)
        self._reporter.status(f"prompt {done}/{total} tokens ({100 * done // total} %), {speed:.0f} tok/s")


def stream(
    engine: "Engine", request: GenerationRequest, sink: TextSink, reporter: Reporter
) -> GenerationResult:
    """Generate, write the text to `sink` as it comes, and return the result.

    The first Ctrl-C ends the generation with finish reason "cancelled"; a second raises KeyboardInterrupt.
    """
    progress = PrefillProgress(reporter)
    with closing(engine.generate(request, progress)) as events, on_interrupt(engine.cancel):
        for event in events:
            reporter.clear_status()
            if isinstance(event, TokenEvent):
                sink.write(event.text, accepted=event.from_draft)
            elif isinstance(event, FinishEvent):
                sink.write(event.text)
                return event.result
    raise RuntimeError("the engine ended without a result")


def report(result: GenerationResult, reporter: Reporter, *, session: Session, stats: bool) -> None:
    """Say on stderr how it went."""
    why = ""
    if result.finish_reason == "length":
        full = len(result.prompt_token_ids) + len(result.token_ids) >= session.n_ctx
        why = f" (the context of {session.n_ctx} tokens is full)" if full else " (-n)"
    reporter.detail(f"finish reason: {result.finish_reason}{why}")
    if stats:
        reporter.line(summary_line(result, speculative=bool(session.drafters)), dim=True)
