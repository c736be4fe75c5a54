"""Documents and tables on stdout: escaped on a terminal, unchanged in a pipe."""

import json
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from specdec_cli.cli.console import is_terminal
from specdec_cli.cli.escaping import escape_controls


def print_text(text: str, stream: TextIO | None = None) -> None:
    """Print one or more lines that may hold text from untrusted files."""
    target = stream or sys.stdout
    target.write((escape_controls(text) if is_terminal(target) else text) + "\n")
    target.flush()


def print_json(value: Any, *, indent: int | None = None, stream: TextIO | None = None) -> None:
    """Print a JSON document; what the encoding or a terminal cannot take is escaped in JSON's way."""
    target = stream or sys.stdout
    utf8 = (target.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(value, ensure_ascii=not utf8, allow_nan=False, indent=indent)
    if is_terminal(target):  # JSON leaves DEL and the C1 control characters as they are
        text = "".join(f"\\u{ord(c):04x}" if 0x7F <= ord(c) < 0xA0 else c for c in text)
    target.write(text + "\n")
    target.flush()


def one_line(value: object) -> str:
    """Text from a file as it may stand in a table: control characters and line ends escaped."""
    text = value if isinstance(value, str) else str(value)
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def table(rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset(), indent: str = "") -> str:
    """Columns wide enough for their cells; those in `right` end at the right. The last one is not padded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)
