"""exp and log built from IEEE 754 basic operations only, so that other code can repeat them bit for bit.

Library versions of these functions differ between machines and languages in the last bit, which would be
enough to flip a sampled token. Everything here is float64 additions, multiplications, divisions,
comparisons, rounding to the nearest integer (ties to even) and operations on the bit pattern, in exactly
the order that is written down.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]

# ln 2 in two parts; the high one has 21 trailing zero bits, so that k * LN2_HIGH is exact for |k| < 2^20.
_LN2_HIGH = float.fromhex("0x1.62e42feep-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
_SQRT2 = float.fromhex("0x1.6a09e667f3bcdp+0")

_MANTISSA = np.uint64((1 << 52) - 1)
_ONE_BITS = np.uint64(1023 << 52)
_EXPONENT_SHIFT = np.uint64(52)

_LOG_COEFFICIENTS = tuple(2.0 / n for n in range(21, 1, -2))  # of z^10 .. z^1 in atanh's series, z = s^2
_EXP_COEFFICIENTS = tuple(1.0 / math.factorial(n) for n in range(13, -1, -1))
_BLOCK = 8192
_EXP_MIN = -708.0  # below, the result is taken as 0: exp(-708) = 3.3e-308 is the end of the normal range


def log(x: Float64Array) -> Float64Array:
    """Natural logarithm of positive, normal, finite float64 values; error below 1 unit in the last place.

    x = 2^k (1 + f) with 1 + f in (sqrt(1/2), sqrt(2)], s = f / (2 + f), log(1 + f) = 2 atanh(s), arranged
    as in fdlibm's e_log.c so that little is lost: f - (f^2/2 - s (f^2/2 + R(s^2))).
    """
    return _in_blocks(_log, x)


def exp(x: Float64Array) -> Float64Array:
    """Exponential of float64 values up to 700; 0 below -708, minus infinity included. Error below 2 ulp.

    x = k ln 2 + r with |r| <= ln(2)/2; the Taylor polynomial of degree 13 of r, times 2^k through the
    exponent bits.
    """
    return _in_blocks(_exp, x)


def _in_blocks(function: Callable[[Float64Array], Float64Array], x: Float64Array) -> Float64Array:
    """Apply an elementwise function piece by piece, so that its intermediate results stay in the cache."""
    if len(x) <= _BLOCK:
        return function(x)
    out = np.empty_like(x)
    for start in range(0, len(x), _BLOCK):
        out[start : start + _BLOCK] = function(x[start : start + _BLOCK])
    return out


def _log(x: Float64Array) -> Float64Array:
    bits = x.view(np.uint64)
    k = (bits >> _EXPONENT_SHIFT).astype(np.float64) - 1023.0
    m = ((bits & _MANTISSA) | _ONE_BITS).view(np.float64)
    upper = m > _SQRT2
    m = np.where(upper, m * 0.5, m)
    k = np.where(upper, k + 1.0, k)
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    r = np.full_like(z, _LOG_COEFFICIENTS[0])
    for coefficient in _LOG_COEFFICIENTS[1:]:
        r *= z
        r += coefficient
    r *= z
    half_square = 0.5 * f * f
    return k * _LN2_HIGH - ((half_square - (s * (half_square + r) + k * _LN2_LOW)) - f)


def _exp(x: Float64Array) -> Float64Array:
    inside = np.maximum(x, _EXP_MIN)
    k = np.rint(inside * _LOG2_E)
    r = (inside - k * _LN2_HIGH) - k * _LN2_LOW
    p = np.full_like(r, _EXP_COEFFICIENTS[0])
    for coefficient in _EXP_COEFFICIENTS[1:]:
        p *= r
        p += coefficient
    scale = ((k + 1023.0).astype(np.uint64) << _EXPONENT_SHIFT).view(np.float64)
    return np.where(x < _EXP_MIN, 0.0, p * scale)
