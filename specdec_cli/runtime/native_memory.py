"""How much memory a native model takes, known before it is allocated; and giving file pages back."""

import mmap
from dataclasses import dataclass

import numpy as np

from quant.tensor import QuantTensor
from specdec_cli.errors import ModelError

MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes that a model takes. `kv` is for one sequence of the full context; `available` None: unknown."""

    weights: int
    kv: int
    work: int
    loading: int  # beyond the rest, while weights are repacked
    available: int | None

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        return self.weights + self.kv + self.work + self.loading

    def describe(self) -> str:
        """One line with all parts."""
        parts = {
            "weights": self.weights,
            "KV cache": self.kv,
            "work buffers": self.work,
            "while loading": self.loading,
        }
        listed = ", ".join(f"{name} {size / MEGABYTE:.0f} MB" for name, size in parts.items())
        known = "unknown" if self.available is None else f"{self.available / MEGABYTE:.0f} MB"
        return f"memory {self.total / MEGABYTE:.0f} MB ({listed}); available {known}"

    def require(self) -> None:
        """Raise ModelError when the model does not fit."""
        if self.available is not None and self.total > self.available:
            raise ModelError(f"not enough memory: {self.describe()}; try a smaller --ctx-size or model")


def release_pages(tensor: QuantTensor) -> None:
    """Let the system drop the file pages behind a memory-mapped tensor; others are left alone.

    They come back from the file when the tensor is read again.
    """
    mapping = _mapping(tensor.data)
    if mapping is None or not hasattr(mapping, "madvise") or not hasattr(mmap, "MADV_DONTNEED"):
        return
    base = np.frombuffer(mapping, np.uint8)
    start = tensor.data.ctypes.data - base.ctypes.data
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (start + tensor.data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        mapping.madvise(mmap.MADV_DONTNEED, first, last - first)


def _mapping(array: object) -> mmap.mmap | None:
    """The read-only mapping that an array looks into, if it is one."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return None
        array = array.base
    if isinstance(array, memoryview):
        array = array.obj
    return array if isinstance(array, mmap.mmap) else None
