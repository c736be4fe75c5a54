"""Statistics: hand-computed ratios, merging, and what is undefined."""

import pytest

from specdec_cli.decoding.stats import DrafterStats, SpecStats
from specdec_cli.decoding.types import Timings

ACCEPTED = [3, 0, 1, 2, 3, 0, 3, 1, 2, 0]  # of 3 drafted in each of ten rounds


def ten_rounds() -> SpecStats:
    stats = SpecStats()
    for accepted in ACCEPTED:
        stats.num_rounds += 1
        stats.num_round_tokens += accepted + 1
        stats.drafter("ngram").record([0, 1, 2], accepted)
    return stats


def test_h6_ratios_match_hand_computation():
    stats = ten_rounds()
    assert (stats.num_rounds, stats.num_draft_tokens, stats.num_accepted_tokens) == (10, 30, 15)
    assert stats.draft_acceptance_rate == 15 / 30
    assert stats.mean_acceptance_length == 25 / 10
    assert stats.acceptance_per_position == [7 / 10, 5 / 10, 3 / 10]


def test_rounds_of_different_lengths_have_their_own_denominators():
    stats = DrafterStats()
    stats.record([0, 1, 2, 3], 2)
    stats.record([0], 1)
    stats.record([], 0)
    stats.record([0, 1], 0)
    assert stats.num_rounds == 3
    assert stats.acceptance_per_position == [2 / 3, 1 / 2, 0, 0]


def test_siblings_share_a_position():
    stats = DrafterStats()
    stats.record([0, 0, 1, 1], 2)
    assert (stats.num_draft_tokens, stats.drafted_at, stats.accepted_at) == (4, [1, 1], [1, 1])


def test_undefined_is_none_neither_zero_nor_one():
    stats = SpecStats()
    assert stats.draft_acceptance_rate is None
    assert stats.mean_acceptance_length is None
    assert stats.acceptance_per_position == []
    assert Timings().predicted_per_second is None
    assert Timings().prompt_per_second is None


def test_merged_counters_give_the_ratios_of_all_rounds():
    """Ratios of 1/1 and 0/9 average to 0.5; together they are 1/10."""
    one, other = SpecStats(), SpecStats()
    one.drafter("draft").record([0], 1)
    one.num_rounds, one.num_round_tokens = 1, 2
    other.drafter("draft").record(list(range(9)), 0)
    other.drafter("ngram").record([0], 1)
    other.num_rounds, other.num_round_tokens = 2, 3
    one.merge(other)
    assert one.drafters["draft"].draft_acceptance_rate == 1 / 10
    assert one.draft_acceptance_rate == 2 / 11
    assert one.mean_acceptance_length == 5 / 3
    assert one.acceptance_per_position[0] == 2 / 3


def test_merging_does_not_tie_the_two_together():
    one, other = SpecStats(), ten_rounds()
    one.merge(other)
    one.merge(other)
    assert one.num_draft_tokens == 60
    assert other.num_draft_tokens == 30


def test_json_object_has_the_documented_names():
    report = ten_rounds().as_dict()
    assert report["mean_acceptance_length"] == 2.5
    assert report["draft_acceptance_rate"] == 0.5
    assert report["acceptance_per_position"] == [0.7, 0.5, 0.3]
    assert (report["num_rounds"], report["num_draft_tokens"], report["num_accepted_tokens"]) == (10, 30, 15)
    assert set(report["drafters"]) == {"ngram"}


@pytest.mark.parametrize(("n", "ms", "rate"), [(11, 100.0, 100.0), (1, 0.0, None), (0, 0.0, None)])
def test_h5_speed_comes_from_token_count_and_decode_time(n, ms, rate):
    """The first token belongs to the prompt pass."""
    assert Timings(predicted_n=n, predicted_ms=ms).predicted_per_second == rate


def test_prompt_speed_counts_computed_tokens_only():
    assert Timings(prompt_n=50, prompt_reused_n=950, prompt_ms=100.0).prompt_per_second == 500
