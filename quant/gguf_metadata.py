"""Metadata values of a GGUF file: the value types, and arrays that are decoded when first asked for.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .errors import QuantError
from .gguf_strings import StringTextError, decode_strings

MetadataValue = str | int | float | bool | list[Any]

STRING = 8
ARRAY = 9
BOOL = 7

# id -> name, struct code of the value (none for string and array)
VALUE_TYPES: dict[int, tuple[str, str]] = {
    0: ("UINT8", "<B"),
    1: ("INT8", "<b"),
    2: ("UINT16", "<H"),
    3: ("INT16", "<h"),
    4: ("UINT32", "<I"),
    5: ("INT32", "<i"),
    6: ("FLOAT32", "<f"),
    7: ("BOOL", "<?"),
    8: ("STRING", ""),
    9: ("ARRAY", ""),
    10: ("UINT64", "<Q"),
    11: ("INT64", "<q"),
    12: ("FLOAT64", "<d"),
}
SCALARS: dict[int, struct.Struct] = {i: struct.Struct(code) for i, (_, code) in VALUE_TYPES.items() if code}


class ByteSource(Protocol):
    """What bytes and mmap have in common here: slices are bytes."""

    def __getitem__(self, key: slice, /) -> bytes:
        """Return a copy of a range of bytes."""
        ...

    def __len__(self) -> int:
        """Return the size in bytes."""
        ...


@dataclass(frozen=True, slots=True)
class RawArray:
    """An array as it lies in the file: bounds checked, elements not decoded yet."""

    key: str
    element_type: int
    count: int
    source: ByteSource
    start: int
    end: int

    def decode(self) -> list[Any]:
        """Return the elements as a list.

        Raises QuantError when a string is not UTF-8: token ids hang on exact texts, so nothing is replaced.
        """
        data = self.source[self.start : self.end]
        if self.element_type == STRING:
            try:
                return decode_strings(data, self.count)
            except StringTextError as error:
                raise QuantError(f"metadata key {quoted(self.key)}: {error}") from error
        code = SCALARS[self.element_type].format
        values: list[Any] = np.frombuffer(data, np.dtype(code)).tolist()
        return values


class Metadata(Mapping[str, MetadataValue]):
    """Metadata of a GGUF file, in file order; an array becomes a list (kept) when it is first read.

    Numbers, bools and strings are Python scalars, arrays lists of them. What the file's own type was tells
    `type_name`. Arrays are read from the mapped file, which stays mapped as long as this object lives.
    """

    def __init__(self, values: Mapping[str, MetadataValue | RawArray], types: Mapping[str, str]) -> None:
        self._values = dict(values)
        self._types = dict(types)

    def __getitem__(self, key: str) -> MetadataValue:
        value = self._values[key]
        if isinstance(value, RawArray):
            value = self._values[key] = value.decode()
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __repr__(self) -> str:
        return f"Metadata({len(self)} keys)"

    def type_name(self, key: str) -> str:
        """Type in the file: "UINT32", "STRING", "ARRAY[STRING]", ..."""
        return self._types[key]

    def array_length(self, key: str) -> int:
        """Elements of an array, without decoding it. Raises QuantError when the value is not an array."""
        value = self._values[key]
        if isinstance(value, RawArray):
            return value.count
        if isinstance(value, list):
            return len(value)
        raise QuantError(f"metadata key {quoted(key)} is {self._types[key]}, not an array")


def quoted(text: str, limit: int = 80) -> str:
    """Text of a file for a one-line message: escaped, in quotes, cut to `limit` characters."""
    return repr(text if len(text) <= limit else text[:limit] + "…")
