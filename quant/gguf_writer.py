"""Write GGUF files: streaming, so that only one tensor is in memory, and whole or not at all.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (version 3, little-endian).
"""

import contextlib
import errno
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .errors import QuantError
from .gguf_file import shown_path
from .gguf_metadata import ARRAY, SCALARS, STRING, VALUE_TYPES, Metadata, quoted
from .gguf_parse import DEFAULT_ALIGNMENT
from .tensor import QuantTensor
from .types import QuantType

_VERSION = 3
_ID_OF_TYPE = {name: number for number, (name, _) in VALUE_TYPES.items()}

Progress = Callable[[int, int], None]  # bytes written, bytes in all


@dataclass(frozen=True, slots=True)
class TypedValue:
    """A metadata value and its type in the file: "UINT32", "STRING", "ARRAY[STRING]", ..."""

    type: str
    value: Any


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor to write. `make` is called when its turn comes and returns it with this type and shape."""

    name: str
    qtype: QuantType
    shape: tuple[int, ...]  # in numpy order, rows first
    make: Callable[[], QuantTensor]

    @property
    def num_bytes(self) -> int:
        """Bytes of the packed form."""
        return prod(self.shape) // self.qtype.block_size * self.qtype.block_bytes


def typed_metadata(metadata: Metadata) -> dict[str, TypedValue]:
    """Return the entries of a file with their types, to be changed and written to another."""
    return {key: TypedValue(metadata.type_name(key), metadata[key]) for key in metadata}


def write_gguf(
    path: Path,
    metadata: Mapping[str, TypedValue],
    tensors: Sequence[TensorEntry],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> int:
    """Write a file and return its size in bytes. It appears under its name when it is complete.

    Raises QuantError (one line, begins with the path): the file exists and `overwrite` is not set, there is
    no such directory, the disk is too small, a value does not fit its type.
    """
    path = Path(path)
    where = shown_path(path)
    try:
        _check_place(path, overwrite=overwrite)
        header = _header(metadata, tensors)
    except QuantError as error:
        raise QuantError(f"{where}: {error}") from error
    alignment = _alignment(metadata)
    size = _padded(len(header), alignment) + sum(_padded(entry.num_bytes, alignment) for entry in tensors)
    free = shutil.disk_usage(path.absolute().parent).free
    if free < size:
        raise QuantError(f"{where}: not enough disk space: needs {size} bytes, {free} are free")
    try:
        with _staged(path, overwrite=overwrite) as file:
            _write(file, header, tensors, alignment, lambda done: progress(done, size) if progress else None)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk or quota is full" if full else error.strerror or str(error)
        raise QuantError(f"{where}: cannot be written: {reason}") from error
    return size


def _check_place(path: Path, *, overwrite: bool) -> None:
    parent = path.absolute().parent
    if not parent.is_dir():
        raise QuantError(f"the directory {shown_path(parent)} does not exist")
    if path.is_dir():
        raise QuantError("is a directory")
    if path.exists() and not path.is_file():
        raise QuantError("exists and is not a regular file")
    if path.exists() and not overwrite:
        raise QuantError("exists already")


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _alignment(metadata: Mapping[str, TypedValue]) -> int:
    entry = metadata.get("general.alignment")
    return DEFAULT_ALIGNMENT if entry is None else int(entry.value)


def _header(metadata: Mapping[str, TypedValue], tensors: Sequence[TensorEntry]) -> bytes:
    """Everything before the tensor data."""
    out = bytearray(b"GGUF" + struct.pack("<IQQ", _VERSION, len(tensors), len(metadata)))
    for key, entry in metadata.items():
        out += _string(key)
        try:
            out += _value(entry)
        except (struct.error, TypeError, AttributeError, OverflowError, ValueError) as error:
            raise QuantError(f"metadata key {quoted(key)} is no {entry.type}: {error}") from error
    alignment, offset = _alignment(metadata), 0
    for tensor in tensors:
        if tensor.qtype.ggml_id is None:
            raise QuantError(f"GGUF files have no type {tensor.qtype.name} (tensor {quoted(tensor.name)})")
        rank = len(tensor.shape)
        out += _string(tensor.name) + struct.pack(f"<I{rank}Q", rank, *reversed(tensor.shape))
        out += struct.pack("<IQ", tensor.qtype.ggml_id, offset)
        offset += _padded(tensor.num_bytes, alignment)
    return bytes(out)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(entry: TypedValue) -> bytes:
    """Type and value of an entry. Raises what struct and str raise when they do not fit."""
    if not entry.type.startswith("ARRAY["):
        return struct.pack("<I", _type_id(entry.type)) + _scalar(entry.type, entry.value)
    element = entry.type[len("ARRAY[") : -1]
    if _type_id(element) == ARRAY:
        raise ValueError("arrays of arrays cannot be written")
    data = b"".join(_scalar(element, item) for item in entry.value)
    return struct.pack("<IIQ", ARRAY, _type_id(element), len(entry.value)) + data


def _type_id(name: str) -> int:
    if name not in _ID_OF_TYPE:
        raise ValueError(f"unknown type {name}")
    return _ID_OF_TYPE[name]


def _scalar(type_name: str, value: Any) -> bytes:
    number = _type_id(type_name)
    return _string(value) if number == STRING else SCALARS[number].pack(value)


@contextlib.contextmanager
def _staged(path: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """A new file beside `path` that takes its name when the body succeeds and is removed when not."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _check_place(path, overwrite=overwrite)  # somebody else may have been faster
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write(
    file: BinaryIO,
    header: bytes,
    tensors: Sequence[TensorEntry],
    alignment: int,
    report: Callable[[int], None],
) -> None:
    file.write(header.ljust(_padded(len(header), alignment), b"\0"))
    for entry in tensors:
        tensor = entry.make()
        if (tensor.qtype, tensor.shape) != (entry.qtype, entry.shape):
            raise ValueError(
                f"tensor {entry.name}: made as {tensor.qtype.name} {tensor.shape}, not as planned"
            )
        file.write(np.ascontiguousarray(tensor.data).data)
        file.write(bytes(-tensor.num_bytes % alignment))
        report(file.tell())
