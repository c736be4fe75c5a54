"""The keyed noise: pure, independent over its keys, and of the right distribution."""

import math

import numpy as np

from specdec_cli.sampling.noise import gumbel, uniform53

IDS = np.array([0, 1, 151_935])


def test_known_bit_patterns():
    """Values that another implementation of the same recipe must give."""
    assert [v.hex() for v in gumbel(42, 1000, IDS).tolist()] == [
        "0x1.8bf4cd3b5ed96p-1",
        "0x1.cbc30e581b496p-1",
        "0x1.2c063af89d6aap-1",
    ]
    assert [v.hex() for v in uniform53(2**64 - 1, 0, IDS, stream=3).tolist()] == [
        "0x1.38047aee50004p-3",
        "0x1.74d2cc3a503d7p-1",
        "0x1.16a451ee2c5acp-3",
    ]


def test_is_a_function_of_seed_position_and_token_only():
    everything = gumbel(7, 123, np.arange(10_000))
    some = np.array([9_999, 3, 3, 500])
    assert np.array_equal(gumbel(7, 123, some), everything[some])
    assert np.array_equal(gumbel(7, 123, some.astype(np.int32)), everything[some])


def test_each_part_of_the_key_matters():
    base = uniform53(7, 123, np.arange(1000))
    for other in (uniform53(8, 123, np.arange(1000)), uniform53(7, 124, np.arange(1000))):
        assert not np.any(base == other)
    assert not np.any(base == uniform53(7, 123, np.arange(1000), stream=1))
    assert not np.any(base[:-1] == base[1:])


def test_uniforms_are_odd_multiples_of_the_53_bit_grid_inside_the_open_interval():
    u = uniform53(1, 1, np.arange(1_000_000))
    assert 0 < u.min() < 1e-5
    assert 1 - 1e-5 < u.max() < 1
    grid = u * 2.0**53
    assert np.array_equal(grid, np.rint(grid))
    assert np.all(grid % 2 == 1)


def test_uniforms_fill_the_interval_evenly(chi2):
    for seed, position in ((0, 0), (0, 1), (1, 0), (12345, 678)):
        u = uniform53(seed, position, np.arange(200_000))
        counts = np.histogram(u, bins=100, range=(0, 1))[0]
        assert chi2(counts, np.full(100, 0.01)) < 149  # 99.9 % quantile at 99 degrees of freedom


def test_positions_and_seeds_are_independent(chi2):
    """Pairs of neighbouring positions, and of seeds, of one token fill the unit square evenly."""
    token = np.array([17])
    by_position = np.array([uniform53(3, t, token)[0] for t in range(20_000)])
    by_seed = np.array([uniform53(s, 3, token)[0] for s in range(20_000)])
    for series in (by_position, by_seed):
        counts = np.histogram2d(series[:-1], series[1:], bins=8, range=[[0, 1], [0, 1]])[0].ravel()
        assert chi2(counts, np.full(64, 1 / 64)) < 104  # 99.9 % quantile at 63


def test_gumbel_has_its_mean_and_variance():
    g = gumbel(5, 9, np.arange(400_000))
    assert abs(g.mean() - 0.5772156649) < 4 * math.sqrt(math.pi**2 / 6 / len(g))
    assert abs(g.var() - math.pi**2 / 6) < 0.03


def test_c1_gumbel_max_draws_from_the_softmax(chi2):
    """200k draws over three tokens: argmax of log p + noise has the distribution p."""
    p = np.array([0.5, 0.3, 0.2])
    noise = gumbel(11, 0, np.arange(600_000)).reshape(200_000, 3)
    counts = np.bincount((np.log(p) + noise).argmax(axis=1), minlength=3)
    assert chi2(counts, p) < 13.8  # 99.9 % quantile at 2 degrees of freedom
