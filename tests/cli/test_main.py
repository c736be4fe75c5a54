"""Errors become one line and an exit code."""

import errno
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from quant.errors import QuantError
from specdec_cli.cli.lazy import LazyCommand, LazyGroup, as_command
from specdec_cli.cli.main import SpecdecGroup, main
from specdec_cli.cli.options import DebugOption
from specdec_cli.errors import ModelError, PairingError, SpecdecError, UsageError


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[BaseException], None]]:
    """Make `specdec fail` raise an exception."""
    module = types.ModuleType("specdec_failing_command")

    def prepare(error: BaseException) -> None:
        def fail(debug: DebugOption = False) -> None:
            raise error

        module.fail = fail  # type: ignore[attr-defined]

    monkeypatch.setitem(sys.modules, module.__name__, module)
    table = {**SpecdecGroup.table, "fail": LazyCommand(module.__name__, "fail", "Fail.")}
    monkeypatch.setattr(SpecdecGroup, "table", table)
    return prepare


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (SpecdecError("it broke"), 1, "error: it broke"),
        (UsageError("wrong flags"), 2, "error: wrong flags"),
        (ModelError("a\nb\tc"), 1, "error: a b c"),
        (PairingError("no pair"), 1, "error: no pair"),
        (QuantError("x.gguf: truncated"), 1, "error: x.gguf: truncated"),
        (MemoryError(), 1, "error: not enough memory"),
        (FileNotFoundError(errno.ENOENT, "No such file", "x.txt"), 1, "error: x.txt: No such file"),
        (OSError(errno.EIO, "I/O trouble"), 1, "error: I/O trouble"),
        (SpecdecError("x" * 5000), 1, "error: " + "x" * 1000 + "..."),
        (KeyError("k"), 1, "error: internal error: KeyError: 'k' (--debug shows the traceback)"),
    ],
)
def test_an_error_is_one_line(error: Exception, code: int, line: str, failing, specdec) -> None:
    failing(error)
    done = specdec("fail")
    assert (done.code, done.out, done.err) == (code, "", line + "\n")


def test_ctrl_c_is_130_without_a_traceback(failing, specdec) -> None:
    failing(KeyboardInterrupt())
    done = specdec("fail")
    assert (done.code, done.out, done.err) == (130, "", "")


def test_a_closed_pipe_is_quiet(failing, specdec) -> None:
    failing(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    done = specdec("fail")
    assert (done.code, done.out, done.err) == (1, "", "")


def test_debug_shows_the_traceback(failing, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(SpecdecError("it broke"))
    with pytest.raises(SpecdecError, match="it broke"):
        main(["fail", "--debug"])
    monkeypatch.setenv("SPECDEC_DEBUG", "1")
    with pytest.raises(SpecdecError, match="it broke"):
        main(["fail"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["rnu"], "error: no command 'rnu'; did you mean 'run'? (see specdec --help)"),
        (["frobnicate"], "error: no command 'frobnicate' (see specdec --help)"),
        (["--frob"], "error: No such option: --frob (see specdec --help)"),
        (["run", "--frob"], "error: No such option: --frob"),
        (["run", "--top-kk", "3"], "--top-k"),
        (["run", "--mirostat", "2", "x"], "error: No such option: --mirostat"),
        (["run", "--lookup", "d", "x"], "error: No such option: --lookup"),
        (["run", "--spec", "predict", "x"], "name it with --predict-file"),
        (["run", "--temp", "warm", "x"], "'--temp'"),
        (["run", "--top-k", "1.5", "x"], "'--top-k'"),
        (["run", "-n"], "error: Option '-n' requires an argument"),
        (["run", "--executor", "abacus", "x"], "'--executor'"),
        (["run", "--color", "pink", "x"], "'--color'"),
        (["run", "--json=1", "x"], "--json"),
        (["chat", "extra"], "extra"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str], expected: str, specdec) -> None:
    done = specdec(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert expected in done.err


def test_a_wrong_value_from_the_environment_is_traced_to_it(monkeypatch: pytest.MonkeyPatch, specdec) -> None:
    monkeypatch.setenv("SPECDEC_TOP_K", "many")
    done = specdec("run", "hi")
    assert done.code == 2
    assert "'--top-k'" in done.err
    assert "from SPECDEC_TOP_K" in done.err


def test_no_arguments_print_the_help(specdec) -> None:
    done = specdec()
    assert done.code == 2
    assert "Usage: specdec" in done.out + done.err


class _Group(LazyGroup):
    table: Mapping[str, LazyCommand] = {"gone": LazyCommand("specdec_no_such_module", "gone", "Was here.")}


def test_lazy_help_survives_a_module_that_does_not_import() -> None:
    import typer

    app = typer.Typer(cls=_Group, add_completion=False, rich_markup_mode=None)
    app.callback()(lambda: None)
    text = typer.main.get_command(app).make_context("x", [], resilient_parsing=True).get_help()
    assert "gone" in text
    assert "Was here." in text


def test_sections_of_help_keep_their_order() -> None:
    from specdec_cli.cli.run import run

    text = as_command("run", run).make_context("run", [], resilient_parsing=True).get_help()
    titles = [
        "Arguments",
        "Prompt",
        "Model",
        "Generation",
        "Sampling",
        "Speculative decoding",
        "Output",
        "Options",
    ]
    places = [text.index(f"\n{title}:") for title in titles]
    assert places == sorted(places)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line() -> None:
    import subprocess

    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "specdec_cli.cli.main", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr == "error: No space left on device\n"
