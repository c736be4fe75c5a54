"""Arrays of strings in GGUF files, each string a 64-bit length and its bytes: the loop of large vocabularies.

The native module walks them where it is built; the loops here say what they do, and what is wrong.
"""

import struct
from typing import Any

import numpy as np

from .errors import QuantError

try:
    from . import _native
except ImportError:  # slower, all the same
    _native = None  # type: ignore[assignment]

U64 = struct.Struct("<Q")


class StringBoundsError(QuantError):
    """An entry of an array leaves the data: which one, and the first byte that would have to be there."""

    def __init__(self, index: int, needed: int) -> None:
        super().__init__(f"entry {index} leaves the data")
        self.index = index
        self.needed = needed


class StringTextError(QuantError):
    """An entry of an array is not UTF-8 text."""

    def __init__(self, index: int) -> None:
        super().__init__(f"entry {index} is not UTF-8 text")
        self.index = index


def strings_end(source: Any, begin: int, count: int) -> int:
    """Offset behind `count` strings that begin at `begin` of a buffer. Raises StringBoundsError."""
    if _native is not None:
        end = _native.strings_end(np.frombuffer(source, np.uint8), begin, count)
        if end >= 0:
            return end
    size, pos, length_at = len(source), begin, U64.unpack_from
    last = size - 8
    for index in range(count):
        if pos > last:
            raise StringBoundsError(index, pos + 8)
        pos += 8 + length_at(source, pos)[0]
    if pos > size:
        raise StringBoundsError(count - 1, pos)
    return pos


def decode_strings(data: bytes, count: int) -> list[str]:
    """Return the texts of `count` strings whose bounds were checked. Raises StringTextError."""
    if _native is not None:
        decoded = _native.decode_strings(np.frombuffer(data, np.uint8), count)
        if decoded is not None:
            return decoded
    texts: list[str] = []
    append, length_at = texts.append, U64.unpack_from
    pos = 0
    try:
        for _ in range(count):
            end = pos + 8 + length_at(data, pos)[0]
            append(data[pos + 8 : end].decode())
            pos = end
    except UnicodeDecodeError as error:
        raise StringTextError(len(texts)) from error
    return texts
