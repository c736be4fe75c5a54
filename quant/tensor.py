"""A tensor in its packed, on-disk form."""

from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt

from .errors import QuantError
from .types import QuantType


@dataclass(frozen=True, slots=True, eq=False)
class QuantTensor:
    """Packed bytes plus type and shape. Compares and hashes by identity.

    `shape` is in row-major (numpy) order: a linear layer that maps K inputs to N outputs is (N, K), and
    each of its N rows is `K / qtype.block_size * qtype.block_bytes` consecutive bytes of `data`.
    `data` is a flat uint8 array, usually a read-only view into a memory-mapped file, which it keeps mapped.

    Raises QuantError when type, shape and number of bytes do not fit together.
    """

    name: str
    qtype: QuantType
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.shape or self.shape[-1] % self.qtype.block_size:
            message = f"rows of {self.qtype.name} are multiples of {self.qtype.block_size} values"
            raise QuantError(f"tensor {self.name!r} has shape {self.shape}; {message}")
        if self.data.dtype != np.uint8 or self.data.shape != (self.num_bytes,):
            given = f"{self.data.dtype} {self.data.shape}"
            message = f"takes {self.num_bytes} bytes in a flat array, not {given}"
            raise QuantError(
                f"tensor {self.name!r} of type {self.qtype.name} and shape {self.shape} {message}"
            )

    @property
    def num_elements(self) -> int:
        """Number of values."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of the packed form."""
        return self.num_elements // self.qtype.block_size * self.qtype.block_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of one row (the last dimension)."""
        return self.shape[-1] // self.qtype.block_size * self.qtype.block_bytes

    def select_rows(self, rows: npt.ArrayLike) -> "QuantTensor":
        """Return a copy that holds `rows` [num_rows] of the first dimension, in that order, repeats allowed.

        Packed blocks never straddle rows. Raises QuantError for a tensor of one dimension or a row outside.
        """
        indices = np.asarray(rows, dtype=np.intp)
        if len(self.shape) < 2:
            raise QuantError(f"tensor {self.name!r} of shape {self.shape} has no rows to select")
        if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < self.shape[0]:
            message = f"row {int(indices.min())} or {int(indices.max())} is outside of {self.shape[0]} rows"
            raise QuantError(f"tensor {self.name!r}: {message}")
        packed = self.data.reshape(self.shape[0], -1)[indices]
        return QuantTensor(self.name, self.qtype, (len(indices), *self.shape[1:]), packed.reshape(-1))
