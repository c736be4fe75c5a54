"""Dequantized weights for the torch executor: in memory as far as a budget goes, else made on every use."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quant.reference import dequantize, dequantize_rows
from quant.tensor import QuantTensor

from .plan import Plan

BLOCK_ROWS = 1024  # output rows of one matrix product; fixed, so that the budget changes no bit

Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Output rows `start:stop` of a linear layer's weight, [stop - start, K] in float32."""

    start: int
    stop: int
    values: Tensor


class TorchWeights:
    """Float32 forms of a plan's packed weights. `budget` is in bytes of float32 values kept (None: all)."""

    def __init__(
        self, plan: Plan, *, budget: int | None, threads: int, progress: Progress | None = None
    ) -> None:
        self._kept: dict[QuantTensor, list[RowBlock]] = {}
        self._vectors: dict[QuantTensor, Tensor] = {}
        matrices = dict.fromkeys(op.weights[0] for op in plan.ops if op.kind == "linear")
        self._load([matrix for matrix in matrices if matrix is not None], budget, threads, progress)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the dequantized matrices in memory."""
        return sum(block.values.nbytes for blocks in self._kept.values() for block in blocks)

    def blocks(self, weight: QuantTensor) -> Iterator[RowBlock]:
        """The row blocks of a matrix in order, dequantized one at a time when they are not kept."""
        kept = self._kept.get(weight)
        if kept is not None:
            return iter(kept)
        return (_dequantize_block(weight, start) for start in range(0, weight.shape[0], BLOCK_ROWS))

    def vector(self, weight: QuantTensor) -> Tensor:
        """A norm weight or bias, [n]."""
        found = self._vectors.get(weight)
        if found is None:
            found = self._vectors[weight] = torch.from_numpy(dequantize(weight)).clone()
        return found

    def replace_rows(self, weight: QuantTensor, first: int, packed: npt.NDArray[np.uint8]) -> None:
        """Overwrite rows `first`, ... of a matrix, given packed in its type.

        Raises ValueError for rows that are not there, and for a matrix in a file, which is read-only.
        """
        count, rest = divmod(len(packed), weight.row_bytes)
        if rest or first < 0 or first + count > weight.shape[0]:
            raise ValueError(f"rows to overwrite are not rows of {weight.name}")
        weight.data[first * weight.row_bytes :][: len(packed)] = packed
        values = torch.from_numpy(dequantize_rows(weight, np.arange(first, first + count)))
        for block in self._kept.get(weight, ()):
            start, stop = max(first, block.start), min(first + count, block.stop)
            if start < stop:
                block.values[start - block.start : stop - block.start] = values[start - first : stop - first]

    def rows(self, table: QuantTensor, indices: npt.NDArray[np.intp]) -> Tensor:
        """Rows of an embedding table, [len(indices), K], from its packed form."""
        return torch.from_numpy(dequantize_rows(table, indices))

    def _load(
        self, matrices: list[QuantTensor], budget: int | None, threads: int, progress: Progress | None
    ) -> None:
        kept, left = [], budget
        for matrix in matrices:
            size = 4 * matrix.num_elements
            if left is None or size <= left:
                kept.append(matrix)
                left = None if left is None else left - size
        total, done = sum(4 * matrix.num_elements for matrix in kept), 0
        pieces = [(matrix, start) for matrix in kept for start in range(0, matrix.shape[0], BLOCK_ROWS)]
        pool = ThreadPoolExecutor(threads)
        try:
            for (matrix, _), block in zip(
                pieces, pool.map(lambda piece: _dequantize_block(*piece), pieces), strict=True
            ):
                self._kept.setdefault(matrix, []).append(block)
                done += block.values.nbytes
                if progress is not None:
                    progress(done, total)
        finally:
            pool.shutdown(cancel_futures=True)


def _dequantize_block(weight: QuantTensor, start: int) -> RowBlock:
    stop = min(start + BLOCK_ROWS, weight.shape[0])
    packed = weight.data[start * weight.row_bytes : stop * weight.row_bytes]
    part = QuantTensor(weight.name, weight.qtype, (stop - start, weight.shape[1]), packed)
    # A copy in memory of torch's own, whose alignment does not vary.
    return RowBlock(start, stop, torch.from_numpy(dequantize(part)).clone())
