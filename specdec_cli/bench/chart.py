"""Bars on a terminal: speed-up of each strategy by category."""

from collections.abc import Sequence
from typing import TextIO

from specdec_cli.bench.harness import PLAIN
from specdec_cli.bench.prompts import ALL
from specdec_cli.bench.rows import Row

_WIDTH = 40  # cells of the longest bar
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def print_chart(rows: Sequence[Row], stream: TextIO) -> None:
    """Draw the speed-ups with rich; bars of strategies that lose against plain decoding are red."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = [row for row in rows if row.label != PLAIN and row.speedup is not None]
    if not shown:
        return
    longest = max(row.speedup or 0.0 for row in shown)
    table = Table(title="speed-up of decoding over plain", box=None, title_justify="left", pad_edge=False)
    for name in ("category", "strategy", "speed-up", ""):
        table.add_column(name, justify="right" if name == "speed-up" else "left", no_wrap=True)
    for category in dict.fromkeys(row.category for row in shown):
        for index, row in enumerate(r for r in shown if r.category == category):
            style = "green" if (row.speedup or 0.0) >= 1 else "red"
            table.add_row(
                Text("" if index else category, style="bold" if category == ALL else ""),
                Text(row.label),
                f"{row.speedup:.2f}",
                Text(bar((row.speedup or 0.0) / longest), style=style),
            )
    Console(file=stream, highlight=False).print(table)


def bar(share: float, width: int = _WIDTH) -> str:
    """A bar of `share` (0 to 1) of the width, exact to an eighth of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    rest = _EIGHTHS[eighths % 8].strip()
    return "█" * (eighths // 8) + rest
