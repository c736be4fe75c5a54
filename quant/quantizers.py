"""Quantizers: float32 values, one numpy lane per block (see lanes.py), to packed blocks.

The formats are ggml's (ggml-common.h); how scales are found is our own: a few step sizes around the one that
just spans the block are tried, each gets the scale (and minimum) that fits its rounded values best in the
least squares sense, and the best of them is kept.
"""

from collections.abc import Callable

import numpy as np

from .errors import QuantError
from .lanes import GROUP, ByteArray, FloatArray

_TINY = np.float32(1e-30)  # blocks of smaller values are zero in every format, and 1 / x would overflow

# Where the largest value of a block may land, in steps: beyond the last step it is clipped, the others gain.
_SIGNED_SPANS = {8: (-8.0, -8.7, 7.4), 16: (-16.0, -16.7, 15.3), 32: (-32.0, -32.8, 31.2)}
_AFFINE_SPANS = (15.0, 14.1, 13.2)


def encoder(type_name: str) -> Callable[[FloatArray], ByteArray] | None:
    """Function from lanes [32, groups, units] to packed bytes [units, bytes of a unit], or None.

    It raises QuantError for values that are not finite or too large for the format. Its numpy warnings are to
    be ignored.
    """
    return _ENCODERS.get(type_name)


ENCODABLE = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K")


def _reciprocal(values: FloatArray, numerator: float = 1.0) -> FloatArray:
    """`numerator` / values, 0 for values too small."""
    small = np.abs(values) < _TINY
    return np.where(small, np.float32(0), np.float32(numerator) / np.where(small, np.float32(1), values))


def _half_bytes(scale: FloatArray) -> ByteArray:
    """Scales [...] as float16: their two bytes [2, ...]."""
    half = scale.astype(np.float16)
    if not np.isfinite(half).all():
        raise QuantError("holds values that are not finite, or too large to be quantized")
    bits = half.view(np.uint16)
    return np.stack([bits.astype(np.uint8), (bits >> 8).astype(np.uint8)])


def _rounded_half(scale: FloatArray) -> FloatArray:
    rounded: FloatArray = scale.astype(np.float16).astype(np.float32)
    return rounded


def _divided(values: FloatArray, divisor: int) -> FloatArray:
    return np.divide(values, np.float32(divisor), dtype=np.float32)


def _dot(a: FloatArray, b: FloatArray) -> FloatArray:
    """Sum of a * b over the first axis."""
    product: FloatArray = np.einsum("e...,e...->...", a, b)
    return product


def _extreme(x: FloatArray) -> FloatArray:
    """Of the first axis, the value with the largest magnitude, sign included."""
    top: FloatArray = x.max(axis=0)
    bottom: FloatArray = x.min(axis=0)
    return np.where(top > -bottom, top, bottom)


def _fit_signed(x: FloatArray, limit: int) -> tuple[FloatArray, FloatArray]:
    """Scale [...] and steps [n, ...] from -limit to limit - 1: values x [n, ...] are about scale * steps."""
    extreme = _extreme(x)
    unit = _reciprocal(extreme)
    steps = np.empty_like(x)
    best_gain = np.full(unit.shape, np.float32(-1))
    best_inverse, best_scale = np.zeros_like(unit), np.zeros_like(unit)
    for span in _SIGNED_SPANS[limit]:
        inverse = unit * np.float32(span)
        _round_signed(x, inverse, limit, steps)
        fit = _dot(x, steps)
        scale = fit * _reciprocal(_dot(steps, steps))  # least squares
        gain = fit * scale  # what that takes off the sum of squares
        better = gain > best_gain
        np.copyto(best_gain, gain, where=better)
        np.copyto(best_inverse, inverse, where=better)
        np.copyto(best_scale, scale, where=better)
    _round_signed(x, best_inverse, limit, steps)
    return best_scale + 0 * extreme, steps  # not a number where a value is not finite


def _round_signed(x: FloatArray, inverse: FloatArray, limit: int, out: FloatArray) -> None:
    """Nearest steps of x / scale; the extreme never rounds to below -limit for the spans above."""
    np.multiply(x, inverse, out=out)
    np.rint(out, out=out)
    np.clip(out, -limit, limit - 1, out=out)


def _fit_affine(x: FloatArray, *, signed_minimum: bool) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Scale, minimum [...] and steps 0..15 [n, ...] for values x [n, ...] about scale * steps + minimum.

    Without `signed_minimum`, the minimum is at most 0.
    """
    low, high, total = x.min(axis=0), x.max(axis=0), x.sum(axis=0)
    if not signed_minimum:
        np.minimum(low, 0, out=low)
    unit = _reciprocal(high - low)
    steps = np.empty_like(x)
    best: tuple[FloatArray, FloatArray, FloatArray] | None = None
    for span in _AFFINE_SPANS:
        _round_affine(x, low, unit * np.float32(span), steps)
        scale, minimum, gain = _solve(x, steps, total, signed_minimum=signed_minimum)
        if best is None:
            best = scale, minimum, gain
        else:
            better = gain > best[2]
            new = (scale, minimum, gain)
            best = tuple(np.where(better, a, b) for a, b in zip(new, best, strict=True))  # type: ignore[assignment]
    assert best is not None
    scale, minimum, _ = best
    _round_affine(x, minimum, _reciprocal(scale), steps)
    return scale, minimum, steps


def _round_affine(x: FloatArray, minimum: FloatArray, inverse: FloatArray, out: FloatArray) -> None:
    np.subtract(x, minimum, out=out)
    out *= inverse
    np.rint(out, out=out)
    np.clip(out, 0, 15, out=out)


def _solve(
    x: FloatArray, steps: FloatArray, total: FloatArray, *, signed_minimum: bool
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Least squares for x = scale * steps + minimum: both, and what they take off the sum of squares."""
    n = np.float32(len(x))
    s, ss, xs = steps.sum(axis=0), _dot(steps, steps), _dot(x, steps)
    inverse = _reciprocal(n * ss - s * s)
    scale = (n * xs - total * s) * inverse
    minimum: FloatArray = (ss * total - s * xs) * inverse
    degenerate = inverse == 0 if signed_minimum else (inverse == 0) | (minimum > 0)
    scale = np.where(degenerate, xs * _reciprocal(ss), scale)
    minimum = np.where(degenerate, np.float32(0), minimum)
    minimum = np.where(ss == 0, _divided(total, len(x)), minimum)  # all values are the same
    gain: FloatArray = scale * xs + minimum * total
    return scale, minimum, gain


