"""How a download tells what it is doing: a bar on a terminal, plain lines elsewhere, always on stderr."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_POLL_SECONDS = 0.2
_LINE_SECONDS = 5.0


class Progress(Protocol):
    """What downloads report to. Calls may come from another thread."""

    def start(self, label: str, total: int | None) -> None:
        """Begin a file of `total` bytes (None: unknown)."""
        ...

    def update(self, done: int) -> None:
        """Say that `done` bytes of it are here, estimates included."""
        ...

    def message(self, line: str) -> None:
        """Say something in one line."""
        ...

    def finish(self) -> None:
        """End the file, complete or not."""
        ...


class NullProgress:
    """Says nothing."""

    def start(self, label: str, total: int | None) -> None:
        """Ignore."""

    def update(self, done: int) -> None:
        """Ignore."""

    def message(self, line: str) -> None:
        """Ignore."""

    def finish(self) -> None:
        """Ignore."""


def format_bytes(count: int | None) -> str:
    """Bytes with a decimal unit, as file managers and hubs show them; n/a when unknown."""
    if count is None:
        return "n/a"
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


class LineProgress:
    """Plain lines, at most one every few seconds: for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._label = ""
        self._total: int | None = None
        self._last = 0.0

    def start(self, label: str, total: int | None) -> None:
        """Print what is being downloaded."""
        self._label, self._total, self._last = label, total, time.monotonic()
        self.message(f"downloading {label}" + (f" ({format_bytes(total)})" if total else ""))

    def update(self, done: int) -> None:
        """Print the state of things now and then."""
        now = time.monotonic()
        if now - self._last >= _LINE_SECONDS:
            self._last = now
            share = f" ({100 * done / self._total:.0f} %)" if self._total else ""
            self.message(f"downloading {self._label}: {format_bytes(done)}{share}")

    def message(self, line: str) -> None:
        """Print one line."""
        print(line, file=self._stream, flush=True)

    def finish(self) -> None:
        """Print nothing more: what follows says how it ended."""


class BarProgress:
    """A rich progress bar with speed and time left."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def start(self, label: str, total: int | None) -> None:
        """Draw the bar."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as RichProgress

        self.finish()
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = RichProgress(*columns, console=Console(file=self._stream), transient=True)
        self._task = self._bar.add_task(label, total=total)
        self._bar.start()

    def update(self, done: int) -> None:
        """Move the bar."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done)

    def message(self, line: str) -> None:
        """Print one line above the bar."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=self._stream, flush=True)

    def finish(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._task = None


def progress_for(stream: TextIO) -> Progress:
    """Return the kind of progress report that suits a stream."""
    return BarProgress(stream) if stream.isatty() else LineProgress(stream)


def _directory_bytes(directory: Path) -> int:
    total = 0
    # os.walk passes over directories that vanish meanwhile; Path.rglob raises.
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118
            except OSError:  # renamed or removed between listing and looking
                continue
    return total


class _DirectoryWatcher:
    """Reports the growth of a directory that another program downloads into."""

    def __init__(self, directory: Path, progress: Progress, start: int, limit: int | None) -> None:
        self._directory, self._progress = directory, progress
        self._start, self._limit = start, limit
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            done = self._start + _directory_bytes(self._directory)
            self._progress.update(done if self._limit is None else min(done, self._limit))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def watching(
    directory: Path, progress: Progress, *, start: int = 0, limit: int | None = None
) -> Iterator[None]:
    """Report `start` plus the size of `directory` (at most `limit`) to `progress` while the body runs."""
    with _DirectoryWatcher(directory, progress, start, limit):
        yield
