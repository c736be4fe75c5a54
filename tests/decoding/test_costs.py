"""Pass and draft costs as the controller follows them."""

import pytest

from specdec_cli.decoding.costs import DraftCosts, PassCosts, Smoothed


def observed(costs: PassCosts, pairs):
    for rows, milliseconds in pairs:
        costs.observe(rows, milliseconds)
    return costs


def test_known_points_are_met_and_joined_by_lines():
    costs = observed(PassCosts(), [(1, 20.0)] * 3 + [(5, 28.0)] * 3 + [(9, 60.0)] * 3)
    assert [costs.ms(rows) for rows in (1, 3, 5, 7, 9)] == pytest.approx([20, 24, 28, 44, 60])
    assert costs.ms(13) == pytest.approx(80)  # goes on with the mean slope of 5 ms a row


def test_unmeasured_rows_have_a_small_prior():
    costs = observed(PassCosts(), [(1, 10.0), (1, 10.0)])
    assert 10 < costs.ms(2) < 11.5
    assert 14 < costs.ms(8) < 18


def test_the_curve_never_falls():
    costs = observed(PassCosts(), [(1, 10.0)] * 3 + [(4, 30.0)] * 3 + [(8, 15.0)] * 3 + [(2, 5.0)])
    curve = [costs.ms(rows) for rows in range(1, 80)]
    assert curve == sorted(curve)


def test_depth_is_followed_through_any_number_of_rows():
    costs = observed(PassCosts(), [(1, 10.0)] * 5 + [(5, 14.0)] * 30)
    observed(costs, [(5, 14.0 + 0.07 * i) for i in range(100)])  # half as dear again
    assert costs.ms(5) == pytest.approx(21, rel=0.1)
    assert costs.ms(1) > 12


def test_one_outlier_moves_little():
    costs = observed(PassCosts(), [(1, 10.0)] * 10 + [(1, 500.0)])
    assert costs.ms(1) < 10.5


def test_nonsense_is_ignored():
    costs = observed(PassCosts(), [(1, 10.0), (1, 0.0), (0, 5.0), (3, -1.0)])
    assert costs.count == 1
    assert costs.ms(1) == pytest.approx(10)


def test_the_first_pass_may_have_several_rows():
    costs = observed(PassCosts(), [(4, 24.8)])
    assert costs.ms(1) == pytest.approx(20)  # with the prior slope of 8 % a row


def test_draft_steps_and_catch_up_are_told_apart():
    costs = DraftCosts(Smoothed(9.0))
    for _ in range(5):
        costs.observe(24.0, num_steps=4, backlog=1)
    assert costs.step.value == pytest.approx(6)
    assert costs.catch_up_ms(8) == 0
    assert costs.catch_up_ms(100) == pytest.approx(120)  # a guess: a fifth of a step for each
    costs.observe(6.0 * 3 + 100.0, num_steps=4, backlog=200)
    assert costs.catch_up_ms(100) == pytest.approx(50)
    assert costs.step.value == pytest.approx(6)
