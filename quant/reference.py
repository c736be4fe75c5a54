"""Dequantize every tensor type that a GGUF file can hold: slow, obvious, the oracle of all fast paths.

Most types are left to the gguf package's numpy code. Decoded here are those that it lacks: integers, F64, the
activation types Q8_1 and Q8_K, the one- and two-bit types Q1_0 and Q2_0 (block layouts: ggml-common.h), and
bitsandbytes' NF4.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import QuantError
from .tensor import QuantTensor
from .types import QuantType

FloatArray = npt.NDArray[np.float32]
ByteArray = npt.NDArray[np.uint8]

# Values decoded at a time: the temporaries of a chunk stay small beside any large tensor, and in the cache.
_CHUNK_VALUES = 1 << 17


def dequantize(tensor: QuantTensor) -> FloatArray:
    """Return the values of a tensor: a new float32 array of `tensor.shape`.

    Needs little memory beside the result. Values beyond float32 become infinite. Scales that are not finite,
    as broken files have them, give values that are not finite, without a warning.

    Raises QuantError for a type that the installed gguf package cannot decode.
    """
    qtype = tensor.qtype
    decode = _decoder(qtype)
    out = np.empty(tensor.num_elements, np.float32)
    blocks = tensor.data.reshape(-1, qtype.block_bytes)  # [num_blocks, block_bytes]
    step = max(1, _CHUNK_VALUES // qtype.block_size)
    with np.errstate(all="ignore"):
        for start in range(0, len(blocks), step):
            chunk = blocks[start : start + step]
            at = start * qtype.block_size
            out[at : at + len(chunk) * qtype.block_size] = decode(chunk).reshape(-1)
    return out.reshape(tensor.shape)


def dequantize_rows(tensor: QuantTensor, rows: npt.ArrayLike) -> FloatArray:
    """Return `rows` [num_rows] of the first dimension, in that order: float32 [num_rows, *tensor.shape[1:]].

    Only the selected rows are read. Raises QuantError for a row outside the tensor, and as `dequantize` does.
    """
    return dequantize(tensor.select_rows(rows))


def _decoder(qtype: QuantType) -> Callable[[ByteArray], npt.NDArray[Any]]:
    """Function from blocks [num_blocks, block_bytes] to their values in order, of any shape."""
    if qtype.name in _PLAIN:
        dtype = np.dtype(_PLAIN[qtype.name])
        return lambda blocks: blocks.view(dtype)
    if qtype.name in _OWN:
        return _OWN[qtype.name]
    return _gguf_decoder(qtype)


def _gguf_decoder(qtype: QuantType) -> Callable[[ByteArray], npt.NDArray[Any]]:
    """Decoder of the gguf package, which is imported only when needed."""
    from gguf import GGMLQuantizationType, quants

    try:
        ggml_type = GGMLQuantizationType[qtype.name]
        quants.dequantize(np.zeros((1, qtype.block_bytes), np.uint8), ggml_type)
    except (KeyError, NotImplementedError) as error:
        raise QuantError(f"the installed gguf package cannot dequantize type {qtype.name}") from error

    def decode(blocks: ByteArray) -> npt.NDArray[Any]:
        # One long row: the package works on 16 rows at a time, far too few when a row is a block.
        values: npt.NDArray[Any] = quants.dequantize(blocks.reshape(1, -1), ggml_type)
        return values

    return decode


def _scale(blocks: ByteArray, offset: int = 0) -> FloatArray:
    """The float16 at byte `offset` of each block: float32 [num_blocks, 1]."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2").astype(np.float32)


def _bits(packed: ByteArray, width: int) -> ByteArray:
    """Unpack values of `width` bits, lowest bits first: [num_blocks, num_bytes] to values."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)
    values = (packed[:, :, np.newaxis] >> shifts) & np.uint8((1 << width) - 1)
    return values.reshape(len(packed), -1)


def _bf16(blocks: ByteArray) -> FloatArray:
    """BF16: the upper half of a float32."""
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_1(blocks: ByteArray) -> FloatArray:
    """Q8_1: float16 scale, float16 sum (not needed here), 32 int8."""
    return _scale(blocks) * blocks[:, 4:].view(np.int8).astype(np.float32)


def _q8_k(blocks: ByteArray) -> FloatArray:
    """Q8_K: float32 scale, 256 int8, 16 int16 sums (not needed here)."""
    scale = np.ascontiguousarray(blocks[:, :4]).view("<f4")
    return scale * blocks[:, 4:260].view(np.int8).astype(np.float32)


def _q1_0(blocks: ByteArray) -> FloatArray:
    """Q1_0: float16 scale, 128 bits; a set bit is +scale, a clear one -scale."""
    return _scale(blocks) * (_bits(blocks[:, 2:], 1).astype(np.float32) * 2 - 1)


def _q2_0(blocks: ByteArray) -> FloatArray:
    """Q2_0: float16 scale, 64 values of 2 bits with an offset of 1: -1, 0, 1 or 2 times the scale."""
    return _scale(blocks) * (_bits(blocks[:, 2:], 2).astype(np.float32) - 1)


# Quantiles of the normal distribution, scaled to -1 .. 1 (QLoRA, arXiv 2305.14314, appendix E).
_NF4_VALUES = np.array(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ],
    np.float32,
)


def _nf4(blocks: ByteArray) -> FloatArray:
    """NF4: float32 absmax, 64 indices of 4 bits into a fixed table, high nibble first."""
    absmax = np.ascontiguousarray(blocks[:, :4]).view("<f4")
    indices = np.stack([blocks[:, 4:] >> 4, blocks[:, 4:] & 15], axis=-1).reshape(len(blocks), -1)
    values: FloatArray = absmax * _NF4_VALUES[indices]
    return values


_PLAIN = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}
_OWN: dict[str, Callable[[ByteArray], npt.NDArray[Any]]] = {
    "BF16": _bf16,
    "Q8_1": _q8_1,
    "Q8_K": _q8_k,
    "Q1_0": _q1_0,
    "Q2_0": _q2_0,
    "NF4": _nf4,
}
