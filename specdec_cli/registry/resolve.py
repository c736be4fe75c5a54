"""From what the user wrote after `-m` to a file on this machine."""

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specdec_cli.registry.catalog import (
    Catalog,
    HubSource,
    ModelEntry,
    PathSource,
    is_hub_repo,
    load_catalog,
    safe_relative_file,
)
from specdec_cli.registry.choose import model_candidates, preferred, shard_names
from specdec_cli.registry.errors import DownloadError, ModelNotFoundError, SourceError
from specdec_cli.registry.hub import HubClient, HuggingFaceHub
from specdec_cli.registry.paths import extra_models_dir, models_cache_dir
from specdec_cli.registry.progress import NullProgress, Progress
from specdec_cli.registry.sources import pull as pull_entry

_HUB_PREFIX = "hf:"
HubFactory = Callable[[], HubClient]


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model file on this machine; `alias` when it is one of the catalogue."""

    path: Path  # of a split model the first shard
    alias: str | None = None


def find_local(entry: ModelEntry) -> Path | None:
    """Return where the file of a catalogue entry lies on this machine, or None.

    Looks at `SPECDEC_MODELS_DIR`, the cache, and path sources, in this order. A file of another size than the
    catalogue says is another file or an incomplete one, and is passed over.
    """
    places = [models_cache_dir() / entry.file]
    extra = extra_models_dir()
    if extra is not None:
        places.insert(0, extra / entry.file)
    places += [source.path for source in entry.sources if isinstance(source, PathSource)]
    for place in places:
        try:
            if place.is_file() and entry.size in (None, place.stat().st_size):
                return place
        except OSError:
            continue
    return None


def alias_of(path: Path, catalog: Catalog) -> str | None:
    """Return the alias whose file name and size a file has."""
    for entry in catalog.models.values():
        if entry.file == path.name and entry.size is not None and entry.size == path.stat().st_size:
            return entry.alias
    return None


def _resolve_entry(entry: ModelEntry, pull: bool, progress: Progress, hub: HubFactory) -> Path:
    found = find_local(entry)
    if found is not None:
        return found
    if not pull:
        raise ModelNotFoundError(
            f"{entry.alias} is not on this machine; get it with `specdec models pull {entry.alias}`"
        )
    return pull_entry(entry, models_cache_dir() / entry.file, progress, hub=hub)


def _resolve_directory(directory: Path) -> Path:
    candidates = model_candidates(entry.name for entry in directory.iterdir() if entry.is_file())
    if len(candidates) == 1:
        return directory / candidates[0]
    if candidates:
        raise ModelNotFoundError(
            f"{directory} holds several models, name one of them: {', '.join(candidates)}"
        )
    raise ModelNotFoundError(f"{directory} holds no .gguf file")


def _hub_file(repo: str, directory: Path, pull: bool, hub: HubFactory) -> str:
    """Choose the file of a repository named without one: one that is here already, else ask the hub."""
    local = (
        [str(path.relative_to(directory)) for path in directory.rglob("*.gguf")] if directory.is_dir() else []
    )
    chosen = preferred(model_candidates(local))
    if chosen is not None:
        return chosen
    if not pull:
        raise ModelNotFoundError(
            f"no file of hf:{repo} is on this machine; get it with `specdec models pull hf:{repo}`"
        )
    try:
        candidates = model_candidates(hub().list_files(repo))
    except SourceError as error:
        raise DownloadError(f"hub {repo}: {error}") from error
    chosen = preferred(candidates)
    if chosen is not None:
        return chosen
    if not candidates:
        raise ModelNotFoundError(f"hf:{repo} holds no .gguf file")
    raise ModelNotFoundError(
        f"hf:{repo} holds several models, name one as hf:{repo}:FILE: {', '.join(candidates)}"
    )


def _resolve_hub(name: str, pull: bool, progress: Progress, hub: HubFactory) -> Path:
    repo, _, file = name.removeprefix(_HUB_PREFIX).partition(":")
    if not is_hub_repo(repo):
        raise ModelNotFoundError(f"{name!r} is not of the form hf:OWNER/REPO or hf:OWNER/REPO:FILE")
    directory = models_cache_dir() / "hf" / repo
    file = file or _hub_file(repo, directory, pull, hub)
    if not safe_relative_file(file):
        raise ModelNotFoundError(f"{file!r} is not allowed as the name of a hub file")
    shards = shard_names(file)
    for shard in shards:
        path = directory / shard
        if path.is_file():
            continue
        if not pull:
            raise ModelNotFoundError(
                f"{name} is not on this machine; get it with `specdec models pull {name}`"
            )
        entry = ModelEntry(alias=name, file=path.name, sources=(HubSource(repo, shard),))
        pull_entry(entry, path, progress, hub=hub)
    return directory / shards[0]


def _unknown(name: str, catalog: Catalog) -> ModelNotFoundError:
    if os.sep in name or name.lower().endswith(".gguf"):
        return ModelNotFoundError(f"no such file: {name}")
    close = difflib.get_close_matches(name, catalog.models, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    known = ", ".join(sorted(catalog.models))
    return ModelNotFoundError(f"{name!r} is no file, directory or known model; {hint}known models: {known}")


def resolve_model(
    name_or_path: str,
    *,
    pull: bool,
    progress: Progress | None = None,
    catalog: Catalog | None = None,
    hub: HubFactory = HuggingFaceHub,
) -> ResolvedModel:
    """Find the model file that FILE, DIR, an alias or hf:OWNER/REPO[:FILE] names.

    With `pull` it is downloaded when it is not on this machine yet.

    An alias wins over a file of the same name (write ./NAME for that file). Raises ModelNotFoundError,
    DownloadError or CatalogError.
    """
    progress = progress or NullProgress()
    if name_or_path.startswith(_HUB_PREFIX):
        return ResolvedModel(_resolve_hub(name_or_path, pull, progress, hub))
    catalog = catalog or load_catalog()
    entry = catalog.models.get(name_or_path)
    if entry is not None:
        return ResolvedModel(_resolve_entry(entry, pull, progress, hub), entry.alias)
    path = Path(name_or_path).expanduser()
    try:
        if path.is_dir():
            path = _resolve_directory(path)
        elif not path.exists():
            raise _unknown(name_or_path, catalog)
        return ResolvedModel(path, alias_of(path, catalog))
    except (
        OSError,
        ValueError,
    ) as error:  # a name that is too long or holds NUL, a directory without permission
        raise ModelNotFoundError(f"cannot open {name_or_path!r}: {error}") from error
