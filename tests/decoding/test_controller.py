"""The controller on a simulated machine: it finds what pays and never loses."""

from time import perf_counter

import pytest

from specdec_cli.decoding.controller import Controller
from specdec_cli.decoding.drafters.base import Draft
from specdec_cli.decoding.policy import FixedDraftLength, SequenceState
from specdec_cli.errors import UsageError


@pytest.fixture
def relative(simulated):
    """Time of a policy over that of plain decoding, mean of several seeds; also the last simulation."""

    def measure(drafters, pass_ms, policy=Controller, *, num_tokens=256, num_seeds=4):
        total = 0.0
        for seed in range(num_seeds):
            plain = simulated.Simulation(FixedDraftLength(0), [], pass_ms, seed=seed).run(num_tokens)
            simulation = simulated.Simulation(policy(), drafters(), pass_ms, seed=seed)
            total += simulation.run(num_tokens) / plain
        return total / num_seeds, simulation

    return measure


QUALITIES = {
    "good": {"quality": lambda _: 0.9},
    "fair": {"quality": lambda _: 0.7},
    "poor": {"quality": lambda _: 0.3},
    "dear": {"quality": lambda _: 0.9, "step_ms": 15.0},
    "lookup": {
        "name": "ngram",
        "quality": lambda _: 0.9,
        "needs_prefill": False,
        "confidence": 8.0,
        "hit_rate": 0.5,
    },
}


@pytest.mark.parametrize("kind", QUALITIES)
def test_m3_within_10_percent_of_the_best_fixed_length(simulated, relative, kind):
    def drafters():
        return [simulated.Drafter(**{"name": "draft"} | QUALITIES[kind])]

    fixed = {
        length: relative(drafters, simulated.flat(), lambda n=length: FixedDraftLength(n), num_tokens=500)[0]
        for length in (0, 1, 2, 3, 4, 6, 8)
    }
    auto, _ = relative(drafters, simulated.flat(), num_tokens=500)
    assert auto <= 1.1 * min(fixed.values())


USELESS = {
    "sure of itself": {"quality": lambda _: 0.0, "confidence": 0.9},
    "unsure": {"quality": lambda _: 0.0, "confidence": 0.05},
    "same file": {"quality": lambda _: 1.0, "step_ms": 26.0, "relative_cost": 1.0},
    "lookup": {
        "name": "ngram",
        "quality": lambda _: 0.0,
        "needs_prefill": False,
        "confidence": 4.0,
        "hit_rate": 0.3,
    },
}


@pytest.mark.parametrize("num_tokens", [256, 1000])
@pytest.mark.parametrize("shape", ["flat", "steep"])
@pytest.mark.parametrize("kind", USELESS)
def test_m1_m2_useless_drafts_cost_next_to_nothing(simulated, relative, kind, shape, num_tokens):
    ratio, simulation = relative(
        lambda: [simulated.Drafter(**{"name": "draft"} | USELESS[kind])],
        getattr(simulated, shape)(),
        num_tokens=num_tokens,
    )
    assert ratio <= (1.03 if kind == "lookup" else 1.04)
    assert sum(simulation.lengths[-20:]) <= 12  # it ended plain, but for a look now and then
    assert simulation.policy.explain().startswith("plain: ")


def test_goes_plain_when_every_row_costs_a_pass(simulated, relative):
    ratio, simulation = relative(
        lambda: [simulated.Drafter("draft", lambda _: 0.9)], simulated.steep(), num_tokens=500
    )
    assert ratio <= 1.04
    assert simulation.policy.explain() == (
        "plain: draft does not pay, a pass of 2 rows takes 1.8 times one of 1"
    )


def test_recovers_after_a_bad_stretch(simulated, relative):
    ratio, simulation = relative(
        lambda: [simulated.Drafter("draft", lambda i: 0.0 if 300 < i < 500 else 0.9)],
        simulated.flat(),
        num_tokens=1000,
    )
    assert sum(simulation.lengths[-50:]) > 100
    assert ratio < 0.8
    assert simulation.policy.explain() is None


def test_stops_when_drafts_become_bad(simulated, relative):
    ratio, simulation = relative(
        lambda: [simulated.Drafter("draft", lambda i: 0.9 if i < 300 else 0.0)],
        simulated.flat(),
        num_tokens=1000,
    )
    assert ratio < 0.95  # what was gained is kept
    assert sum(simulation.lengths[-50:]) < 25


def test_a_lookup_with_a_long_match_beats_a_model(simulated, relative):
    def drafters():
        lookup = simulated.Drafter(
            "ngram", lambda _: 0.95, needs_prefill=False, confidence=20.0, hit_rate=0.4
        )
        return [lookup, simulated.Drafter("draft", lambda _: 0.8)]

    both, simulation = relative(drafters, simulated.flat(), num_tokens=500)
    only_model, _ = relative(lambda: drafters()[1:], simulated.flat(), num_tokens=500)
    assert both < 0.9 * only_model
    accounts = simulation.policy.accounts
    assert accounts["ngram"].num_accepted > 50
    assert accounts["draft"].num_accepted > 50


