"""Open GGUF files: mapped, bounded, split files included. The files are untrusted.

A mapped file must not be shortened by somebody else while it is open: reading past the new end kills the
process (SIGBUS), and no check made at opening can help.
"""

import hashlib
import mmap
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np

from .errors import QuantError
from .gguf_metadata import Metadata, quoted
from .gguf_parse import HEADER_BYTES, SUPPORTED_VERSIONS, ParsedGguf, parse_gguf
from .tensor import QuantTensor

_FINGERPRINT_VERSION = b"specdec gguf fingerprint 1"
_NUM_SAMPLES = 16
_SAMPLE_BYTES = 4096

_SHARD_NAME = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
_RAW_PART_NUMBER = re.compile(r"^(?P<stem>.+?)[.-]part(?P<number>\d+)of(?P<count>\d+)$")
_RAW_PART_LETTER = re.compile(r"^(?P<stem>.+)-split-(?P<letter>[a-z])$")

# What people have under the name of a .gguf file, by its first bytes.
_OLD_MAGICS = (b"GGML", b"lmgg", b"fmgg", b"tjgg", b"algg")  # ggml, ggmf, ggjt, ggla as little-endian numbers
_FOREIGN_STARTS = (
    (b"version https://git-lfs", "a Git LFS pointer, the file itself was not downloaded"),
    (b"PK\x03\x04", "a zip archive (perhaps a PyTorch checkpoint)"),
    (b"\x1f\x8b", "a gzip archive"),
)
_HTML_STARTS = (b"<!doctype", b"<html", b"<head", b"<?xml", b"<!--")


@dataclass(frozen=True, slots=True)
class _Shard:
    """One mapped and checked file."""

    path: Path
    mapped: mmap.mmap
    parsed: ParsedGguf


