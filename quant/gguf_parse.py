"""Parse the header of one GGUF file, which is untrusted, checking every number before it is used.

Sizes are Python integers throughout, so no sum or product can wrap. Nothing is allocated in proportion to a
number that the file claims before that number is known to fit into the file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, NoReturn

from .errors import QuantError
from .gguf_metadata import (
    ARRAY,
    BOOL,
    SCALARS,
    STRING,
    VALUE_TYPES,
    ByteSource,
    Metadata,
    MetadataValue,
    RawArray,
    quoted,
)
from .gguf_strings import StringBoundsError, strings_end
from .types import QuantType, type_of_id

HEADER_BYTES = 24  # magic, version, tensor count, metadata count
SUPPORTED_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

# Far above any real file; they bound the time and memory that a large hostile one can take.
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_NAME_BYTES = (1 << 16) - 1
MAX_STRING_BYTES = 1 << 26
MAX_ARRAY_ITEMS = 1 << 22
MAX_FILE_STRINGS = 1 << 23
MAX_NESTED_ITEMS = 1 << 16
MAX_ARRAY_DEPTH = 8
MAX_DIMS = 4
ALIGNMENT_RANGE = (8, 1 << 16)

# A need beyond this is no cut download but a broken number.
_IMPLAUSIBLE_BYTES = 1 << 46

_MIN_KEY_BYTES = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8
_MIN_ELEMENT_BYTES = {STRING: 8, ARRAY: 4 + 8}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Directory entry of a tensor: `shape` in row-major order, `start` and `num_bytes` in the file."""

    name: str
    qtype: QuantType
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ParsedGguf:
    """Checked header of one file (one shard of a split model)."""

    version: int
    metadata: Metadata
    tensors: tuple[TensorEntry, ...]
    data_start: int  # offset of the tensor data in the file


def parse_gguf(source: ByteSource, version: int) -> ParsedGguf:
    """Parse the header, metadata and tensor directory of a file whose magic and version have been checked.

    Raises QuantError that says what is wrong, without the file's name.
    """
    reader = _Reader(source, pos=8)
    tensor_count = reader.count("tensors", minimum_bytes=_MIN_TENSOR_BYTES, limit=MAX_TENSORS)
    key_count = reader.count("metadata keys", minimum_bytes=_MIN_KEY_BYTES, limit=MAX_KEYS)
    metadata = _read_metadata(reader, key_count)
    alignment = _alignment(metadata)
    entries = _read_directory(reader, tensor_count)
    data_start = -(-reader.pos // alignment) * alignment
    tensors = _place_tensors(entries, data_start, alignment, file_size=reader.size)
    return ParsedGguf(version, metadata, tensors, data_start)


class _Reader:
    """A position in the file; every read is bounded by the file's size."""

    def __init__(self, source: ByteSource, *, pos: int) -> None:
        self.source = source
        self.size = len(source)
        self.pos = pos
        self.strings_left = MAX_FILE_STRINGS
        self.nested_left = MAX_NESTED_ITEMS

    def fail_size(self, needed: int, what: str) -> NoReturn:
        """Report that `what`, which ends at byte `needed`, lies beyond the end of the file."""
        raise QuantError(_size_message(needed, self.size, what))

    def take(self, num_bytes: int, what: Callable[[], str]) -> bytes:
        end = self.pos + num_bytes
        if end > self.size:
            self.fail_size(end, what())
        data = self.source[self.pos : end]
        self.pos = end
        return data

    def u32(self, what: Callable[[], str]) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: Callable[[], str]) -> int:
        return int.from_bytes(self.take(8, what), "little")

    def count(self, what: str, *, minimum_bytes: int, limit: int) -> int:
        """Read a count of things of which each takes at least `minimum_bytes` of the rest of the file."""
        number = self.u64(lambda: f"the number of {what}")
        needed = self.pos + number * minimum_bytes
        if needed > self.size:
            self.fail_size(needed, f"{number} {what}")
        if number > limit:
            raise QuantError(f"{number} {what}, more than the limit of {limit}")
        return number

    def string(self, what: Callable[[], str], *, limit: int) -> bytes:
        length = self.u64(lambda: f"the length of {what()}")
        if self.pos + length > self.size:
            self.fail_size(self.pos + length, f"{what()} of {length} bytes")
        if length > limit:
            raise QuantError(f"{what()} takes {length} bytes, more than the limit of {limit}")
        return self.take(length, what)

    def skip_strings(self, count: int, what: str) -> None:
        """Step over `count` strings, checking their bounds; the loop of the large vocabularies."""
        self.strings_left -= count
        if self.strings_left < 0:
            raise QuantError(f"more than {MAX_FILE_STRINGS} strings in the metadata")
        try:
            self.pos = strings_end(self.source, self.pos, count)
        except StringBoundsError as error:
            self.fail_size(error.needed, f"{what}, entry {error.index}")


