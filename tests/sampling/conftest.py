"""Shared by the sampling tests."""

from collections.abc import Callable

import numpy as np
import pytest


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Pearson's statistic of `counts` [n] against `probabilities` [n]."""
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.fixture(scope="session")
def chi2() -> Callable[[np.ndarray, np.ndarray], float]:
    return chi_square
