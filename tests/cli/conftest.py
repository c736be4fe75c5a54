"""Runs of the command line inside the test process."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from specdec_cli.cli.main import main


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str


@pytest.fixture
def specdec(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run `specdec ARGUMENTS` in this process, with stdout and stderr captured."""

    def run(*arguments: str) -> Done:
        code = main(arguments)
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run
