"""Where the turns of a chat come from, and what they add up to."""

import re
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

from specdec_cli.errors import SpecdecError

FENCE = '"""'
_COMMAND = re.compile(r"/[a-z]+(?=\s|$)")


class InputInterruptError(Exception):
    """Ctrl-C on an empty input line."""


class LineSource(Protocol):
    """Lines that a user types or pipes in."""

    def read_line(self, *, continued: bool) -> str | None:
        """Return the next line without its end, or None when there is no more; may raise InputInterruptError.

        `continued` tells that the line belongs to a text of several lines.
        """
        ...


class PipedLines:
    """Lines of a pipe or file, UTF-8."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def read_line(self, *, continued: bool) -> str | None:  # noqa: ARG002
        """Return the next line."""
        line = self._stream.readline()
        if not line:
            return None
        try:
            return line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise SpecdecError("stdin: not UTF-8 text") from None


def read_turn(source: LineSource) -> str | None:
    """Return what the user says next, or None at the end of input.

    A line that begins with three quotes begins a text of several lines, which the next three quotes at the
    end of a line finish.
    """
    line = source.read_line(continued=False)
    if line is None or not line.lstrip().startswith(FENCE):
        return line
    text = line.lstrip().removeprefix(FENCE)
    while not text.rstrip().endswith(FENCE):
        following = source.read_line(continued=True)
        if following is None:
            return text.strip("\n")  # the end of input ends the text as well
        text += "\n" + following
    return text.rstrip().removesuffix(FENCE).strip("\n")


def command_of(text: str) -> str | None:
    """Return the name of a command such as `/exit`, or None for ordinary text (`/etc/passwd` included)."""
    match = _COMMAND.match(text)
    return match[0] if match else None


@dataclass(slots=True)
class Conversation:
    """Messages so far, in the form that templates take."""

    system: str | None = None
    turns: list[dict[str, Any]] = field(default_factory=list)

    def with_question(self, text: str) -> list[dict[str, Any]]:
        """All messages plus a new one of the user's, which is not kept yet."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *self.turns, {"role": "user", "content": text}]

    def add(self, question: str, answer: str) -> None:
        """Keep a question and its answer."""
        self.turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def clear(self) -> None:
        """Forget all turns; the system message stays."""
        self.turns.clear()
