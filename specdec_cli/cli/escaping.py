"""Control characters made visible, so that text from a model cannot steer the user's terminal."""

_CONTROL = {c: f"\\x{c:02x}" for c in (*range(0x20), *range(0x7F, 0xA0)) if chr(c) not in "\n\t"}


class TerminalEscaper:
    """Escapes a stream of text piece by piece.

    C0 characters except newline and tab, DEL, and the C1 range become `\\xNN`. Escape sequences need no
    parsing: each one starts with such a character. A carriage return right before a newline is dropped
    instead, also when the two come in different pieces.
    """

    def __init__(self) -> None:
        self._held_return = False

    def push(self, text: str) -> str:
        """Return what can be shown of `text`."""
        if self._held_return:
            text = "\r" + text
        self._held_return = text.endswith("\r")
        if self._held_return:
            text = text[:-1]
        return text.replace("\r\n", "\n").translate(_CONTROL)

    def flush(self) -> str:
        """Return what was held back at the end of the text."""
        held, self._held_return = self._held_return, False
        return _CONTROL[ord("\r")] if held else ""


def escape_controls(text: str) -> str:
    """Return a complete text with its control characters escaped."""
    escaper = TerminalEscaper()
    return escaper.push(text) + escaper.flush()