def _packed_nibbles(steps: FloatArray, offset: int, out: ByteArray) -> ByteArray:
    """Write the low nibbles of steps + offset [32, ...] to `out` [16, ...], first half to the low ones."""
    values = (steps + np.float32(offset)).astype(np.uint8)
    np.left_shift(values[16:], 4, out=out)
    out |= values[:16] & 15
    return values


def _rows(packed: ByteArray) -> ByteArray:
    """[bytes, groups, units] to [units, groups * bytes]."""
    return np.ascontiguousarray(packed.transpose(2, 1, 0)).reshape(packed.shape[2], -1)


def _q4_0(x: FloatArray) -> ByteArray:
    scale, steps = _fit_signed(x, 8)
    out = np.empty((18, *x.shape[1:]), np.uint8)
    out[:2] = _half_bytes(scale)
    _packed_nibbles(steps, 8, out[2:])
    return _rows(out)


def _q4_1(x: FloatArray) -> ByteArray:
    scale, minimum, steps = _fit_affine(x, signed_minimum=True)
    out = np.empty((20, *x.shape[1:]), np.uint8)
    out[:2], out[2:4] = _half_bytes(scale), _half_bytes(minimum)
    _packed_nibbles(steps, 0, out[4:])
    return _rows(out)


def _q5_0(x: FloatArray) -> ByteArray:
    scale, steps = _fit_signed(x, 16)
    out = np.empty((22, *x.shape[1:]), np.uint8)
    out[:2] = _half_bytes(scale)
    values = _packed_nibbles(steps, 16, out[6:])
    fifth = (values >> 4).reshape(4, 8, *x.shape[1:])
    out[2:6] = np.packbits(fifth, axis=1, bitorder="little")[:, 0]
    return _rows(out)


def _q8_0(x: FloatArray) -> ByteArray:
    scale = _divided(np.abs(_extreme(x)), 127)
    out = np.empty((34, *x.shape[1:]), np.uint8)
    out[:2] = _half_bytes(scale)
    steps = x * _reciprocal(scale)
    out[2:] = np.rint(steps, out=steps).astype(np.int8).view(np.uint8)
    return _rows(out)


def _q4_k(x: FloatArray) -> ByteArray:
    scale, minimum, steps = _fit_affine(x, signed_minimum=False)  # [8, units], [8, units], [32, 8, units]
    d, d_min = (_rounded_half(_divided(values.max(axis=0), 63)) for values in (scale, -minimum))
    scales = np.clip(np.rint(scale * _reciprocal(d)), 0, 63)
    minima = np.clip(np.rint(-minimum * _reciprocal(d_min)), 0, 63)
    _round_affine(x, -d_min * minima, _reciprocal(d * scales), steps)
    out = np.empty((144, x.shape[2]), np.uint8)
    out[0:2], out[2:4] = _half_bytes(d), _half_bytes(d_min)
    s, m = scales.astype(np.uint8), minima.astype(np.uint8)
    out[4:8] = s[:4] | (s[4:] >> 4) << 6
    out[8:12] = m[:4] | (m[4:] >> 4) << 6
    out[12:16] = s[4:] & 15 | (m[4:] & 15) << 4
    values = steps.astype(np.uint8)
    out[16:] = (values[:, 0::2] | values[:, 1::2] << 4).transpose(1, 0, 2).reshape(128, -1)
    return np.ascontiguousarray(out.T)


def _q6_k(x: FloatArray) -> ByteArray:
    halves = x.reshape(2, 16, 8, -1).transpose(1, 0, 2, 3)  # a scale for 16 values
    scale, _ = _fit_signed(halves, 32)  # [2, 8, units]
    d = _rounded_half(_divided(np.abs(scale).max(axis=(0, 1)), 127))
    scales = np.clip(np.rint(scale * _reciprocal(d)), -128, 127)
    steps = np.empty_like(halves)
    _round_signed(halves, _reciprocal(d * scales), 32, steps)
    values = (steps + np.float32(32)).astype(np.uint8).transpose(1, 0, 2, 3).reshape(GROUP, 8, -1)
    out = np.empty((210, x.shape[2]), np.uint8)
    for half in range(2):
        parts = [values[:, 4 * half + part] for part in range(4)]
        out[64 * half :][:32] = parts[0] & 15 | (parts[2] & 15) << 4
        out[64 * half + 32 :][:32] = parts[1] & 15 | (parts[3] & 15) << 4
        out[128 + 32 * half :][:32] = sum((part >> 4) << 2 * i for i, part in enumerate(parts))
    out[192:208] = scales.astype(np.int8).view(np.uint8).transpose(1, 0, 2).reshape(16, -1)
    out[208:210] = _half_bytes(d)
    return np.ascontiguousarray(out.T)


_ENCODERS: dict[str, Callable[[FloatArray], ByteArray]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}
