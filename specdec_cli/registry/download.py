"""Files that land whole or not at all: staging that survives interruption, checksums, locks, disk space."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from specdec_cli.registry.errors import DownloadError, SourceError
from specdec_cli.registry.progress import NullProgress, Progress, format_bytes

CHUNK_BYTES = 1 << 20
_LOCK_POLL_SECONDS = 0.2


def make_directory(directory: Path) -> None:
    """Create a directory for downloads. Raises DownloadError when that is not possible."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(f"cannot create {directory}: {error.strerror}") from error


def check_space(directory: Path, needed: int) -> None:
    """Raise DownloadError when the file system of `directory` has fewer than `needed` bytes free."""
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise DownloadError(
            f"not enough disk space in {directory}: needs {format_bytes(needed)}, has {format_bytes(free)}; "
            "free some, or set SPECDEC_CACHE_DIR to a larger disk"
        )


@contextmanager
def clear_disk_errors(directory: Path) -> Iterator[None]:
    """Turn operating-system errors while writing into `directory` into one that says so."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DownloadError(f"not enough disk space in {directory}: the disk or quota is full") from error
        raise DownloadError(f"cannot write into {directory}: {error.strerror or error}") from error


@contextmanager
def exclusive(path: Path, progress: Progress | None = None) -> Iterator[None]:
    """Hold the lock file `path`, waiting for whoever holds it. The file stays: removing it would race."""
    progress = progress or NullProgress()
    with clear_disk_errors(path.parent):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        told = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    progress.message(f"another process is downloading to {path.parent}; waiting for it")
                    told = True
                time.sleep(_LOCK_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def land(temporary: Path, destination: Path, *, digest: str, sha256: str | None, size: int | None) -> None:
    """Move a complete download to its place in one step, after checking it.

    Raises SourceError, leaving `temporary` where it is, when size or sha256 differ.
    """
    actual = temporary.stat().st_size
    if size is not None and actual != size:
        raise SourceError(f"delivered {actual} bytes instead of {size}")
    if sha256 is not None and digest != sha256:
        raise SourceError(f"delivered a file with sha256 {digest}, expected {sha256}")
    temporary.replace(destination)


class StagedFile:
    """A file that grows part by part in `.NAME.part` beside its destination.

    After each complete part the number of parts and bytes is recorded in `.NAME.part.json`; whatever was
    written after that is cut off when the download is resumed. `key` says what is being downloaded: a record
    with another key is dropped. Use as a context manager while holding the destination's lock.
    """

    def __init__(self, destination: Path, key: str) -> None:
        self.destination = destination
        self.path = destination.with_name(f".{destination.name}.part")
        self._record_path = destination.with_name(f".{destination.name}.part.json")
        self._key = key
        self._hash = hashlib.sha256()
        self._file: BinaryIO | None = None
        self.parts = 0
        self.size = 0

    def __enter__(self) -> Self:
        with clear_disk_errors(self.path.parent):
            self._file = self.path.open("a+b")
            record = self._read_record()
            self._file.seek(0)
            left = record.get("size", 0)
            while left > 0 and (chunk := self._file.read(min(left, CHUNK_BYTES))):
                self._hash.update(chunk)
                left -= len(chunk)
            if left:  # fewer bytes than recorded: start over
                self._hash, record = hashlib.sha256(), {}
            self.parts, self.size = record.get("parts", 0), record.get("size", 0)
            self._file.truncate(self.size)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def _read_record(self) -> dict[str, int]:
        try:
            record: Any = json.loads(self._record_path.read_bytes())
            if record["key"] != self._key:
                return {}
            parts, size = record["parts"], record["size"]
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        valid = isinstance(parts, int) and isinstance(size, int) and parts >= 0 and size >= 0
        return {"parts": parts, "size": size} if valid else {}

    def append_part(self, chunks: Iterable[bytes]) -> None:
        """Append one part and record it. What a failure leaves behind is cut off again."""
        file = self._file
        assert file is not None, "used outside its context"
        digest, size = self._hash.copy(), self.size
        try:
            for chunk in chunks:
                with clear_disk_errors(self.path.parent):
                    file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
            with clear_disk_errors(self.path.parent):
                file.flush()
                os.fsync(file.fileno())
                self._write_record(self.parts + 1, size)
        except BaseException:
            file.truncate(self.size)
            raise
        self._hash, self.size, self.parts = digest, size, self.parts + 1

    def _write_record(self, parts: int, size: int) -> None:
        temporary = self._record_path.with_name(self._record_path.name + ".new")
        temporary.write_text(json.dumps({"key": self._key, "parts": parts, "size": size}))
        temporary.replace(self._record_path)

    def land(self, *, sha256: str | None, size: int | None) -> None:
        """Move the complete file to its destination, or drop it (SourceError) if it is not as expected."""
        try:
            land(self.path, self.destination, digest=self._hash.hexdigest(), sha256=sha256, size=size)
        finally:
            self.discard()

    def discard(self) -> None:
        """Forget everything that was staged."""
        self.path.unlink(missing_ok=True)
        self._record_path.unlink(missing_ok=True)