def _size_message(needed: int, size: int, what: str) -> str:
    if needed > _IMPLAUSIBLE_BYTES:
        return f"corrupt: {what} would need {needed} bytes, the file has {size}"
    return f"truncated: needs at least {needed} bytes, has {size} (the file ends within {what})"


def _read_metadata(reader: _Reader, key_count: int) -> Metadata:
    values: dict[str, MetadataValue | RawArray] = {}
    types: dict[str, str] = {}
    for index in range(key_count):
        key = _name(reader, f"metadata key {index}")
        if key in values:
            raise QuantError(f"metadata key {quoted(key)} occurs twice")
        values[key], types[key] = _read_value(reader, key)
    return Metadata(values, types)


def _name(reader: _Reader, what: str) -> str:
    """Read the name of a key or tensor: not empty, UTF-8."""
    raw = reader.string(lambda: what, limit=MAX_NAME_BYTES)
    if not raw:
        raise QuantError(f"{what} has an empty name")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise QuantError(f"the name of {what} is not UTF-8 text") from error


def _read_value(reader: _Reader, key: str) -> tuple[MetadataValue | RawArray, str]:
    """Read a typed value; return it with the name of its type."""

    def what() -> str:
        return f"the value of metadata key {quoted(key)}"

    value_type = reader.u32(what)
    if value_type == ARRAY:
        array = _read_array(reader, key, depth=1)
        element_type = array.element_type if isinstance(array, RawArray) else ARRAY
        return array, f"ARRAY[{VALUE_TYPES[element_type][0]}]"
    if value_type not in VALUE_TYPES:
        raise QuantError(f"metadata key {quoted(key)} has unknown value type {value_type}")
    return _read_scalar(reader, value_type, what), VALUE_TYPES[value_type][0]


def _read_scalar(reader: _Reader, value_type: int, what: Callable[[], str]) -> MetadataValue:
    if value_type == STRING:
        # Descriptive texts with stray bytes exist; what matters (keys, token texts) is read strictly.
        return reader.string(what, limit=MAX_STRING_BYTES).decode(errors="replace")
    packer = SCALARS[value_type]
    raw = reader.take(packer.size, what)
    if value_type == BOOL and raw[0] > 1:
        raise QuantError(f"{what()} is a bool stored as {raw[0]}")
    value: MetadataValue = packer.unpack(raw)[0]
    return value


def _read_array(reader: _Reader, key: str, *, depth: int) -> RawArray | list[Any]:
    """Check the bounds of an array and step over it; only an array of arrays (rare) is decoded at once."""
    shown = f"the array of metadata key {quoted(key)}"
    element_type = reader.u32(lambda: shown)
    if element_type not in VALUE_TYPES:
        raise QuantError(f"{shown} has unknown element type {element_type}")
    minimum = _MIN_ELEMENT_BYTES.get(element_type) or SCALARS[element_type].size
    count = reader.count(f"elements in {shown}", minimum_bytes=minimum, limit=MAX_ARRAY_ITEMS)
    if element_type == ARRAY:
        return _read_nested(reader, key, count, depth=depth)
    start = reader.pos
    if element_type == STRING:
        reader.skip_strings(count, shown)
    else:
        reader.pos += count * minimum
        if element_type == BOOL and reader.source[start : reader.pos].strip(b"\0\1"):
            raise QuantError(f"{shown} holds bools other than 0 and 1")
    return RawArray(key, element_type, count, reader.source, start, reader.pos)