class GgufFile:
    """An open GGUF model: metadata and packed tensors of one file, or of all shards of a split one.

    Tensor data are read-only views into the mapped files; they stay valid as long as they are referenced,
    after `close` too.
    """

    def __init__(self, path: Path, shards: list[_Shard]) -> None:
        self.path = path
        self.paths = tuple(shard.path for shard in shards)
        self.version = shards[0].parsed.version
        self.metadata: Metadata = shards[0].parsed.metadata
        self.tensors: Mapping[str, QuantTensor] = MappingProxyType(_collect_tensors(shards))
        self.file_size = sum(len(shard.mapped) for shard in shards)
        self._shards = shards
        self._fingerprint: str | None = None

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a GGUF file of version 2 or 3, or all of a split model given its first shard.

        Raises QuantError (one line, begins with the path) for whatever is missing, broken or not supported.
        """
        path = Path(path)
        _reject_raw_part(path)
        first = _open_shard(path)
        shards = [first, *_open_other_shards(first)]
        try:
            return cls(path, shards)
        except QuantError as error:
            raise QuantError(f"{shown_path(path)}: {error}") from error

    @property
    def architecture(self) -> str:
        """The value of general.architecture, "" when absent. Raises QuantError when it is no text."""
        value = self.metadata.get("general.architecture", "")
        if not isinstance(value, str):
            raise QuantError(
                f"{shown_path(self.path)}: general.architecture is not text but {quoted(str(value))}"
            )
        return value

    def fingerprint(self) -> str:
        """Cheap identity of the content, as 64 hexadecimal digits: the same for a copy or a moved file.

        sha256 over, for each shard: its size, everything before the tensor data (metadata, names, types,
        shapes, offsets), and 16 evenly spaced samples of 4 KiB of the tensor data, its end included (each can
        cost a disk seek). Different models, quantizations and edited metadata differ. It is no checksum: a
        change between samples goes unnoticed.
        """
        if self._fingerprint is None:
            if not self._shards:
                raise QuantError(f"{shown_path(self.path)}: the file has been closed")
            digest = hashlib.sha256(_FINGERPRINT_VERSION)
            for shard in self._shards:
                _digest_shard(digest, shard)
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def close(self) -> None:
        """Let go of the files. They stay mapped while tensors or metadata are referenced elsewhere."""
        self.tensors = MappingProxyType({})
        self._shards = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def shown_path(path: Path) -> str:
    """Path as it may appear in a one-line message."""
    text = str(path)
    return text if text.isprintable() else repr(text)


def _open_shard(path: Path) -> _Shard:
    """Map and check one file; errors begin with its path."""
    try:
        mapped = _map(path)
        version = _check_start(mapped[:512], len(mapped))
        return _Shard(path, mapped, parse_gguf(mapped, version))
    except QuantError as error:
        raise QuantError(f"{shown_path(path)}: {error}") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise QuantError(f"{shown_path(path)}: cannot be opened: {reason}") from error


def _map(path: Path) -> mmap.mmap:
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise QuantError("is a directory, not a GGUF file")
    if not stat.S_ISREG(status.st_mode):
        raise QuantError("is not a regular file")  # opening a pipe would wait for its writer
    with path.open("rb") as file:
        if status.st_size == 0:
            raise QuantError("the file is empty")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _check_start(head: bytes, size: int) -> int:
    """Check magic and version in the first bytes and return the version; say what the file is instead."""
    if head[:4] != b"GGUF":
        raise QuantError(_foreign(head, size))
    if size < HEADER_BYTES:
        raise QuantError(f"truncated: needs at least {HEADER_BYTES} bytes, has {size}")
    version = int.from_bytes(head[4:8], "little")
    if version in SUPPORTED_VERSIONS:
        return version
    if int.from_bytes(head[4:8], "big") in (1, *SUPPORTED_VERSIONS):
        raise QuantError("a big-endian GGUF file; only little-endian ones are supported")
    advice = "convert the model again" if version < min(SUPPORTED_VERSIONS) else "newer than this program"
    raise QuantError(f"unsupported GGUF version {version}, versions 2 and 3 are supported ({advice})")


def _foreign(head: bytes, size: int) -> str:
    """Say what a file is that does not begin with the magic of GGUF."""
    if head[:4] in _OLD_MAGICS:
        return "not a GGUF file but its predecessor GGML, which is not supported: convert the model again"
    if head.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith(_HTML_STARTS):
        return (
            "not a GGUF file but an HTML page: the download returned a web page, perhaps a login or an error"
        )
    for start, kind in _FOREIGN_STARTS:
        if head.startswith(start):
            return f"not a GGUF file but {kind}"
    if size < HEADER_BYTES:
        return f"not a GGUF file: only {size} bytes"
    return f"not a GGUF file: begins with {head[:4]!r}"


def _reject_raw_part(path: Path) -> None:
    """Refuse a piece of a file that was cut bytewise, naming the pieces and how to join them."""
    if match := _RAW_PART_NUMBER.match(path.name):
        number, count = int(match["number"]), int(match["count"])
        prefix = path.name[: match.start("number")]
        names = [
            f"{prefix}{i:0{len(match['number'])}}of{match['count']}" for i in range(1, min(count, 999) + 1)
        ]
        missing = [name for name in names if not (path.parent / name).exists()]
        state = (
            f"missing: {_some(missing)}"
            if missing
            else f"join them: cat {_some(names, sep=' ')} > {match['stem']}"
        )
        raise QuantError(f"{shown_path(path)}: part {number} of {count} of a file cut into pieces; {state}")
    if match := _RAW_PART_LETTER.match(path.name):
        stem = match["stem"]
        message = (
            f"piece {match['letter']!r} of a file cut into pieces; join them: cat {stem}-split-* > {stem}"
        )
        raise QuantError(f"{shown_path(path)}: {message}")


def _open_other_shards(first: _Shard) -> list[_Shard]:
    """Open shards 2..n of a split model and check that they belong together; none for a plain file."""
    count = _split_number(first, "split.count", default=1)
    if count <= 1:
        return []
    where = shown_path(first.path)
    match = _SHARD_NAME.match(first.path.name)
    if match is None:
        message = f"a split model of {count} shards, but the name does not end in -00001-of-{count:05}.gguf"
        raise QuantError(f"{where}: {message}, so the other shards cannot be found")
    if int(match["count"]) != count:
        raise QuantError(f"{where}: named as a shard of {int(match['count'])}, but split.count is {count}")
    paths = [first.path.with_name(f"{match['stem']}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
    number = _split_number(first, "split.no", default=0) + 1
    if number != 1 or first.path.name != paths[0].name:
        raise QuantError(
            f"{where}: shard {number} of {count} of a split model; give the first, {paths[0].name}"
        )
    missing = [f"{path.name} (shard {i} of {count})" for i, path in enumerate(paths, 1) if not path.exists()]
    if missing:
        raise QuantError(f"{where}: missing {_some(missing)}")
    others = [_open_shard(path) for path in paths[1:]]
    for index, shard in enumerate(others, 1):
        if (
            _split_number(shard, "split.no", default=-1),
            _split_number(shard, "split.count", default=-1),
        ) != (
            index,
            count,
        ):
            raise QuantError(f"{shown_path(shard.path)}: is not shard {index + 1} of {count} of {where}")
    _check_total([first, *others])
    return others


def _check_total(shards: list[_Shard]) -> None:
    """Check that the shards together hold as many tensors as the first one says."""
    found = sum(len(shard.parsed.tensors) for shard in shards)
    expected = _split_number(shards[0], "split.tensors.count", default=found)
    if found != expected:
        message = f"the {len(shards)} shards hold {found} tensors, split.tensors.count says {expected}"
        raise QuantError(f"{shown_path(shards[0].path)}: {message}")


def _split_number(shard: _Shard, key: str, *, default: int) -> int:
    value = shard.parsed.metadata.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise QuantError(f"{shown_path(shard.path)}: {key} is not an integer")
    return value


def _some(names: list[str], *, sep: str = ", ", limit: int = 4) -> str:
    """The first few of many names."""
    return sep.join(names[:limit]) + (f"{sep}... ({len(names)} in all)" if len(names) > limit else "")


def _collect_tensors(shards: list[_Shard]) -> dict[str, QuantTensor]:
    """Views of all tensors, in file order. Raises QuantError when two shards hold the same name."""
    tensors: dict[str, QuantTensor] = {}
    for shard in shards:
        data = np.frombuffer(shard.mapped, np.uint8)
        for entry in shard.parsed.tensors:
            if entry.name in tensors:
                raise QuantError(f"tensor {quoted(entry.name)} occurs in two shards")
            view = data[entry.start : entry.start + entry.num_bytes]
            tensors[entry.name] = QuantTensor(entry.name, entry.qtype, entry.shape, view)
    return tensors


def _digest_shard(digest: "hashlib._Hash", shard: _Shard) -> None:
    size, start = len(shard.mapped), min(shard.parsed.data_start, len(shard.mapped))
    digest.update(size.to_bytes(8, "little") + start.to_bytes(8, "little"))
    digest.update(shard.mapped[:start])
    span = size - start
    if span <= _NUM_SAMPLES * _SAMPLE_BYTES:
        digest.update(shard.mapped[start:])
        return
    for i in range(_NUM_SAMPLES):
        at = start + (span - _SAMPLE_BYTES) * i // (_NUM_SAMPLES - 1)
        digest.update(shard.mapped[at : at + _SAMPLE_BYTES])
