"""Noise of the sampler: a pure function of (seed, position, token id), so that every path draws the same.

Gumbel-max (Gumbel 1954; Maddison et al., arXiv 1411.0030): argmax of logits plus independent standard
Gumbel noise is a draw from softmax(logits). The noise comes from a counter-based generator, never from a
stream with a state: it does not matter which tokens are evaluated, in which order, how often, or by whom.
All arithmetic is on 64-bit integers modulo 2^64 and IEEE basic operations (see elementary.py).
"""

import numpy as np
import numpy.typing as npt

from .elementary import Float64Array, log

TOKEN_STREAM = 0  # the choice of a token; processors with randomness of their own take another number

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, the increment of splitmix64
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def uniform53(
    seed: int, position: int, token_ids: npt.NDArray[np.integer], *, stream: int = TOKEN_STREAM
) -> Float64Array:
    """Uniform float64 values in the open interval (0, 1), odd multiples of 2^-53; shape of `token_ids`.

    `position` is the absolute position of the token that is being chosen.
    """
    bits = _mix_array(
        (token_ids.astype(np.uint64) * np.uint64(_GOLDEN)) ^ np.uint64(_key(seed, position, stream))
    )
    # 52 random bits and a final 1: exact in float64, never 0 and never 1.
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def gumbel(
    seed: int, position: int, token_ids: npt.NDArray[np.integer], *, stream: int = TOKEN_STREAM
) -> Float64Array:
    """Standard Gumbel noise -log(-log(u)) of the given tokens at `position`; between -3.7 and 36.8."""
    return -log(-log(uniform53(seed, position, token_ids, stream=stream)))


def _key(seed: int, position: int, stream: int) -> int:
    key = _mix(seed + _GOLDEN)
    key = _mix((key ^ position) + _GOLDEN)
    return _mix((key ^ stream) + _GOLDEN)


def _mix(x: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014), a bijection on 64 bits."""
    x &= _MASK
    x = ((x ^ (x >> 30)) * _MIX_1) & _MASK
    x = ((x ^ (x >> 27)) * _MIX_2) & _MASK
    return x ^ (x >> 31)


def _mix_array(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MIX_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MIX_2)
    return x ^ (x >> np.uint64(31))
