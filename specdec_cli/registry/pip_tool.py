"""Finding a pip that can download wheels: virtual environments made by uv have none."""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from specdec_cli.registry.errors import SourceError

_PROBE_SECONDS = 30.0


def _other_interpreters() -> Iterator[str]:
    base = getattr(sys, "_base_executable", None)
    if base and base != sys.executable:
        yield base
    for name in ("python3", "python"):
        found = shutil.which(name)
        if found and found != sys.executable:
            yield found


def _bundled_pip() -> Sequence[str] | None:
    """Return a command that runs the pip wheel which the standard library carries for ensurepip."""
    spec = importlib.util.find_spec("ensurepip")
    if spec is None or spec.origin is None:
        return None
    wheels = sorted((Path(spec.origin).parent / "_bundled").glob("pip-*.whl"))
    return [sys.executable, str(wheels[-1] / "pip")] if wheels else None


def _works(command: Sequence[str]) -> bool:
    try:
        done = subprocess.run(
            [*command, "--version"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def find_pip() -> list[str]:
    """Return the command that starts pip: of this interpreter, another one, or the standard library.

    Raises SourceError when there is none.
    """
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for interpreter in _other_interpreters():
        if _works([interpreter, "-m", "pip"]):
            return [interpreter, "-m", "pip"]
    bundled = _bundled_pip()
    if bundled is not None and _works(bundled):
        return list(bundled)
    raise SourceError("no pip was found to download with; install it with `python -m ensurepip`")
