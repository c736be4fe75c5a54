"""Plots as files."""

import importlib.util

import pytest

from specdec_cli.bench import plot as plot_module
from specdec_cli.bench.plot import check_plot, plot
from specdec_cli.bench.rows import make_rows
from specdec_cli.errors import UsageError


def test_a_picture_of_bars_and_curves(toy, tmp_path):
    runs = [toy.run(), toy.run(strategy="draft"), toy.run(strategy="ngram", predicted_ms=0)]
    path = tmp_path / "bench.png"
    plot(make_rows(runs, {}), {"target": {1: 10.0, 2: 11.0}}, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    both = path.stat().st_size
    plot((), {"target": {1: 10.0, 2: 11.0}}, path)
    assert 0 < path.stat().st_size < both


def test_what_cannot_be_written_is_refused_early(tmp_path, monkeypatch):
    check_plot(tmp_path / "a.svg")
    with pytest.raises(UsageError, match="must end in"):
        check_plot(tmp_path / "a.txt")
    with pytest.raises(UsageError, match="does not exist"):
        check_plot(tmp_path / "nowhere" / "a.png")
    monkeypatch.setattr(plot_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs matplotlib: pip install"):
        check_plot(tmp_path / "a.png")


def test_matplotlib_is_there():
    """The test above replaces the only place that asks; the extra `dev` brings it."""
    assert importlib.util.find_spec("matplotlib") is not None
