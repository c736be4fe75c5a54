"""Start-up cost and the table of commands."""

import subprocess
import sys
import time

import pytest

from specdec_cli.cli.main import SpecdecGroup

HEAVY = ("torch", "numpy", "transformers", "bitsandbytes", "tokenizers", "jinja2", "gguf", "huggingface_hub")


def imported_by(statement: str) -> set[str]:
    """Top-level packages that a statement imports, as -X importtime reports them."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", statement], capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rsplit("|", 1)[1].strip().split(".")[0] for line in lines}


def test_the_entry_point_imports_nothing_heavy() -> None:
    assert imported_by("import specdec_cli.cli.main").isdisjoint(HEAVY)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_top_level_help_imports_no_command(arguments: list[str]) -> None:
    statement = f"import sys; from specdec_cli.cli.main import main; main({arguments!r})"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            statement + "; print([m for m in sys.modules if m.startswith('specdec_cli.cli.')])",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    modules = done.stdout.splitlines()[-1]
    assert "specdec_cli.cli.main" in modules
    assert "specdec_cli.cli.run" not in modules


def test_help_of_run_imports_no_torch() -> None:
    assert imported_by("from specdec_cli.cli.main import main; main(['run', '--help'])").isdisjoint(
        {"torch", "transformers", "tokenizers", "bitsandbytes"}
    )


def test_help_takes_less_than_300_ms() -> None:
    def seconds() -> float:
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "specdec_cli.cli.main", "--help"], capture_output=True, check=True
        )
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) < 0.3


def test_help_lists_every_command_with_its_summary(specdec) -> None:
    done = specdec("--help")
    assert done.code == 0
    for name, command in SpecdecGroup.table.items():
        assert f"{name} " in done.out
        assert command.summary in done.out


@pytest.mark.parametrize("name", SpecdecGroup.table)
def test_every_command_of_the_table_exists_and_has_help(name: str, specdec) -> None:
    done = specdec(name, "--help")
    assert done.code == 0
    assert f"Usage: specdec {name}" in done.out


def test_version(specdec) -> None:
    done = specdec("--version")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("specdec 0.")
