"""Plots of a benchmark as an image file, with matplotlib (the extra `plot`)."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specdec_cli.bench.harness import PLAIN
from specdec_cli.bench.rows import Row
from specdec_cli.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SUFFIXES = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Raise UsageError when no plot can be written to `path`: known before an hour of measuring."""
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"--plot {path}: the name must end in {', '.join(_SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: the directory {path.absolute().parent} does not exist")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install 'specdec-cli[plot]'")


def plot(rows: Sequence[Row], curves: Mapping[str, Mapping[int, float]], path: Path) -> None:
    """Bars of speed-up and acceptance by category, and t(M)/t(1) of each curve (name -> rows -> ms)."""
    from matplotlib.figure import Figure

    panels = (2 if rows else 0) + (1 if curves else 0)
    figure = Figure(figsize=(9, 3.6 * panels), layout="constrained")
    axes = figure.subplots(panels, 1, squeeze=False)[:, 0].tolist()
    if rows:
        speculative = [row for row in rows if row.label != PLAIN]
        _bars(axes.pop(0), speculative, {id(r): r.speedup for r in speculative}, "speed-up of decoding")
        acceptance = {id(r): r.draft_acceptance_rate for r in speculative}
        _bars(axes.pop(0), speculative, acceptance, "draft acceptance rate")
    if curves:
        _curves(axes.pop(0), curves)
    figure.savefig(path, dpi=150)


def _bars(axes: "Axes", rows: Sequence[Row], values: Mapping[int, float | None], title: str) -> None:
    """Bars grouped by category, one colour per strategy; undefined values have none."""
    categories = list(dict.fromkeys(row.category for row in rows))
    labels = list(dict.fromkeys(row.label for row in rows))
    width = 0.8 / max(1, len(labels))
    for index, label in enumerate(labels):
        own = [row for row in rows if row.label == label and values[id(row)] is not None]
        offset = (index - (len(labels) - 1) / 2) * width
        places = [categories.index(row.category) + offset for row in own]
        axes.bar(places, [values[id(row)] or 0.0 for row in own], width, label=label)
    if title.startswith("speed-up"):
        axes.axhline(1.0, color="black", linewidth=0.8)  # plain decoding
    axes.set_xticks(range(len(categories)), categories)
    axes.set_ylabel(title)
    if labels:
        axes.legend(fontsize="small", ncols=min(4, len(labels)))


def _curves(axes: "Axes", curves: Mapping[str, Mapping[int, float]]) -> None:
    for name, t_ms in curves.items():
        first = t_ms[min(t_ms)]
        axes.plot(list(t_ms), [time / first for time in t_ms.values()], marker="o", label=name)
    axes.set_xlabel("rows of a pass, M")
    axes.set_ylabel("t(M) / t(1)")
    axes.legend(fontsize="small")
