"""Ctrl-C while text is generated: the first ends the generation properly, the second ends the program."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class Interrupt:
    """Whether Ctrl-C was pressed."""

    requested: bool = False


@contextmanager
def on_interrupt(stop: Callable[[], None]) -> Iterator[Interrupt]:
    """While the body runs, the first SIGINT calls `stop`; another one raises KeyboardInterrupt.

    Must run in the main thread. The previous handler is restored.
    """
    state = Interrupt()

    def handle(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if state.requested:
            raise KeyboardInterrupt
        state.requested = True
        stop()

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield state
    finally:
        signal.signal(signal.SIGINT, previous)
