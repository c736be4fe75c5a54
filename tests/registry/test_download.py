"""Staging, checksums, locks and disk space."""

import errno
import hashlib
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from specdec_cli.registry import download
from specdec_cli.registry.download import (
    StagedFile,
    check_space,
    clear_disk_errors,
    exclusive,
    make_directory,
)
from specdec_cli.registry.errors import DownloadError, SourceError


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_parts_are_joined_and_land(tmp_path: Path) -> None:
    destination = tmp_path / "m.gguf"
    with StagedFile(destination, "key") as staged:
        staged.append_part([b"ab", b"c"])
        staged.append_part([b"def"])
        assert not destination.exists()
        staged.land(sha256=digest(b"abcdef"), size=6)
    assert destination.read_bytes() == b"abcdef"
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


def test_an_interrupted_part_is_cut_off_and_the_others_are_kept(tmp_path: Path) -> None:
    def broken():
        yield b"xxx"
        raise KeyboardInterrupt

    destination = tmp_path / "m.gguf"
    with StagedFile(destination, "key") as staged:
        staged.append_part([b"abc"])
        with pytest.raises(KeyboardInterrupt):
            staged.append_part(broken())
    assert not destination.exists()
    with StagedFile(destination, "key") as staged:
        assert (staged.parts, staged.size) == (1, 3)
        staged.append_part([b"def"])
        staged.land(sha256=digest(b"abcdef"), size=6)
    assert destination.read_bytes() == b"abcdef"


def test_bytes_written_after_the_record_are_cut_off(tmp_path: Path) -> None:
    destination = tmp_path / "m.gguf"
    with StagedFile(destination, "key") as staged:
        staged.append_part([b"abc"])
    with staged.path.open("ab") as file:  # the process was killed in the middle of a part
        file.write(b"half a part")
    with StagedFile(destination, "key") as staged:
        assert staged.size == 3
        staged.append_part([b"def"])
        staged.land(sha256=digest(b"abcdef"), size=6)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"[]",
        b"{}",
        b'{"key": "key", "parts": "x", "size": 3}',
        b'{"key": "key", "parts": 1, "size": 99}',
    ],
)
def test_a_record_that_makes_no_sense_starts_over(tmp_path: Path, record: bytes) -> None:
    destination = tmp_path / "m.gguf"
    with StagedFile(destination, "key") as staged:
        staged.append_part([b"abc"])
    (tmp_path / ".m.gguf.part.json").write_bytes(record)
    with StagedFile(destination, "key") as staged:
        assert (staged.parts, staged.size) == (0, 0)
        assert staged.path.stat().st_size == 0
        staged.append_part([b"new"])
        staged.land(sha256=digest(b"new"), size=3)


def test_another_download_of_the_same_name_starts_over(tmp_path: Path) -> None:
    with StagedFile(tmp_path / "m.gguf", "one") as staged:
        staged.append_part([b"abc"])
    with StagedFile(tmp_path / "m.gguf", "two") as staged:
        assert staged.parts == 0


@pytest.mark.parametrize(
    ("sha256", "size", "complaint"),
    [("0" * 64, 3, "sha256 ba7816bf.* expected 0000"), (None, 4, "delivered 3 bytes instead of 4")],
)
def test_what_was_not_expected_is_dropped(tmp_path: Path, sha256: str, size: int, complaint: str) -> None:
    destination = tmp_path / "m.gguf"
    with StagedFile(destination, "key") as staged:
        staged.append_part([b"abc"])
        with pytest.raises(SourceError, match=complaint):
            staged.land(sha256=sha256, size=size)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_staged_part_is_noticed(tmp_path: Path) -> None:
    destination = tmp_path / "m.gguf"
    with StagedFile(destination, "key") as staged:
        staged.append_part([b"abc"])
    staged.path.write_bytes(b"aXc")
    with StagedFile(destination, "key") as staged:
        staged.append_part([b"def"])
        with pytest.raises(SourceError, match="sha256"):
            staged.land(sha256=digest(b"abcdef"), size=6)
    assert not destination.exists()


def test_no_room_is_said_before_anything_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"not enough disk space in .*: needs 1000000000\.00 GB, has"):
        check_space(tmp_path, 10**18)
    check_space(tmp_path, 1)


def test_a_disk_that_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with StagedFile(tmp_path / "m.gguf", "key") as staged:
        monkeypatch.setattr(download.os, "fsync", full)
        with pytest.raises(DownloadError, match="not enough disk space"):
            staged.append_part([b"abc"])
        monkeypatch.undo()
        assert staged.path.stat().st_size == 0


def test_other_errors_of_the_disk_are_named(tmp_path: Path) -> None:
    with (
        pytest.raises(DownloadError, match=r"cannot write into .*: Permission denied"),
        clear_disk_errors(tmp_path),
    ):
        raise PermissionError(errno.EACCES, "Permission denied")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DownloadError, match=r"cannot create .*file/models"):
        make_directory(tmp_path / "file" / "models")


def _hold(path: Path, seconds: float, ready: "multiprocessing.synchronize.Event") -> None:
    with exclusive(path):
        ready.set()
        time.sleep(seconds)


def test_one_process_at_a_time(tmp_path: Path, recorder) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    lock = tmp_path / "lock"
    process = context.Process(target=_hold, args=(lock, 0.4, ready))
    process.start()
    try:
        assert ready.wait(20)
        start = time.monotonic()
        with exclusive(lock, recorder):
            waited = time.monotonic() - start
    finally:
        process.join()
    assert waited > 0.1
    assert len(recorder.messages) == 1
    assert "waiting" in recorder.messages[0]


def test_a_lock_is_released_when_its_holder_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), exclusive(tmp_path / "lock"):
        raise KeyboardInterrupt
    with exclusive(tmp_path / "lock"):
        assert os.path.exists(tmp_path / "lock")  # noqa: PTH110
