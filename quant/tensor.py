"""A tensor in its packed, on-disk form."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .types import QuantType


@dataclass(frozen=True, slots=True)
class QuantTensor:
    """Packed bytes plus type and shape.

    `shape` is in row-major (numpy) order: a linear layer that maps K inputs to N outputs is (N, K), and
    each of its N rows is `K / qtype.block_size * qtype.block_bytes` consecutive bytes of `data`.
    `data` is a flat uint8 array, usually a read-only view into a memory-mapped file.
    """

    name: str
    qtype: QuantType
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8] = field(repr=False)
    owner: Any = field(default=None, repr=False)

    @property
    def num_elements(self) -> int:
        """Number of values."""
        n = 1
        for dim in self.shape:
            n *= dim
        return n

    @property
    def row_bytes(self) -> int:
        """Bytes of one row (the last dimension)."""
        return self.shape[-1] // self.qtype.block_size * self.qtype.block_bytes

    def select_rows(self, rows: npt.NDArray[np.intp]) -> "QuantTensor":
        """Return a copy that holds `rows` of a 2-D tensor, in that order. Packed blocks never straddle rows."""
        packed = self.data.reshape(self.shape[0], self.row_bytes)[rows]
        return QuantTensor(self.name, self.qtype, (len(rows), *self.shape[1:]), packed.reshape(-1))
