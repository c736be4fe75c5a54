"""Files of Hugging Face hub repositories. `huggingface_hub` is imported only when a hub is really asked."""

import errno
import logging
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from specdec_cli.registry.catalog import HubSource
from specdec_cli.registry.download import check_space, clear_disk_errors, land, sha256_of
from specdec_cli.registry.errors import DownloadError, SourceError
from specdec_cli.registry.progress import Progress, watching

_SHA256 = re.compile(r"[0-9a-f]{64}")
_TIMEOUT_SECONDS = 10.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HubFile:
    """What a hub says about one file. `sha256` is known for every file stored as a large object."""

    size: int | None  # bytes
    sha256: str | None
    revision: str  # the commit, so that what is downloaded is what was described


class HubClient(Protocol):
    """The three questions that a hub is asked. Every failure is a SourceError."""

    def describe(self, source: HubSource) -> HubFile:
        """Size and checksum of a file."""
        ...

    def download(self, source: HubSource, directory: Path) -> Path:
        """Put the file somewhere below `directory`, resuming what lies there, and return its path."""
        ...

    def list_files(self, repo: str) -> list[str]:
        """All file names of a repository."""
        ...


def _reason(error: Exception) -> str:
    """Say in one line why the hub failed."""
    name = type(error).__name__
    known = {
        "RepositoryNotFoundError": "no such repository, or it is private (log in with `hf auth login`)",
        "GatedRepoError": "the repository is gated: accept its terms on the hub and log in (`hf auth login`)",
        "EntryNotFoundError": "no such file in the repository",
        "RemoteEntryNotFoundError": "no such file in the repository",
        "RevisionNotFoundError": "no such revision",
        "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set",
    }
    if name in known:
        return known[name]
    first = (str(error).strip().splitlines() or [name])[0]
    if isinstance(error, OSError) or "Connect" in name or "Timeout" in name:
        return f"cannot be reached ({first or name})"
    return f"{name}: {first}"


def _asking(action: Callable[[], T]) -> T:
    """Run something that may fail in any way that the hub, the network and their libraries know."""
    try:
        return action()
    except Exception as error:  # the types differ between versions of the library and of its HTTP client
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DownloadError("not enough disk space: the disk or quota is full") from error
        raise SourceError(_reason(error)) from error


class HuggingFaceHub:
    """The real hub, or what HF_ENDPOINT names, with the user's login, proxy and offline settings."""

    def __init__(self) -> None:
        try:
            import huggingface_hub
            from huggingface_hub.utils.tqdm import disable_progress_bars
        except ImportError as error:
            raise SourceError(f"huggingface_hub cannot be imported: {error}") from error
        self._hub = huggingface_hub
        # Its own bars and warnings would mix with ours.
        if os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS") is None:
            disable_progress_bars()
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)

    def describe(self, source: HubSource) -> HubFile:
        """Ask for the headers of a file."""
        url = self._hub.hf_hub_url(source.repo, source.file, revision=source.revision)
        found = _asking(lambda: self._hub.get_hf_file_metadata(url, timeout=_TIMEOUT_SECONDS))
        sha256 = found.etag if found.etag and _SHA256.fullmatch(found.etag) else None
        return HubFile(found.size, sha256, found.commit_hash or source.revision)

    def download(self, source: HubSource, directory: Path) -> Path:
        """Download with the library, which keeps and resumes incomplete files below `directory`."""
        return Path(
            _asking(
                lambda: self._hub.hf_hub_download(
                    source.repo, source.file, revision=source.revision, local_dir=directory
                )
            )
        )

    def list_files(self, repo: str) -> list[str]:
        """List a repository."""
        return _asking(lambda: list(self._hub.HfApi().list_repo_files(repo)))


def fetch_hub(
    source: HubSource,
    destination: Path,
    progress: Progress,
    *,
    client: HubClient,
    sha256: str | None = None,
    size: int | None = None,
) -> None:
    """Download a hub file to `destination` while its lock is held.

    The checksum is the one given, else the one that the hub publishes; a file with neither is refused. A hub
    file that is known not to be the expected one is not downloaded at all.
    """
    found = client.describe(source)
    if sha256 is not None and found.sha256 is not None and found.sha256 != sha256:
        raise SourceError(f"{source.file} has sha256 {found.sha256} there, expected {sha256}")
    expected = sha256 or found.sha256
    if expected is None:
        raise SourceError(f"{source.file} has no published sha256, so that it could not be verified")
    total = size or found.size
    staging = destination.with_name(f".{destination.name}.hub")
    with clear_disk_errors(destination.parent):
        staging.mkdir(exist_ok=True)
    progress.start(destination.name, total)
    have = sum(path.stat().st_size for path in staging.rglob("*") if path.is_file())
    if total is not None:
        check_space(destination.parent, total - min(have, total))
    pinned = HubSource(source.repo, source.file, found.revision)
    with watching(staging, progress, limit=total):
        path = client.download(pinned, staging)
    try:
        land(path, destination, digest=sha256_of(path), sha256=expected, size=total)
    finally:  # landed or wrong: either way nothing here is worth resuming
        shutil.rmtree(staging, ignore_errors=True)
