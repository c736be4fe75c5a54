"""exp and log of basic operations: accuracy against the standard library, and the edges that sampling
relies on.
"""

import math

import numpy as np
import pytest

from specdec_cli.sampling.elementary import exp, log


def ulps(values: np.ndarray, expected: list[float]) -> float:
    """Largest error in units in the last place of the expected value."""
    return max(abs(v - e) / math.ulp(e) for v, e in zip(values.tolist(), expected, strict=True))


@pytest.mark.parametrize(
    "x",
    [
        np.random.default_rng(0).random(20_000),
        1.0 - np.random.default_rng(1).random(20_000) * 1e-9,
        np.exp(np.random.default_rng(2).normal(size=20_000) * 50),
        np.array([2.0**-53, 1 - 2.0**-53, 1.0, 2.0, 0.5, math.sqrt(2), math.sqrt(0.5), 1e300, 1e-300]),
    ],
    ids=["unit", "near-one", "wide", "edges"],
)
def test_log_is_within_one_unit_in_the_last_place(x):
    # The library's own result is up to half a unit off.
    assert ulps(log(x), [math.log(v) for v in x.tolist()]) <= 1.5


def test_exp_is_within_two_units_in_the_last_place():
    x = np.concatenate(
        [-np.random.default_rng(3).random(20_000) * 700, np.linspace(-1, 1, 1001), [0.0, 700.0]]
    )
    assert ulps(exp(x), [math.exp(v) for v in x.tolist()]) <= 2.5


def test_exp_of_what_is_excluded_is_zero():
    assert exp(np.array([-np.inf, -1e6, -708.5, 0.0])).tolist() == [0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("function", [exp, log])
def test_results_do_not_depend_on_the_length_of_the_array(function):
    x = np.random.default_rng(4).random(20_001) + 1e-9
    whole = function(x)
    single = np.array([function(x[i : i + 1])[0] for i in range(0, len(x), 97)])
    assert np.array_equal(whole[::97], single)
    assert np.array_equal(whole[5:9000], function(x[5:9000]))


def test_known_bit_patterns():
    """Values that another implementation of the same recipe must give."""
    assert [v.hex() for v in log(np.array([0.3, 0.7, 1e-9])).tolist()] == EXPECTED_LOG
    assert [v.hex() for v in exp(np.array([-0.3, -7.7, -99.5])).tolist()] == EXPECTED_EXP


EXPECTED_LOG = ["-0x1.34378fcbda721p+0", "-0x1.6d3c324e13f50p-2", "-0x1.4b927f32bffb8p+4"]
EXPECTED_EXP = ["0x1.7b4c869c37c05p-1", "0x1.dad2df0f5035dp-12", "0x1.5e274789e0327p-144"]