def _read_nested(reader: _Reader, key: str, count: int, *, depth: int) -> list[Any]:
    """Read an array of arrays, innermost elements included."""
    if depth >= MAX_ARRAY_DEPTH:
        raise QuantError(
            f"the array of metadata key {quoted(key)} is nested more than {MAX_ARRAY_DEPTH} deep"
        )
    outer: list[Any] = []
    for _ in range(count):
        inner = _read_array(reader, key, depth=depth + 1)
        reader.nested_left -= 1 + (inner.count if isinstance(inner, RawArray) else 0)
        if reader.nested_left < 0:
            raise QuantError(
                f"more than {MAX_NESTED_ITEMS} items in nested arrays (metadata key {quoted(key)})"
            )
        outer.append(inner.decode() if isinstance(inner, RawArray) else inner)
    return outer


def _alignment(metadata: Metadata) -> int:
    """Alignment of the tensor data in bytes."""
    if "general.alignment" not in metadata:
        return DEFAULT_ALIGNMENT
    alignment = metadata["general.alignment"]
    if metadata.type_name("general.alignment") not in {"UINT32", "UINT64", "INT32"} or not isinstance(
        alignment, int
    ):
        raise QuantError(f"general.alignment is {metadata.type_name('general.alignment')}, not UINT32")
    low, high = ALIGNMENT_RANGE
    if not low <= alignment <= high or alignment & (alignment - 1):
        raise QuantError(f"general.alignment is {alignment}, not a power of two from {low} to {high}")
    return alignment


@dataclass(frozen=True, slots=True)
class _DirectoryEntry:
    name: str
    qtype: QuantType
    shape: tuple[int, ...]
    offset: int


def _read_directory(reader: _Reader, tensor_count: int) -> list[_DirectoryEntry]:
    entries: dict[str, _DirectoryEntry] = {}
    for index in range(tensor_count):
        name = _name(reader, f"tensor {index}")
        if name in entries:
            raise QuantError(f"tensor {quoted(name)} occurs twice")
        entries[name] = _read_tensor_entry(reader, name)
    return list(entries.values())


def _read_tensor_entry(reader: _Reader, name: str) -> _DirectoryEntry:
    shown = f"tensor {quoted(name)}"

    def what() -> str:
        return f"the directory entry of {shown}"

    num_dims = reader.u32(what)
    if num_dims > MAX_DIMS:
        raise QuantError(f"{shown} has {num_dims} dimensions, more than {MAX_DIMS}")
    dims = [reader.u64(what) for _ in range(num_dims)] or [1]  # no dimensions: a single number
    if 0 in dims:
        raise QuantError(f"{shown} has a dimension of 0: {dims}")
    type_id = reader.u32(what)
    try:
        qtype = type_of_id(type_id)
    except QuantError as error:
        raise QuantError(f"{shown} has {error}") from error
    if dims[0] % qtype.block_size:
        message = (
            f"{shown} has rows of {dims[0]} values, not a multiple of the {qtype.block_size} of {qtype.name}"
        )
        raise QuantError(message)
    return _DirectoryEntry(name, qtype, tuple(reversed(dims)), offset=reader.u64(what))


def _place_tensors(
    entries: list[_DirectoryEntry], data_start: int, alignment: int, *, file_size: int
) -> tuple[TensorEntry, ...]:
    """Turn offsets into checked places in the file: aligned, inside the file, disjoint."""
    placed: list[TensorEntry] = []
    for entry in entries:
        if entry.offset % alignment:
            message = f"tensor {quoted(entry.name)} has offset {entry.offset}, not a multiple of {alignment}"
            raise QuantError(message)
        num_bytes = prod(entry.shape) // entry.qtype.block_size * entry.qtype.block_bytes
        placed.append(TensorEntry(entry.name, entry.qtype, entry.shape, data_start + entry.offset, num_bytes))
    by_start = sorted(placed, key=lambda entry: entry.start)
    last = max(placed, key=lambda entry: entry.start + entry.num_bytes, default=None)
    if last is not None and last.start + last.num_bytes > file_size:
        needed = last.start + last.num_bytes
        if needed > _IMPLAUSIBLE_BYTES:
            raise QuantError(
                _size_message(needed, file_size, f"tensor {quoted(last.name)} of shape {last.shape}")
            )
        raise QuantError(f"truncated: needs {needed} bytes, has {file_size}")
    for before, after in pairwise(by_start):
        if before.start + before.num_bytes > after.start:
            raise QuantError(f"tensors {quoted(before.name)} and {quoted(after.name)} overlap in the file")
    return tuple(placed)
