"""The sampler: exact choices, ties, errors, confidence, accept and rollback; and its distribution."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.errors import UsageError
from specdec_cli.sampling.candidates import LogitsError
from specdec_cli.sampling.noise import gumbel
from specdec_cli.sampling.params import SamplingParams
from specdec_cli.sampling.sampler import Sampler

PURE = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def sampler(n_vocab=10, context=(), **settings):
    return Sampler(SamplingParams(**settings), list(context), n_vocab=n_vocab)


def f32(values):
    return np.array(values, np.float32)


def test_temperature_zero_takes_the_best_and_the_lowest_of_equals():
    greedy = sampler(temperature=0)
    assert greedy.choose(f32([1, 3, 2]), 5).token_id == 1
    assert greedy.choose(f32([1, 3, 3, 3]), 5).token_id == 1
    assert greedy.choose(f32([0, 0, 0]), 5).token_id == 0


def test_temperature_zero_with_penalties_takes_the_best_of_what_they_leave():
    assert sampler(temperature=0, context=[1], presence_penalty=2.0).choose(f32([1, 3, 2]), 0).token_id == 2


def test_choice_is_the_argmax_of_logits_plus_noise():
    logits = f32(np.random.default_rng(0).normal(size=10))
    pure = sampler(temperature=1.0, seed=9, **PURE)
    for position in range(200):
        expected = int((logits + gumbel(9, position, np.arange(10))).argmax())
        assert pure.choose(logits, position).token_id == expected


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    spread=st.sampled_from([0.0, 0.5, 3.0, 30.0]),
    size=st.integers(4097, 30_000),
)
def test_large_vocabularies_choose_and_measure_as_if_all_noise_were_drawn(seed, spread, size):
    logits = f32(np.random.default_rng(seed).normal(size=size) * spread)
    perturbed = logits.astype(np.float64) + gumbel(seed, 3, np.arange(size))
    choice = sampler(size, temperature=1.0, seed=seed, **PURE).choose(logits, 3)
    assert choice.token_id == int(perturbed.argmax())
    best, second = np.sort(perturbed)[:-3:-1]
    assert choice.margin == best - second


def test_equal_perturbed_values_go_to_the_lowest_id():
    """Ordered candidates: id 2 stands before id 0, but a tie of the perturbed values is decided by id."""
    noise = gumbel(4, 0, np.arange(3))
    logits = f32(np.float32(noise.max()) - noise)  # float32 cannot make them exactly equal
    chosen = sampler(3, temperature=1.0, seed=4, top_k=2, top_p=1.0, min_p=0.0).choose(logits, 0)
    values = logits.astype(np.float64) + noise
    kept = np.argsort(-logits, kind="stable")[:2]
    assert chosen.token_id == min(i for i in kept.tolist() if values[i] == values[kept].max())


@pytest.mark.parametrize("options", [{}, PURE], ids=["default", "pure"])
def test_ids_of_a_head_that_was_cut_draw_their_own_noise(options):
    """A head without some tokens chooses as the full one does when those are excluded."""
    logits = f32(np.random.default_rng(5).normal(size=100) * 3)
    ids = np.arange(0, 100, 3)
    masked = logits.copy()
    masked[np.setdiff1d(np.arange(100), ids)] = -np.inf
    full, cut = (sampler(100, temperature=1.0, seed=8, **options) for _ in range(2))
    chosen = [cut.choose(logits[ids], position, ids=ids).token_id for position in range(60)]
    assert chosen == [full.choose(masked, position).token_id for position in range(60)]
    assert len(set(chosen)) > 1


@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_numbers_that_are_none_are_an_error_with_the_position(temperature, bad, penalty):
    logits = f32(np.zeros(5000))
    logits[3210] = bad
    with pytest.raises(LogitsError, match="position 17"):
        sampler(5000, context=[1], temperature=temperature, presence_penalty=penalty).choose(logits, 17)


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_minus_infinity_excludes_a_token_and_all_of_them_is_an_error(temperature):
    only = f32([-np.inf, -np.inf, 1.0, -np.inf])
    assert sampler(4, temperature=temperature).choose(only, 0).token_id == 2
    everything = f32([-np.inf] * 4)
    with pytest.raises(LogitsError, match="no token is left"):
        sampler(4, temperature=temperature).choose(everything, 0)
    ban = tuple((i, -math.inf) for i in range(4))
    with pytest.raises(LogitsError, match="no token is left"):
        sampler(4, temperature=temperature, logit_bias=ban).choose(f32([1, 2, 3, 4]), 0)


def test_bias_outside_the_vocabulary_is_refused():
    with pytest.raises(UsageError, match="vocabulary has 10"):
        sampler(10, logit_bias=((10, 1.0),))


def test_c9_same_seed_same_tokens_other_seed_other_tokens():
    logits = f32(np.random.default_rng(1).normal(size=(50, 200)))

    def run(seed):
        hot = sampler(200, temperature=2.0, seed=seed)
        return [hot.choose(row, t).token_id for t, row in enumerate(logits)]

    assert run(42) == run(42)
    assert run(42) != run(43)


def test_c4_truncation_keeps_the_distribution_of_what_survives(chi2):
    """Temperature 0.7 and top-p 0.8 over positions: the renormalised nucleus, nothing outside of it."""
    p = np.array([0.4, 0.3, 0.2, 0.06, 0.04])
    target = sampler(5, temperature=0.7, top_k=0, top_p=0.8, min_p=0.0, seed=3)
    draws = [target.choose(f32(np.log(p)), t).token_id for t in range(6000)]
    counts = np.bincount(draws, minlength=5)
    # top_p runs before temperature: 0.4 + 0.3 < 0.8, so three tokens stay.
    expected = np.array([0.4, 0.3, 0.2]) ** (1 / 0.7)
    assert counts[3:].tolist() == [0, 0]
    assert chi2(counts[:3], expected / expected.sum()) < 13.8


class TestConfidence:
    def test_at_temperature_zero_it_is_the_probability(self):
        choice = sampler(3, temperature=0).choose(f32(np.log([0.2, 0.7, 0.1])), 0)
        assert choice.confidence == pytest.approx(0.7, abs=1e-6)
        assert choice.margin == pytest.approx(math.log(3.5), abs=1e-6)

    def test_above_it_grows_with_the_margin(self):
        clear = sampler(3, temperature=0.1).choose(f32([0, 9, 0]), 0)
        unclear = sampler(3, temperature=1.0, **PURE).choose(f32([0, 0.5, 0]), 0)
        assert clear.confidence > 0.999
        assert 0 <= unclear.confidence < clear.confidence
        assert unclear.confidence == pytest.approx(1 - math.exp(-unclear.margin))

    def test_a_single_survivor_is_certain(self):
        choice = sampler(3, temperature=1.0, top_k=1).choose(f32([0, 1, 0]), 0)
        assert (choice.margin, choice.confidence) == (math.inf, 1.0)


class TestMemory:
    @given(steps=st.lists(st.one_of(st.integers(0, 5), st.integers(-3, -1)), max_size=30))
    def test_accept_and_rollback_equal_a_fresh_replay(self, steps):
        options = {"temperature": 0.9, "frequency_penalty": 0.4, "repeat_penalty": 1.2, "repeat_last_n": 4}
        walked = sampler(6, context=[1, 2], **options)
        kept: list[int] = []
        for step in steps:
            if step >= 0:
                walked.accept(step)
                kept.append(step)
            else:
                count = min(-step, len(kept))
                walked.rollback(count)
                del kept[len(kept) - count :]
        assert walked.num_accepted == len(kept)
        fresh = sampler(6, context=[1, 2, *kept], **options)
        logits = f32([1, 2, 1.5, -1, 0, 0.5])
        for position in range(20):
            assert walked.choose(logits, position).token_id == fresh.choose(logits, position).token_id

    def test_rolling_back_the_context_is_an_error(self):
        walked = sampler(context=[1, 2], presence_penalty=1.0)
        walked.accept(3)
        with pytest.raises(ValueError, match="rollback of 2 tokens, 1 were accepted"):
            walked.rollback(2)
        walked.rollback(0)
        assert walked.num_accepted == 1
