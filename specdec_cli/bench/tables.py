"""A finished benchmark as text: Markdown for people, comma-separated values for spreadsheets."""

import csv
import io
from collections.abc import Callable, Sequence
from typing import Any

from specdec_cli.bench.advice import best_lengths
from specdec_cli.bench.prompts import ALL
from specdec_cli.bench.report import BenchReport, fork_line, row_document
from specdec_cli.bench.rows import Row

_COLUMNS = (
    "category",
    "strategy",
    "prompts",
    "tok/s",
    "speed-up",
    "in total",
    "draft acceptance rate",
    "mean acceptance length",
    "passes/token",
    "draft share",
    "overhead",
    "ceiling",
    "equal",
)


def markdown(report: BenchReport, token_text: Callable[[int], str]) -> str:
    """A table with all rows, what does not fit into it, forks if there are any, and the advice."""
    parts = [
        "\n".join(f"- {line}" for line in description(report)),
        markdown_table([_COLUMNS, *(_cells(row) for row in report.rows)]),
    ]
    notes = [*_positions(report.rows), *_pass_costs(report), *_sweep(report.rows)]
    if notes:
        parts.append("\n".join(f"- {line}" for line in notes))
    if report.forks:
        parts.append("\n".join(fork_line(fork, token_text) for fork in report.forks))
    return "\n\n".join([*parts, report.advice])


def comma_separated(report: BenchReport) -> str:
    """One line per row with the keys of the JSON document; undefined figures are empty."""
    stream = io.StringIO()
    rows = [row_document(row) for row in report.rows]
    writer = csv.DictWriter(stream, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        positions = " ".join("" if rate is None else f"{rate:g}" for rate in row["acceptance_per_position"])
        writer.writerow(row | {"acceptance_per_position": positions, "equal": str(row["equal"]).lower()})
    return stream.getvalue().rstrip("\n")


def description(report: BenchReport) -> list[str]:
    """What was measured, where and how: lines that belong to every claim of speed."""
    settings, machine = report.settings, report.machine
    sampling: dict[str, Any] = settings["sampling"]
    prompts = settings["prompts"]
    lines = [f"model {_file(settings, 'model')}"]
    if settings.get("draft_model"):
        lines.append(f"draft model {_file(settings, 'draft_model')}")
    return [
        *lines,
        f"{machine['cpu']}, {machine['isa']}, {settings['threads']} threads, "
        f"executor {settings['executor']}, specdec {machine['specdec']}",
        f"{prompts['count']} prompts of {prompts['name']}, {settings['n_predict']} tokens each at most, "
        f"temperature {sampling['temperature']:g}, seed {settings['seed']}, "
        f"{settings['repetitions']} repetitions after {settings['warm_up']} warm-up runs",
    ]


def markdown_table(rows: Sequence[Sequence[str]], *, text_columns: int = 2) -> str:
    """A table with aligned columns; the first row is the head, the first `text_columns` are no numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if i < text_columns else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    rule = [("-" * width) if i < text_columns else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    return "\n".join([line(rows[0]), f"| {' | '.join(rule)} |", *(line(row) for row in rows[1:])])


def number(value: float | None, digits: int, unit: str = "") -> str:
    """A figure, or n/a where it is undefined."""
    return "n/a" if value is None else f"{value:.{digits}f}{unit}"


def percent(value: float | None) -> str:
    """A share as people read it."""
    return number(None if value is None else 100 * value, 1, " %")


def _cells(row: Row) -> list[str]:
    return [
        row.category,
        row.label,
        str(row.prompts),
        number(row.decode_tps, 1) + _spread(row),
        number(row.speedup, 2),
        number(row.speedup_total, 2),
        percent(row.draft_acceptance_rate),
        number(row.mean_acceptance_length, 2),
        number(row.passes_per_token, 3),
        percent(row.draft_share),
        percent(row.overhead_share),
        number(row.ceiling, 2),
        "yes" if row.equal else "NO",
    ]


def _spread(row: Row) -> str:
    if row.decode_tps_min is None or row.decode_tps_max is None:
        return ""
    return f" ({row.decode_tps_min:.1f}..{row.decode_tps_max:.1f})"


def _file(settings: Any, key: str) -> str:
    fingerprint = settings.get(f"{key}_fingerprint")
    return f"{settings[key]} ({fingerprint[:12]})" if fingerprint else str(settings[key])


def _positions(rows: Sequence[Row]) -> list[str]:
    return [
        f"acceptance rate at positions 1 to {len(row.acceptance_per_position)}, {row.label}: "
        + " ".join(number(rate, 2) for rate in row.acceptance_per_position)
        for row in rows
        if row.category == ALL and row.acceptance_per_position
    ]


def _pass_costs(report: BenchReport) -> list[str]:
    first = report.t_ms.get(1)
    if not first:
        return []
    ratios = ", ".join(f"{rows}: {time / first:.2f}" for rows, time in report.t_ms.items() if rows > 1)
    return [
        f"t(1) {first:.2f} ms; t(M)/t(1) of the target for M = {ratios}",
        f"ceiling with all drafts accepted and free: {number(report.ceiling, 2)} x plain",
    ]


def _sweep(rows: Sequence[Row]) -> list[str]:
    speeds = {row.label: row.speedup for row in rows if row.category == ALL}
    return [
        f"best draft length of {name}: {length} ({number(speeds[f'{name}@{length}'], 2)} x plain)"
        for name, length in best_lengths(rows).items()
    ]
