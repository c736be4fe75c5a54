"""Which type each tensor of a quantized file gets, and the writing of such a file."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .gguf_writer import Progress, TensorEntry, TypedValue, write_gguf
from .requantize import requantize
from .tensor import QuantTensor
from .types import BF16, BY_NAME, F16, F32, QuantType

EMBEDDING, HEAD, HEAD_BIAS = "token_embd.weight", "output.weight", "output.bias"

# general.file_type of ggml, by the type that most tensors have.
_FILE_TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q4_K": 15,
    "Q6_K": 18,
    "BF16": 32,
}
# Where rows are no multiples of 256 values: about as many bits in blocks of 32.
_BLOCK_32 = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to write. `head` is the type of the output head (and of the embedding table where it is the head).

    `rows`: ids of the vocabulary that are kept, None for all.
    """

    qtype: QuantType
    head: QuantType
    rows: npt.NDArray[np.int64] | None = None


def default_head(qtype: QuantType) -> QuantType:
    """Type of the head when nothing is said: it matters more than other tensors, so at least 6 bits."""
    return qtype if qtype.bits_per_weight >= BY_NAME["Q6_K"].bits_per_weight else BY_NAME["Q6_K"]


def type_for(tensor: QuantTensor, recipe: Recipe, *, tied: bool) -> QuantType:
    """Type to write a tensor as. Norms, biases and other vectors stay as they are."""
    if len(tensor.shape) < 2:
        return tensor.qtype
    wanted = recipe.head if tensor.name == (EMBEDDING if tied else HEAD) else recipe.qtype
    return fitting(wanted, tensor.shape[-1])


def fitting(wanted: QuantType, width: int) -> QuantType:
    """`wanted`, or where rows of `width` values are not multiples of its block, the next type that fits."""
    for qtype in (wanted, BY_NAME[_BLOCK_32.get(wanted.name, wanted.name)], F16):
        if width % qtype.block_size == 0:
            return qtype
    return F16


def write_quantized(
    path: Path,
    metadata: Mapping[str, TypedValue],
    tensors: Mapping[str, QuantTensor],
    recipe: Recipe,
    *,
    threads: int = 1,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> list[TensorEntry]:
    """Write `tensors` as the recipe says; the metadata are those of the source, their vocabulary already cut.

    Returns what was written. Raises QuantError as `write_gguf` and `requantize` do.
    """
    tied = HEAD not in tensors
    entries = [_entry(tensor, recipe, tied=tied, threads=threads) for tensor in tensors.values()]
    kept = {key: value for key, value in metadata.items() if not key.startswith("split.")}
    kept["general.file_type"] = TypedValue("UINT32", _FILE_TYPES[recipe.qtype.name])
    if recipe.qtype not in (F32, F16, BF16):
        kept["general.quantization_version"] = TypedValue("UINT32", 2)
    write_gguf(path, kept, entries, overwrite=overwrite, progress=progress)
    return entries


def _entry(tensor: QuantTensor, recipe: Recipe, *, tied: bool, threads: int) -> TensorEntry:
    qtype = type_for(tensor, recipe, tied=tied)
    rows = recipe.rows if tensor.name in (EMBEDDING, HEAD, HEAD_BIAS) else None
    shape = tensor.shape if rows is None else (len(rows), *tensor.shape[1:])
    return TensorEntry(tensor.name, qtype, shape, partial(_make, tensor, qtype, rows, threads))


def _make(
    tensor: QuantTensor, qtype: QuantType, rows: npt.NDArray[np.int64] | None, threads: int
) -> QuantTensor:
    if rows is not None:
        tensor = select(tensor, rows)
    return requantize(tensor, qtype, threads=threads)


def select(tensor: QuantTensor, rows: npt.ArrayLike) -> QuantTensor:
    """`rows` of a matrix, or those elements of a vector."""
    if len(tensor.shape) > 1:
        return tensor.select_rows(rows)
    column = QuantTensor(tensor.name, tensor.qtype, (*tensor.shape, 1), tensor.data).select_rows(rows)
    return QuantTensor(tensor.name, tensor.qtype, column.shape[:1], column.data)
