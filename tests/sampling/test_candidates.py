"""Narrowing: the largest logits, ties by lowest id, in every state that candidates can be in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.sampling.candidates import Candidates, LogitsError, top_indices


def obvious_top(values: np.ndarray, count: int) -> list[int]:
    """Sort everything: by value descending, then by index."""
    order = sorted((i for i in range(len(values)) if values[i] > -np.inf), key=lambda i: (-values[i], i))
    return order[:count]


@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([1, 2, 3, 50, 700, 5000, 20_001]),
    count=st.integers(1, 300),
    levels=st.sampled_from([1, 2, 5, 1000]),
    masked=st.sampled_from([0.0, 0.5, 0.999]),
)
def test_top_indices_equal_a_full_sort(seed, size, count, levels, masked):
    """Few levels make many ties, also at the border: the lowest ids survive."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, levels, size).astype(np.float32)
    values[rng.random(size) < masked] = -np.inf
    assert top_indices(values, count).tolist() == obvious_top(values, count)


def test_ties_at_the_border_keep_the_lowest_ids():
    values = np.zeros(152_000, np.float32)
    values[[7, 100_000]] = 1.0
    assert top_indices(values, 5).tolist() == [7, 100_000, 0, 1, 2]


def test_narrowing_keeps_ids_with_their_logits():
    logits = np.array([1, 9, 3, 7, 5], np.float32)
    candidates = Candidates(logits, 0, np.array([10, 20, 30, 40, 50]))
    candidates.keep_top(3)
    assert candidates.ids.tolist() == [20, 40, 50]
    assert candidates.logits.tolist() == [9, 7, 5]
    candidates.keep_top(2)
    assert candidates.ids.tolist() == [20, 40]


def test_changing_the_logits_of_ordered_candidates_puts_ids_in_order():
    candidates = Candidates(np.array([1, 9, 3, 7], np.float32), 0)
    candidates.keep_top(3)
    changed = candidates.writable()
    changed[0] = -5
    candidates.set_logits(changed, ordered=False)
    assert not candidates.ordered
    assert candidates.ids.tolist() == [1, 2, 3]
    assert candidates.logits.tolist() == [-5, 3, 7]


def test_the_logits_of_the_model_are_never_written_to():
    logits = np.arange(5, dtype=np.float32)
    logits.setflags(write=False)
    candidates = Candidates(logits, 0)
    candidates.writable()[:] = 0
    assert logits.tolist() == [0, 1, 2, 3, 4]
    assert candidates.logits.dtype == np.float64


@pytest.mark.parametrize("narrowed", [False, True])
def test_locate_finds_what_is_there(narrowed):
    candidates = Candidates(np.array([1, 9, 3, 7], np.float32), 0)
    if narrowed:
        candidates.keep_top(3)  # 1, 3, 2
    where, which = candidates.locate(np.array([2, 0, 1, 99]))
    found = dict(zip(which.tolist(), candidates.ids[where].tolist(), strict=True))
    assert found == ({0: 2, 2: 1} if narrowed else {0: 2, 1: 0, 2: 1})


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        ([1, np.nan, 2], "position 7 contain nan"),
        ([1, np.inf, 2], "position 7 contain inf"),
        ([-np.inf, -np.inf], "no token is left"),
    ],
)
def test_best_refuses_what_is_no_number(logits, message):
    with pytest.raises(LogitsError, match=message):
        Candidates(np.array(logits, np.float32), 7).best()
