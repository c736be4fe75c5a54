"""Row operations, argmax and top-k of the native engine."""

import numpy as np
import pytest

from quant import _native

ISAS = _native.available_isas()
SIZES = (1, 3, 16, 40, 64, 100, 576, 1023)


def vectors(n, seed=0):
    return np.random.default_rng([seed, n]).standard_normal((2, n)).astype(np.float32) * 3


def sigmoid(x):
    return 1 / (1 + np.exp(-x.astype(np.float64)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n", SIZES)
def test_row_operations_against_float64(isa, n):
    a, b = vectors(n)
    wide = a.astype(np.float64)
    norm = wide / np.sqrt((wide**2).mean() + 1e-5) * b
    gelu = 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))) * b
    cases = {
        "rms_norm": (norm, 1e-5),
        "scale": (wide * np.float32(0.37), 0.37),
        "softcap": (2.5 * np.tanh(wide / 2.5), 2.5),
        "add": (wide + b, 0.0),
        "silu": (wide * sigmoid(a) * b, 0.0),
        "gelu_tanh": (gelu, 0.0),
    }
    for name, (expected, parameter) in cases.items():
        actual = _native.row_op(name, a, b, parameter, isa)
        assert np.abs(actual - expected).max() < 2e-6 * max(1.0, np.abs(expected).max()), name


@pytest.mark.parametrize("isa", ISAS)
def test_activations_of_extreme_values(isa):
    a = np.asarray([-1e30, -200, -88, -1e-30, -0.0, 0.0, 1e-30, 88, 200, 1e30], np.float32)
    ones = np.ones_like(a)
    for name in ("silu", "gelu_tanh"):
        actual = _native.row_op(name, a, ones, 0.0, isa)
        assert np.allclose(actual, np.maximum(a, 0), atol=1e-8)
    assert np.array_equal(_native.row_op("softcap", a, ones, 30.0, isa)[[0, -1]], [-30, 30])
    assert np.isnan(_native.row_op("silu", np.full(3, np.nan, np.float32), ones[:3], 0.0, isa)).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n", [2, 10, 64, 128])
def test_rope(isa, n):
    x, angles = vectors(n)[0], vectors(n)[1][: n // 2]
    table = np.concatenate([np.cos(angles), np.sin(angles)])
    first, second = x[: n // 2].astype(np.float64), x[n // 2 :]
    expected = np.concatenate(
        [
            first * table[: n // 2] - second * table[n // 2 :],
            second * table[: n // 2] + first * table[n // 2 :],
        ]
    )
    assert np.allclose(_native.row_op("rope", x, table, 0.0, isa), expected, atol=2e-6)


@pytest.mark.parametrize("name", ["rms_norm", "scale", "softcap", "add", "silu", "gelu_tanh", "rope"])
@pytest.mark.parametrize("isa", ISAS[:-1])
def test_instruction_sets_agree(isa, name):
    for n in (2, 48, 66, 576):
        a, b = vectors(n)
        results = [_native.row_op(name, a, b, 1.5, which) for which in (isa, ISAS[-1])]
        assert np.array_equal(results[0].view(np.int32), results[1].view(np.int32))


def test_rms_norm_over_groups():
    a, b = vectors(96)
    together = _native.row_op("rms_norm", a, b[:24], 1e-6)
    for start in range(0, 96, 24):
        alone = _native.row_op("rms_norm", a[start : start + 24], b[:24], 1e-6)
        assert np.array_equal(together[start : start + 24], alone)


@pytest.mark.parametrize("n", [1, 5, 63, 64, 65, 1000, 49152])
@pytest.mark.parametrize("distinct", [3, 50, 10**6])
def test_top_k_with_ties(n, distinct):
    rng = np.random.default_rng([n, distinct])
    logits = rng.integers(0, distinct, n).astype(np.float32)
    for k in {1, min(n, 2), min(n, 40), min(n, 300), min(n, 1000)}:
        ids, values = _native.top_k(logits, k)
        expected = np.lexsort((np.arange(n), -logits))[:k]
        assert np.array_equal(ids, expected)
        assert np.array_equal(values, logits[expected])


def test_top_k_with_infinities():
    logits = np.asarray([-np.inf, 1, np.inf, -np.inf], np.float32)
    assert _native.top_k(logits, 4)[0].tolist() == [2, 1, 0, 3]


@pytest.mark.parametrize("k", [-1, 0, 4])
def test_top_k_refuses_impossible_k(k):
    with pytest.raises(ValueError, match="k must be between 1 and"):
        _native.top_k(np.zeros(3, np.float32), k)


def test_top_k_refuses_nan():
    with pytest.raises(ValueError, match="not a number"):
        _native.top_k(np.asarray([1, np.nan, 2], np.float32), 1)


def test_wrong_sizes_are_errors():
    a = np.zeros(6, np.float32)
    for name in ("rms_norm", "add", "silu", "rope"):
        with pytest.raises(ValueError, match="row_op: sizes"):
            _native.row_op(name, a, a[:4])
    with pytest.raises(ValueError, match="unknown activation"):
        _native.row_op("relu", a, a)
