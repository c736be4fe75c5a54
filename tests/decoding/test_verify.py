"""Verification on scripted choices: chains and trees, every way a round can end."""

import pytest

from specdec_cli.decoding.drafters.base import ROOT, Draft
from specdec_cli.decoding.verify import verify


class Target:
    """Wants a fixed token after each draft node and stops after `limit` tokens."""

    def __init__(self, wants: dict[int, int], limit: int = 100) -> None:
        self.wants = wants
        self.limit = limit
        self.asked: list[int] = []
        self.said: list[tuple[int, bool]] = []

    def choose(self, node: int) -> int:
        self.asked.append(node)
        return self.wants[node]

    def emit(self, token_id: int, from_draft: bool) -> bool:
        self.said.append((token_id, from_draft))
        return len(self.said) < self.limit


def test_empty_draft_is_plain_decoding():
    target = Target({ROOT: 7})
    assert verify(Draft(), target.choose, target.emit) == []
    assert target.said == [(7, False)]


def test_a1_a_draft_of_one_is_checked_against_the_row_before_it():
    target = Target({ROOT: 2, 0: 9})
    assert verify(Draft([1]), target.choose, target.emit) == []
    assert target.said == [(2, False)]
    assert target.asked == [ROOT]


def test_full_acceptance_adds_a_bonus_token():
    target = Target({ROOT: 4, 0: 5, 1: 6, 2: 7})
    assert verify(Draft([4, 5, 6]), target.choose, target.emit) == [0, 1, 2]
    assert target.said == [(4, True), (5, True), (6, True), (7, False)]


def test_the_first_mismatch_is_replaced_and_the_rest_dropped():
    target = Target({ROOT: 4, 0: 8, 1: 6, 2: 7})
    assert verify(Draft([4, 5, 6]), target.choose, target.emit) == [0]
    assert target.said == [(4, True), (8, False)]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a6_nothing_is_chosen_after_the_end(limit):
    target = Target({ROOT: 4, 0: 5, 1: 6}, limit=limit)
    path = verify(Draft([4, 5, 6]), target.choose, target.emit)
    assert path == list(range(limit))  # the ending token was drafted and right, so it counts as accepted
    assert [said for said, _ in target.said] == [4, 5, 6][:limit]
    assert len(target.asked) == limit


class TestTree:
    # after the context 4 or 5; after 4 comes 6 or 7; after 5 comes 8
    draft = Draft([4, 5, 6, 7, 8], [0.5] * 5, parents=[ROOT, ROOT, 0, 0, 1])

    @pytest.mark.parametrize(
        ("wants", "path", "said"),
        [
            ({ROOT: 4, 0: 7, 3: 9}, [0, 3], [4, 7, 9]),
            ({ROOT: 5, 1: 8, 4: 1}, [1, 4], [5, 8, 1]),
            ({ROOT: 5, 1: 6}, [1], [5, 6]),
            ({ROOT: 3}, [], [3]),
        ],
    )
    def test_follows_the_branch_that_matches(self, wants, path, said):
        target = Target(wants)
        assert verify(self.draft, target.choose, target.emit) == path
        assert [token for token, _ in target.said] == said

    def test_depth_is_the_position_in_the_draft(self):
        assert self.draft.depths() == [0, 0, 1, 1, 1]
        assert Draft([1, 2, 3]).depths() == [0, 1, 2]

    def test_a_cut_tree_is_a_tree(self):
        draft = Draft([4, 5, 6, 7, 8], [0.5] * 5, parents=[ROOT, ROOT, 0, 0, 1])
        draft.cut(3)
        assert (draft.token_ids, draft.parents, draft.confidences) == ([4, 5, 6], [ROOT, ROOT, 0], [0.5] * 3)
