"""One generation as the user sees it: progress, streamed text, Ctrl-C, figures. Shared by run and chat."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
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

    def end(self) -> None:
        """Finish the text."""
        ...


class HeldText:
    """Passes text on as a whole when it is complete, or not at all."""

    def __init__(self, sink: TextSink | None) -> None:
        self._sink = sink
        self._pieces: list[tuple[str, bool]] = []

    def write(self, text: str, *, accepted: bool = False) -> None:
        """Keep a piece."""
        self._pieces.append((text, accepted))

    def end(self) -> None:
        """Pass everything on."""
        if self._sink is not None:
            for text, accepted in self._pieces:
                self._sink.write(text, accepted=accepted)
            self._sink.end()


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
        speed = f", {done / max(1e-3, time.monotonic() - self._started):.0f} tok/s" if done else ""
        self._reporter.status(f"prompt {done}/{total} tokens ({100 * done // total} %){speed}")


def stream(
    engine: "Engine", request: GenerationRequest, sink: TextSink, reporter: Reporter
) -> GenerationResult:
    """Generate, write the text to `sink` as it comes, and return the result.

    The first Ctrl-C ends the generation with finish reason "cancelled"; a second raises KeyboardInterrupt.
    """
    with (
        reporter.deferring_notices(),
        _ending(sink),
        closing(engine.generate(request, PrefillProgress(reporter))) as events,
        on_interrupt(engine.cancel) as interrupt,
    ):
        for event in events:
            if interrupt.requested:
                engine.cancel()  # it may have been pressed before the engine knew the request
            reporter.clear_status()
            sink.write(event.text, accepted=isinstance(event, TokenEvent) and event.from_draft)
            if isinstance(event, FinishEvent):
                return event.result
    raise RuntimeError("the engine ended without a result")


@contextmanager
def _ending(sink: TextSink) -> Iterator[None]:
    """End the text in any case: what there is was worth printing."""
    try:
        yield
    finally:
        sink.end()


def report(result: GenerationResult, reporter: Reporter, *, session: Session, stats: bool) -> None:
    """Say on stderr how it went."""
    why = ""
    if result.finish_reason == "length":
        full = len(result.prompt_token_ids) + len(result.token_ids) >= session.n_ctx
        why = f" (the context of {session.n_ctx} tokens is full)" if full else " (-n)"
    reporter.detail(f"finish reason: {result.finish_reason}{why}")
    if stats:
        line = summary_line(result, speculative=bool(session.drafters), why_plain=session.why_plain())
        reporter.line(line, dim=True)
