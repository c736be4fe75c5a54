"""The attention kernels against float64, and bit equality of queries computed together and apart."""

import numpy as np
import pytest

from quant import _native

ISAS = _native.available_isas()
TOLERANCE = {"f32": 5e-6, "f16": 2e-3, "q8_0": 4e-2}


def reference(q, k, v, first, last, softcap):
    """Softmax attention in float64, one query at a time."""
    out = np.empty(q.shape)
    for i in range(len(q)):
        seen = slice(first[i], last[i] + 1)
        scores = k[seen].astype(np.float64) @ q[i].astype(np.float64)
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        weights = np.exp(scores - scores.max())
        out[i] = weights @ v[seen].astype(np.float64) / weights.sum()
    return out


def case(n, tokens, head_dim, *, seed=0, window=None):
    """Random q [n, head_dim], k, v [tokens, head_dim] and the visible ranges of n last positions."""
    rng = np.random.default_rng([seed, n, tokens, head_dim])
    q = (rng.standard_normal((n, head_dim)) * 2 / head_dim**0.5).astype(np.float32)
    k, v = rng.standard_normal((2, tokens, head_dim)).astype(np.float32)
    last = np.sort(rng.integers(max(0, tokens - 9), tokens, n)).astype(np.int64)
    first = np.zeros(n, np.int64) if window is None else np.maximum(0, last - window + 1)
    return q, k, v, first, last


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_type", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("tokens", [1, 17, 64, 65, 300, 600])
def test_against_float64(isa, kv_type, head_dim, tokens):
    arguments = case(7, tokens, head_dim)
    actual = _native.attention(*arguments, k_type=kv_type, v_type=kv_type, isa=isa)
    assert np.abs(actual - reference(*arguments, 0.0)).max() < TOLERANCE[kv_type]


@pytest.mark.parametrize("softcap", [0.0, 1.5, 50.0])
@pytest.mark.parametrize("window", [1, 5, 64, 100, 257])
def test_window_and_soft_cap(window, softcap):
    arguments = case(9, 420, 64, window=window)
    actual = _native.attention(*arguments, softcap=softcap, k_type="f32", v_type="f32")
    assert np.abs(actual - reference(*arguments, softcap)).max() < TOLERANCE["f32"]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_type", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("window", [None, 40])
def test_a_query_does_not_depend_on_the_others(isa, kv_type, window):
    for n in (2, 3, 5, 6, 7, 8, 13, 30):
        q, k, v, first, last = case(n, 330, 64, window=window)
        types = {"k_type": kv_type, "v_type": kv_type, "isa": isa}
        together = _native.attention(q, k, v, first, last, **types)
        for i in range(n):
            one = slice(i, i + 1)
            alone = _native.attention(q[one], k, v, first[one], last[one], **types)
            assert np.array_equal(alone.view(np.int32), together[one].view(np.int32))


@pytest.mark.parametrize("kv_type", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("isa", ISAS[:-1])
def test_instruction_sets_agree(isa, kv_type):
    arguments = case(8, 200, 96, window=150)
    types = {"softcap": 30.0, "k_type": kv_type, "v_type": kv_type}
    results = [_native.attention(*arguments, isa=name, **types) for name in (isa, ISAS[-1])]
    assert np.array_equal(results[0].view(np.int32), results[1].view(np.int32))


@pytest.mark.parametrize("isa", ISAS)
def test_keys_and_values_that_a_query_does_not_see_cannot_matter(isa):
    q, k, v, first, last = case(6, 100, 64)
    last[:] = [10, 20, 64, 64, 70, 90]
    expected = _native.attention(q, k, v, first, last, isa=isa)
    k[91:], v[91:] = np.nan, np.nan
    actual = _native.attention(q, k, v, first, last, isa=isa)
    assert np.array_equal(actual.view(np.int32), expected.view(np.int32))


def test_keys_and_values_may_have_different_types():
    arguments = case(4, 130, 64)
    actual = _native.attention(*arguments, k_type="q8_0", v_type="f16")
    assert np.abs(actual - reference(*arguments, 0.0)).max() < TOLERANCE["q8_0"]


def test_large_values_saturate_in_f16():
    q, k, v, first, last = case(1, 1, 32)
    v[0, :2] = 1e6, -1e6
    out = _native.attention(q, k, v, first, last)
    assert out[0, :2].tolist() == [65504.0, -65504.0]


def test_huge_scores_do_not_overflow():
    q, k, v, first, last = case(3, 90, 64)
    arguments = (q * 1e4, k, v, first, last)
    actual = _native.attention(*arguments, k_type="f32", v_type="f32")
    assert np.abs(actual - reference(*arguments, 0.0)).max() < 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first": [5], "last": [3]}, "visible range"),
        ({"last": [100]}, "visible range"),
        ({"first": [-1]}, "visible range"),
        ({"k": np.zeros((20, 64), np.float32)}, "shapes differ"),
        ({"v": np.zeros((21, 32), np.float32)}, "shapes differ"),
        ({"q": np.zeros((1, 33), np.float32)}, "head dimension 33 is not supported"),
        ({"k_type": "f64"}, "unknown KV type 'f64'"),
        ({"isa": "mmx"}, "unknown ISA 'mmx'"),
    ],
)
def test_wrong_arguments_are_errors(change, message):
    q, k, v, first, last = case(1, 20, 32)
    arguments = {"q": q, "k": k, "v": v, "first": first, "last": last} | {
        name: np.asarray(value, np.int64) if isinstance(value, list) else value
        for name, value in change.items()
    }
    with pytest.raises(ValueError, match=message):
        _native.attention(**arguments)
