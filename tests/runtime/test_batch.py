"""Rows taken apart into paths."""

from dataclasses import replace

import numpy as np
import pytest

from specdec_cli.protocols import Rows, chain_rows
from specdec_cli.runtime.batch import RowPath, split_paths


def test_a_chain_is_one_path():
    assert split_paths(chain_rows(3, 10, [7, 8, 9], 1), lambda _: 10) == [RowPath(3, 10, (0, 1, 2), 0)]


def test_a_tree_has_a_path_per_leaf_and_every_row_is_answered_once(lm):
    #       0 - 1 - 4
    #         \ 2 - 5
    #       3
    rows = lm.tree(0, 5, [(1, -1), (2, 0), (3, 0), (4, -1), (5, 1), (6, 2)])
    paths = split_paths(rows, lambda _: 5)
    assert paths == [RowPath(0, 5, (3,), 0), RowPath(0, 5, (0, 1, 4), 0), RowPath(0, 5, (0, 2, 5), 1)]
    answered = [row for path in paths for row in path.rows[path.first :]]
    assert sorted(answered) == list(range(6))


def test_sequences_may_be_interleaved():
    rows = Rows(
        token_ids=np.array([1, 2, 3, 4], np.int32),
        positions=np.array([0, 8, 1, 9], np.int32),
        sequences=np.array([0, 1, 0, 1], np.int32),
        parents=np.array([-1, -1, 0, 1], np.int32),
        outputs=np.array([3], np.int32),
    )
    assert split_paths(rows, {0: 0, 1: 8}.__getitem__) == [RowPath(0, 0, (0, 2), 0), RowPath(1, 8, (1, 3), 0)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parents": [-1, 1, 1]}, "row 1: its parent 1"),
        ({"parents": [-1, 2, 1]}, "row 1: its parent 2"),
        ({"parents": [-2, 0, 1]}, "row 0: its parent -2"),
        ({"sequences": [0, 0, 1]}, "row 2: its parent 1 is not an earlier row of the same sequence"),
        ({"positions": [4, 6, 7]}, "row 0 has position 4; 5 is next"),
        ({"positions": [5, 6, 6]}, "row 2 has position 6; 7 is next"),
        ({"outputs": [1, 0]}, "output rows"),
        ({"outputs": [3]}, "output rows"),
        ({"outputs": [-1]}, "output rows"),
        ({"token_ids": [1, 2]}, "as many positions"),
    ],
)
def test_rows_that_contradict_each_other_are_refused(changes, message):
    rows = chain_rows(0, 5, [1, 2, 3], 1)
    wrong = replace(rows, **{name: np.array(value, np.int32) for name, value in changes.items()})
    with pytest.raises(ValueError, match=message):
        split_paths(wrong, lambda _: 5)


def test_a_pass_without_rows_is_refused():
    with pytest.raises(ValueError, match="needs rows"):
        split_paths(chain_rows(0, 0, [], 0), lambda _: 0)
