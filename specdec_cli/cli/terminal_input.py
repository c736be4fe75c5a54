"""The input line of `chat` on a terminal."""

from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings

from specdec_cli.cli.turns import InputInterruptError


class TerminalLines:
    """Lines typed with editing and history."""

    def __init__(self) -> None:
        self._session: PromptSession[str] = PromptSession(history=InMemoryHistory(), key_bindings=_bindings())

    def read_line(self, *, continued: bool) -> str | None:
        """Let the user edit a line; None on Ctrl-D. Raises InputInterruptError on Ctrl-C on an empty line."""
        try:
            return self._session.prompt("... " if continued else "> ")
        except EOFError:
            return None
        except KeyboardInterrupt:
            raise InputInterruptError from None


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("c-c")
    def _(event: Any) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return bindings
