"""Decode packed blocks with one numpy lane per block: the fast way from one packed type to another.

A chunk of a tensor becomes float32 [32, groups, units]: element e of 32-value group g of unit u is value
u * 32 * groups + 32 * g + e of the chunk. A unit is a block, a superblock of 256 (8 groups), or as many
blocks as fill one. Units are innermost, so every step is a long contiguous loop whatever a block looks like
inside. Values are those of reference.py, bit for bit. Block layouts: ggml-common.h of ggml.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .reference import dequantize
from .tensor import QuantTensor
from .types import QuantType

FloatArray = npt.NDArray[np.float32]
ByteArray = npt.NDArray[np.uint8]

GROUP = 32  # values


def decode_lanes(qtype: QuantType, blocks: ByteArray, unit: int) -> FloatArray:
    """Values of `blocks` [num_blocks, block_bytes], `unit` (32 or 256) values to a unit.

    The number of values must be a multiple of `unit`. Returns float32 [32, unit / 32, units].
    """
    groups = unit // GROUP
    decode = _DECODERS.get(qtype.name)
    if decode is None:
        shape = (len(blocks) * qtype.block_size,)
        values = dequantize(QuantTensor("chunk", qtype, shape, blocks.reshape(-1)))
        return np.ascontiguousarray(values.reshape(-1, groups, GROUP).transpose(2, 1, 0))
    per_unit = unit // qtype.block_size
    # Byte b of block g of unit u is at [b, g, u].
    lanes = np.ascontiguousarray(blocks.reshape(-1, per_unit, qtype.block_bytes).transpose(2, 1, 0))
    return decode(lanes if qtype.block_size == GROUP else lanes[:, 0])


def _half(lanes: ByteArray, offset: int) -> FloatArray:
    """The float16 at byte `offset`: float32 [...]."""
    bits = lanes[offset + 1].astype(np.uint16) << 8 | lanes[offset]
    values: FloatArray = bits.view(np.float16).astype(np.float32)
    return values


def _nibbles(packed: ByteArray) -> ByteArray:
    """[16, groups, units] to [32, groups, units]: low nibbles, then high ones."""
    values = np.empty((GROUP, *packed.shape[1:]), np.uint8)
    np.bitwise_and(packed, 15, out=values[:16])
    np.right_shift(packed, 4, out=values[16:])
    return values


def _fifth_bits(packed: ByteArray) -> ByteArray:
    """[4, groups, units], bit i of 32 for element i, to 0 or 16 [32, groups, units]."""
    bits = np.empty((4, 8, *packed.shape[1:]), np.uint8)
    for i in range(8):
        bits[:, i] = packed << 4 - i if i < 4 else packed >> i - 4
    bits &= np.uint8(16)
    return bits.reshape(GROUP, *packed.shape[1:])


def _scaled(values: npt.NDArray[np.integer], scale: FloatArray) -> FloatArray:
    out = values.astype(np.float32)
    out *= scale
    return out


def _q4_0(b: ByteArray) -> FloatArray:
    return _scaled(_nibbles(b[2:]).view(np.int8) - np.int8(8), _half(b, 0))


def _q4_1(b: ByteArray) -> FloatArray:
    out = _scaled(_nibbles(b[4:]), _half(b, 0))
    out += _half(b, 2)
    return out


def _q5_0(b: ByteArray) -> FloatArray:
    q = _nibbles(b[6:])
    q |= _fifth_bits(b[2:6])
    return _scaled(q.view(np.int8) - np.int8(16), _half(b, 0))


def _q5_1(b: ByteArray) -> FloatArray:
    q = _nibbles(b[8:])
    q |= _fifth_bits(b[4:8])
    out = _scaled(q, _half(b, 0))
    out += _half(b, 2)
    return out


def _q8_0(b: ByteArray) -> FloatArray:
    return _scaled(b[2:].view(np.int8), _half(b, 0))


def _k_scales(packed: ByteArray) -> tuple[ByteArray, ByteArray]:
    """The 12 bytes of Q4_K and Q5_K [12, units]: scales and minima, 6 bits each, [8, units]."""
    low, middle, high = packed[:4], packed[4:8], packed[8:]
    scales = np.concatenate([low & 63, high & 15 | (low >> 6) << 4])
    minima = np.concatenate([middle & 63, high >> 4 | (middle >> 6) << 4])
    return scales, minima


def _k_nibbles(packed: ByteArray) -> ByteArray:
    """[128, units] to [32, 8, units]: 32 bytes hold a group in low nibbles and the next in high ones."""
    pairs = packed.reshape(4, GROUP, -1).transpose(1, 0, 2)
    values = np.empty((GROUP, 8, packed.shape[1]), np.uint8)
    np.bitwise_and(pairs, 15, out=values[:, 0::2])
    np.right_shift(pairs, 4, out=values[:, 1::2])
    return values


def _k_affine(b: ByteArray, q: ByteArray) -> FloatArray:
    scales, minima = _k_scales(b[4:16])
    out = _scaled(q, _half(b, 0) * scales.astype(np.float32))
    out -= _half(b, 2) * minima.astype(np.float32)
    return out


def _q4_k(b: ByteArray) -> FloatArray:
    return _k_affine(b, _k_nibbles(b[16:]))


def _q5_k(b: ByteArray) -> FloatArray:
    q = _k_nibbles(b[48:])
    for group in range(8):
        q[:, group] |= (b[16:48] >> group & 1) << 4
    return _k_affine(b, q)


def _q6_k(b: ByteArray) -> FloatArray:
    q = np.empty((GROUP, 8, b.shape[1]), np.uint8)
    for half in range(2):
        low, upper = b[64 * half :][:64], b[128 + 32 * half :][:32]
        for part in range(4):
            packed = low[32 * (part % 2) :][:32]
            nibbles = packed & np.uint8(15) if part < 2 else packed >> np.uint8(4)
            q[:, 4 * half + part] = nibbles | (upper >> 2 * part & 3) << 4
    scales = _scaled(b[192:208].view(np.int8).reshape(8, 2, -1), _half(b, 208)).transpose(1, 0, 2)
    halves = (q.view(np.int8) - np.int8(32)).reshape(2, 16, 8, -1)  # a scale belongs to 16 values
    return _scaled(halves, scales[:, np.newaxis]).reshape(GROUP, 8, -1)


_DECODERS: dict[str, Callable[[ByteArray], FloatArray]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
