"""stdout and stderr: what may be escaped, coloured or redrawn, and where an answer is written."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from specdec_cli.cli.escaping import TerminalEscaper, escape_controls
from specdec_cli.cli.options import Color
from specdec_cli.errors import SpecdecError, UsageError

_ACCEPTED = "\x1b[32m"  # green: accepted draft tokens
_DIM = "\x1b[2m"
_RESET = "\x1b[0m"
_CLEAR_LINE = "\r\x1b[K"


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at this stream (closed streams: nobody does)."""
    try:
        return stream.isatty()
    except ValueError:
        return False


def use_color(stream: TextIO, choice: Color) -> bool:
    """Whether to colour what goes to `stream`: see https://no-color.org."""
    if choice is not Color.AUTO:
        return choice is Color.ALWAYS
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Reporter:
    """Everything that is said beside the answer, on stderr; on a terminal also a line that comes and goes."""

    def __init__(
        self, *, verbose: bool = False, color: Color = Color.AUTO, stream: TextIO | None = None
    ) -> None:
        self._stream = stream or sys.stderr
        self._verbose = verbose
        self._color = use_color(self._stream, color)
        self._status_shown = False
        self._deferred: list[str] | None = None
        self.is_terminal = is_terminal(self._stream)

    def notice(self, text: str) -> None:
        """Say something the user should know."""
        if self._deferred is None:
            self.line(f"note: {text}")
        else:
            self._deferred.append(text)

    @contextmanager
    def deferring_notices(self) -> Iterator[None]:
        """Keep notices back while the body runs: on a terminal they would land in the middle of an answer."""
        deferred: list[str] = []
        self._deferred = deferred
        try:
            yield
        finally:
            self._deferred = None
            for text in deferred:
                self.notice(text)

    def detail(self, text: str) -> None:
        """Say something only with --verbose."""
        if self._verbose:
            self.line(text)

    def line(self, text: str, *, dim: bool = False) -> None:
        """Print one or more lines, `dim` where colours are on."""
        self.clear_status()
        shown = escape_controls(text) if self.is_terminal else text
        self._stream.write(f"{_DIM}{shown}{_RESET}\n" if dim and self._color else f"{shown}\n")
        self._stream.flush()

    def status(self, text: str) -> None:
        """Show a line that the next output replaces; nothing where stderr is not a terminal."""
        if self.is_terminal:
            columns = _columns(self._stream)
            self._stream.write(_CLEAR_LINE + escape_controls(text)[: columns - 1])
            self._stream.flush()
            self._status_shown = True

    def clear_status(self) -> None:
        """Take the status line away."""
        if self._status_shown:
            self._stream.write(_CLEAR_LINE)
            self._stream.flush()
            self._status_shown = False


def _columns(stream: TextIO) -> int:
    try:
        return max(20, os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError):
        return 80


class AnswerWriter:
    """Writes a model's text as it comes: escaped on a terminal, unchanged elsewhere, drafts in colour."""

    def __init__(self, stream: TextIO, *, escape: bool, color: bool = False) -> None:
        self._stream = stream
        self._escaper = TerminalEscaper() if escape else None
        self._color = color
        self._colored = False
        self._last = ""

    def write(self, text: str, *, accepted: bool = False) -> None:
        """Append a piece; `accepted` tells that it came with an accepted draft token."""
        shown = self._escaper.push(text) if self._escaper is not None else text
        if not shown:
            return
        if self._color and accepted != self._colored:
            self._stream.write(_ACCEPTED if accepted else _RESET)
            self._colored = accepted
        self._emit(shown)
        self._stream.flush()

    def end(self) -> None:
        """Finish the text: nothing held back, colours off, and a last line that ends."""
        if self._escaper is not None:
            self._emit(self._escaper.flush())
        if self._colored:
            self._stream.write(_RESET)
            self._colored = False
        if self._last and self._last != "\n":
            self._emit("\n")
        self._last = ""
        self._stream.flush()

    def _emit(self, text: str) -> None:
        if text:
            self._stream.write(text)
            self._last = text[-1]


class OutputFile:
    """`-o FILE`: checked before any work, opened (and emptied) when the first output is there."""

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            raise UsageError(f"-o {path}: is a directory")
        if not path.absolute().parent.is_dir():
            raise UsageError(f"-o {path}: the directory {path.absolute().parent} does not exist")
        if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
            raise SpecdecError(f"-o {path}: not allowed to write")
        self._path = path
        self._stream: TextIO | None = None

    def open(self) -> TextIO:
        """Empty the file and return a stream into it."""
        # newline="": what the model wrote, whatever this system's line ends are.
        self._stream = self._path.open("w", encoding="utf-8", newline="")
        return self._stream

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()
