"""Rows of a pass: flattened over sequences, with positions, parents and outputs."""

from specdec_cli.decoding.drafters.base import ROOT, Draft
from specdec_cli.decoding.round import Turn, build_rows

SPEAKER = object()


def lists(rows):
    return [a.tolist() for a in (rows.token_ids, rows.positions, rows.sequences, rows.parents, rows.outputs)]


def test_sequences_of_every_kind_in_one_pass():
    turns = [
        Turn(5, 10, [1], speaker=SPEAKER),  # plain decoding
        Turn(2, 0, [7, 8, 9]),  # a piece of a prompt
        Turn(9, 4, [3, 4], speaker=SPEAKER, draft=Draft([5, 6])),  # the end of a prompt with a draft
    ]
    assert lists(build_rows(turns)) == [
        [1, 7, 8, 9, 3, 4, 5, 6],
        [10, 0, 1, 2, 4, 5, 6, 7],
        [5, 2, 2, 2, 9, 9, 9, 9],
        [-1, -1, 1, 2, -1, 4, 5, 6],
        [0, 5, 6, 7],
    ]


def test_a_tree_hangs_on_the_last_context_token():
    turns = [
        Turn(1, 0, [9]),
        Turn(3, 7, [1], speaker=SPEAKER, draft=Draft([4, 5, 6], parents=[ROOT, ROOT, 1])),
    ]
    assert lists(build_rows(turns)) == [
        [9, 1, 4, 5, 6],
        [0, 7, 8, 8, 9],
        [1, 3, 3, 3, 3],
        [-1, -1, 1, 1, 3],
        [1, 2, 3, 4],
    ]
