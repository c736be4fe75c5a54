"""Fixtures of the registry's tests: places of the test's own, tiny wheels, a hub that is a dictionary."""

import hashlib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from specdec_cli.registry.catalog import HubSource, ModelEntry, PackageSource
from specdec_cli.registry.errors import SourceError
from specdec_cli.registry.hub import HubFile


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's cache, settings or models, nor a network."""
    for name in ("SPECDEC_MODELS_DIR", "SPECDEC_MODELS_TOML", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SPECDEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))


@dataclass
class Recorder:
    """A Progress that keeps what it is told."""

    messages: list[str] = field(default_factory=list)
    starts: list[tuple[str, int | None]] = field(default_factory=list)
    updates: list[int] = field(default_factory=list)
    finished: int = 0

    def start(self, label: str, total: int | None) -> None:
        self.starts.append((label, total))

    def update(self, done: int) -> None:
        self.updates.append(done)

    def message(self, line: str) -> None:
        self.messages.append(line)

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


WheelMaker = Callable[..., Path]


@pytest.fixture
def make_wheel(tmp_path: Path) -> WheelMaker:
    """Write a wheel that pip accepts: make_wheel("name", "1.0", {"name/data/part1.bin": b"..."})."""

    def make(name: str, version: str, members: dict[str, bytes], *, requires: str | None = None) -> Path:
        directory = tmp_path / "wheels"
        directory.mkdir(exist_ok=True)
        package = name.replace("-", "_")
        info = f"{package}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        if requires:
            metadata += f"Requires-Dist: {requires}\n"
        wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        path = directory / f"{package}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, data in members.items():
                archive.writestr(member, data)
            archive.writestr(f"{info}/METADATA", metadata)
            archive.writestr(f"{info}/WHEEL", wheel)
            archive.writestr(f"{info}/RECORD", "")
        return path

    return make


EntryMaker = Callable[..., ModelEntry]


@pytest.fixture
def make_entry() -> EntryMaker:
    """An entry for `data`, carried by `parts` wheels called carrier-part1, carrier-part2, ..."""

    def make(
        data: bytes, *, parts: int = 1, member: str = "*/data/*.bin", hub: str | None = None
    ) -> ModelEntry:
        packages = tuple(f"carrier-part{i + 1}==1.0" for i in range(parts))
        sources = ((HubSource(hub, "model.gguf"),) if hub else ()) + (PackageSource(packages, member),)
        digest = hashlib.sha256(data).hexdigest()
        return ModelEntry("tiny", "model.gguf", sources, size=len(data), sha256=digest)

    return make


@dataclass
class FakeHub:
    """A hub whose repositories are dictionaries; `fail_after` bytes a download breaks off, once."""

    repos: dict[str, dict[str, bytes]]
    publish_sha256: bool = True
    fail_after: int | None = None
    downloads: list[str] = field(default_factory=list)
    resumed_from: list[int] = field(default_factory=list)

    def _content(self, source: HubSource) -> bytes:
        try:
            return self.repos[source.repo][source.file]
        except KeyError:
            raise SourceError("no such file in the repository") from None

    def describe(self, source: HubSource) -> HubFile:
        data = self._content(source)
        return HubFile(len(data), hashlib.sha256(data).hexdigest() if self.publish_sha256 else None, "abc123")

    def download(self, source: HubSource, directory: Path) -> Path:
        assert source.revision == "abc123", "downloads must be pinned to what was described"
        data = self._content(source)
        self.downloads.append(source.file)
        path = directory / source.file
        path.parent.mkdir(parents=True, exist_ok=True)
        incomplete = directory / "incomplete"
        have = incomplete.stat().st_size if incomplete.exists() else 0
        self.resumed_from.append(have)
        with incomplete.open("ab") as file:
            if self.fail_after is not None:
                file.write(data[have : self.fail_after])
                self.fail_after = None
                raise SourceError("connection lost")
            file.write(data[have:])
        incomplete.rename(path)
        return path

    def list_files(self, repo: str) -> list[str]:
        if repo not in self.repos:
            raise SourceError("no such repository")
        return list(self.repos[repo])


@pytest.fixture
def make_hub() -> Callable[..., FakeHub]:
    return FakeHub