def test_a_prefill_that_cannot_earn_its_cost_is_not_started(simulated):
    policy = Controller()
    drafter = simulated.Drafter("draft", lambda _: 0.9)
    simulation = simulated.Simulation(policy, [drafter], simulated.flat(), prompt=1000)
    simulation.run(60)
    assert not drafter.held
    assert policy.explain() == (
        "plain: draft not started, its own prompt pass would cost more than it can save"
    )
    simulation.run(2000)
    assert drafter.held


def test_indexing_a_long_prompt_is_not_held_against_a_lookup(simulated):
    lookup = simulated.Drafter("suffix", lambda _: 0.9, needs_prefill=False, confidence=8.0)
    simulation = simulated.Simulation(Controller(), [lookup], simulated.flat(), prompt=16000)
    simulation.run(20)
    assert sum(simulation.lengths[:10]) >= 8


def state(**changes):
    values = {
        "sequence": 1,
        "context_length": 60,
        "num_emitted": 20,
        "num_left": 200,
        "max_draft": 199,
        "prompt_rows": 0,
        "first_pass": False,
        "kv": 1,
    }
    return SequenceState(**values | changes)


@pytest.fixture
def practised(simulated):
    """A controller that has seen a lookup and a model, and the two."""
    drafters = [
        simulated.Drafter("ngram", lambda _: 0.9, needs_prefill=False, confidence=8.0, hit_rate=0.4),
        simulated.Drafter("draft", lambda _: 0.95, blur=0.05),
    ]
    policy = Controller()
    simulated.Simulation(policy, drafters, simulated.flat()).run(300)
    return policy, drafters


def test_drafts_respect_the_limit_and_the_first_tokens_are_plain(practised):
    policy, drafters = practised
    assert [a.max_tokens for a in policy.plan(state(max_draft=1, num_left=2), drafters)][:1] == [1]
    assert not policy.plan(state(max_draft=0, num_left=1), drafters)
    assert not policy.plan(state(first_pass=True), drafters)
    assert not Controller().plan(state(), drafters)


def test_the_rest_of_a_doubtful_draft_is_not_verified(practised):
    policy, drafters = practised
    policy.plan(state(), drafters)
    assert policy.keep(state(), "draft", Draft([5] * 8, [0.99] * 2 + [0.05] * 6)) <= 3
    assert policy.keep(state(), "draft", Draft([5] * 8, [0.99] * 8)) >= 3
    assert policy.keep(state(), "draft", Draft()) == 0


def test_a_model_is_told_to_stop_when_it_becomes_unsure(practised):
    policy, drafters = practised
    attempt = policy.plan(state(), drafters[1:])[0]
    assert attempt.go_on([0.99])
    assert not attempt.go_on([0.99, 0.05, 0.05])


def test_other_sequences_rows_count(practised):
    """In a full batch a row is dearer than in a small one on this machine, so drafts get shorter."""
    policy, drafters = practised
    policy.plan(state(), drafters)
    alone = policy.keep(state(), "draft", Draft([5] * 16, [0.99] * 16))
    policy._rows = dict.fromkeys(range(2, 5), 8)
    policy.plan(state(), drafters)
    assert policy.keep(state(), "draft", Draft([5] * 16, [0.99] * 16)) <= alone


def test_a_decision_takes_less_than_50_microseconds(practised):
    policy, drafters = practised
    draft = Draft([5] * 8, [0.9] * 8)
    best = float("inf")
    for _ in range(20):
        started = perf_counter()
        for _ in range(20):
            policy.plan(state(), drafters)
            policy.keep(state(), "draft", draft)
        best = min(best, (perf_counter() - started) / 40)
    assert best < 150e-6  # 20 us where nothing else runs


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_tokens": -1}, "draft length"),
        ({"max_tokens": 3, "min_tokens": 4}, "minimum draft length"),
        ({"p_min": 2.0}, "draft_p_min"),
    ],
)
def test_senseless_settings_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        Controller(**settings)


def test_settings_bound_the_drafts(simulated):
    simulation = simulated.Simulation(
        Controller(max_tokens=2), [simulated.Drafter("draft", lambda _: 0.95)], simulated.flat()
    )
    simulation.run(200)
    assert max(simulation.lengths) == 2
    off = simulated.Simulation(
        Controller(max_tokens=0), [simulated.Drafter("draft", lambda _: 0.95)], simulated.flat()
    )
    off.run(50)
    assert not any(off.lengths)
