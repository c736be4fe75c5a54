"""Rows against figures computed by hand."""

import pytest

from specdec_cli.bench.passes import PassTotals
from specdec_cli.bench.rows import ceiling, expected_tokens, find_inequalities, make_rows
from specdec_cli.decoding.stats import SpecStats


def row_of(rows, label, category="all"):
    (row,) = [r for r in rows if r.label == label and r.category == category]
    return row


def ids(count):
    return tuple(range(count))


def test_speeds_are_sums_of_tokens_over_sums_of_medians(toy):
    """Two prompts, three repetitions; the medians are 100 and 300 ms for 10 and 20 decoded tokens."""
    runs = [
        toy.run(task=task, category=category, ids=ids(n), repetition=r, predicted_ms=ms, ttft_ms=50)
        for task, category, n, times in (
            ("x", "a", 11, (90.0, 100.0, 500.0)),
            ("y", "b", 21, (300.0, 280.0, 310.0)),
        )
        for r, ms in enumerate(times)
    ]
    rows = make_rows(runs, {})
    assert [(r.category, r.prompts) for r in rows] == [("a", 1), ("b", 1), ("all", 2)]
    assert row_of(rows, "none", "a").decode_tps == pytest.approx(10 / 0.1)
    overall = row_of(rows, "none")
    assert overall.decode_tps == pytest.approx(30 / 0.4)
    assert overall.decode_tps_min == pytest.approx(30 / 0.81)
    assert overall.decode_tps_max == pytest.approx(30 / 0.38)
    assert overall.speedup == 1
    assert overall.speedup_total == 1


def test_h8_spread_is_undefined_for_a_single_repetition(toy):
    (_, row) = make_rows([toy.run()], {})
    assert row.decode_tps == pytest.approx(20)
    assert row.decode_tps_min is None
    assert row.decode_tps_max is None


def test_speedup_of_decoding_and_in_total(toy):
    runs = [
        toy.run(predicted_ms=400, ttft_ms=100, ids=ids(5)),
        toy.run(strategy="d", predicted_ms=200, ttft_ms=150, ids=ids(5)),
    ]
    row = row_of(make_rows(runs, {}), "d")
    assert row.speedup == pytest.approx(2)
    assert row.speedup_total == pytest.approx(500 / 350)


def test_shares_of_the_decode_time(toy):
    """200 ms in two repetitions: 120 in target passes, 60 drafting, so 20 ms for everything else."""
    passes = PassTotals(num_passes=6, forward_ms=60, draft_ms=30)
    runs = [toy.run(), *(toy.run(strategy="d", repetition=r, passes=passes) for r in (0, 1))]
    row = row_of(make_rows(runs, {}), "d")
    assert row.draft_share == pytest.approx(0.3)
    assert row.overhead_share == pytest.approx(0.1)


def test_counters_are_merged_before_ratios_are_taken(toy):
    """Rates of 1/1 and 0/9 make 1/10, not one half."""
    first, second = SpecStats(num_rounds=1, num_round_tokens=2), SpecStats(num_rounds=3, num_round_tokens=3)
    first.drafter("d").record([0], 1)
    for _ in range(3):
        second.drafter("d").record([0, 1, 2], 0)
    runs = [
        toy.run(),
        toy.run(strategy="d", stats=first),
        toy.run(strategy="d", repetition=1, stats=second),
    ]
    row = row_of(make_rows(runs, {}), "d")
    assert row.draft_acceptance_rate == pytest.approx(0.1)
    assert row.acceptance_per_position == pytest.approx((0.25, 0, 0))
    assert row.mean_acceptance_length == pytest.approx(5 / 4)
    assert row.passes_per_token == pytest.approx(4 / 5)


def test_what_is_undefined_is_none(toy):
    runs = [toy.run(ids=(), predicted_ms=0, ttft_ms=None), toy.run(strategy="d", ids=(), predicted_ms=0)]
    row = row_of(make_rows(runs, {1: 10.0}), "d")
    assert row.decode_tps is row.speedup is row.speedup_total is row.draft_acceptance_rate is None
    assert row.mean_acceptance_length is row.passes_per_token is row.draft_share is row.ceiling is None
    assert row.acceptance_per_position == ()


def test_sweeps_have_a_row_for_each_length(toy):
    runs = [toy.run(), *(toy.run(strategy="d", draft_max=k) for k in (1, 2))]
    assert [r.label for r in make_rows(runs, {}) if r.category == "all"] == ["none", "d@1", "d@2"]


def test_expected_tokens_and_ceiling_by_hand():
    assert expected_tokens(4, 0.5) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert expected_tokens(5, 1.0) == 5
    t_ms = {1: 10.0, 2: 11.0, 4: 16.0, 8: 40.0}
    assert ceiling(t_ms, 1.0) == pytest.approx(4 * 10 / 16)  # 1.82, 2.5, 2.0
    assert ceiling(t_ms, 0.5) == pytest.approx(1.5 * 10 / 11)  # 1.364 beats 1.875 / 1.6
    assert ceiling(t_ms, 0.0) == 1
    assert ceiling(t_ms, None) is None
    assert ceiling({2: 11.0}, 1.0) is None


def test_a_row_has_the_ceiling_of_its_own_acceptance(toy):
    passes = PassTotals(num_tried=4, num_accepted=2)
    runs = [toy.run(), toy.run(strategy="d", passes=passes)]
    row = row_of(make_rows(runs, {1: 10.0, 2: 11.0}), "d")
    assert row.ceiling == pytest.approx(1.5 * 10 / 11)


def test_inequalities_are_found_per_prompt_and_repetition(toy):
    good = toy.run(strategy="d", ids=(1, 2, 3))
    bad = toy.run(strategy="d", ids=(1, 9, 3), repetition=1)
    other = toy.run(strategy="d", task="q", ids=(4,))
    runs = [toy.run(), toy.run(task="q", ids=(4,), category="code"), good, bad, other]
    (found,) = find_inequalities(runs)
    assert found.run is bad
    assert (found.fork.position, found.fork.expected, found.fork.found) == (1, 2, 9)
    rows = make_rows(runs, {})
    assert not row_of(rows, "d").equal
    assert not row_of(rows, "d", "chat").equal
    assert row_of(rows, "none").equal


def test_plain_decoding_must_equal_itself(toy):
    runs = [toy.run(ids=(1, 2)), toy.run(ids=(1, 3), repetition=1)]
    assert [found.run.repetition for found in find_inequalities(runs)] == [1]
    assert not row_of(make_rows(runs, {}), "none").equal
