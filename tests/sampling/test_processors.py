"""Each processor on logits computed by hand; the stateful one against a fresh replay."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.errors import UsageError
from specdec_cli.sampling.candidates import Candidates, LogitsError
from specdec_cli.sampling.params import SamplingParams
from specdec_cli.sampling.processors import (
    LogitBias,
    MinP,
    Penalties,
    Temperature,
    TopK,
    TopP,
    build_chain,
)


def apply(processor, logits, *, ids=None, position=0) -> dict[int, float]:
    """Run one processor; the surviving ids with their logits, in the order of the candidates."""
    candidates = Candidates(np.array(logits, np.float32), position, ids)
    processor.apply(candidates)
    return dict(zip(candidates.ids.tolist(), candidates.logits.tolist(), strict=True))


def log_of(probabilities):
    return np.log(np.array(probabilities))


class TestTopK:
    def test_keeps_the_largest(self):
        assert list(apply(TopK(2), [1, 5, 3, 4])) == [1, 3]

    def test_ties_go_to_the_lowest_ids(self):
        assert list(apply(TopK(3), [2, 2, 2, 2, 9])) == [4, 0, 1]

    def test_more_than_there_are_changes_nothing(self):
        assert list(apply(TopK(9), [1, 5, 3])) == [0, 1, 2]

    def test_banned_tokens_never_fill_the_set(self):
        assert list(apply(TopK(3), [-np.inf, 5, -np.inf, 3])) == [1, 3]

    def test_nothing_left_is_an_error(self):
        with pytest.raises(LogitsError, match="no token is left"):
            apply(TopK(1), [-np.inf, -np.inf])


class TestTopP:
    @pytest.mark.parametrize(
        ("p", "kept"),
        [(0.49, [1]), (0.51, [1, 0]), (0.79, [1, 0]), (0.81, [1, 0, 3]), (0.9999, [1, 0, 3, 2])],
    )
    def test_keeps_the_smallest_set_that_reaches_p(self, p, kept):
        assert list(apply(TopP(p), log_of([0.3, 0.5, 0.05, 0.15]))) == kept

    def test_works_on_what_top_k_left(self):
        candidates = Candidates(log_of([0.3, 0.5, 0.05, 0.15]).astype(np.float32), 0)
        TopK(3).apply(candidates)
        TopP(0.6).apply(candidates)
        assert candidates.ids.tolist() == [1, 0]

    @pytest.mark.parametrize("p", [0.3, 0.9, 0.999])
    def test_large_vocabularies_give_the_same_set_as_a_full_sort(self, p):
        logits = (np.random.default_rng(1).normal(size=20_000) * 2).astype(np.float32)
        order = np.lexsort((np.arange(len(logits)), -logits))
        weights = np.exp(logits[order].astype(np.float64))
        count = int(np.searchsorted(np.cumsum(weights), p * weights.sum())) + 1
        assert list(apply(TopP(p), logits)) == order[:count].tolist()


class TestMinP:
    @pytest.mark.parametrize(("p", "kept"), [(0.05, [0, 1, 2, 3]), (0.2, [0, 1, 3]), (0.7, [1]), (1.0, [1])])
    def test_keeps_what_is_close_to_the_best(self, p, kept):
        assert list(apply(MinP(p), log_of([0.3, 0.5, 0.05, 0.15]))) == kept

    def test_all_equally_good_stay(self):
        assert list(apply(MinP(1.0), [2, 2, 1])) == [0, 1]


class TestTemperature:
    def test_divides(self):
        assert apply(Temperature(0.5), [1, -2]) == {0: 2.0, 1: -4.0}

    def test_keeps_the_order_of_ordered_candidates(self):
        candidates = Candidates(np.array([1, 5, 3], np.float32), 0)
        TopK(2).apply(candidates)
        Temperature(2.0).apply(candidates)
        assert candidates.ordered
        assert candidates.logits.tolist() == [2.5, 1.5]


class TestLogitBias:
    def test_adds_up_and_bans(self):
        biased = apply(LogitBias([(0, 1.5), (2, -math.inf), (0, 1.0)], 3), [1, 2, 3])
        assert biased == {0: 3.5, 1: 2.0, 2: -math.inf}

    def test_ids_that_a_shorter_head_lacks_are_ignored(self):
        assert apply(LogitBias([(1, 1.0), (9, 1.0)], 10), [1, 2, 3]) == {0: 1.0, 1: 3.0, 2: 3.0}
        assert apply(LogitBias([(7, 1.0)], 10), [1, 2], ids=np.array([3, 7])) == {3: 1.0, 7: 3.0}

    def test_ids_outside_the_vocabulary_are_refused(self):
        with pytest.raises(UsageError, match="token 10, the vocabulary has 10"):
            LogitBias([(10, 1.0)], 10)


def penalties(context=(), **settings) -> Penalties:
    return Penalties(SamplingParams(**settings), list(context))


class TestPenalties:
    def test_repeat_divides_positive_and_multiplies_other_logits(self):
        assert apply(penalties([0, 1, 1], repeat_penalty=2.0), [4, -4, 4]) == {0: 2.0, 1: -8.0, 2: 4.0}

    def test_presence_counts_once_and_frequency_every_time(self):
        both = penalties([0, 1, 1, 1], presence_penalty=0.5, frequency_penalty=0.25)
        assert apply(both, [4, 4, 4]) == {0: 3.25, 1: 2.75, 2: 4.0}

    def test_negative_penalties_reward(self):
        assert apply(penalties([1], frequency_penalty=-2.0), [0, 0]) == {0: 0.0, 1: 2.0}

    def test_only_the_window_counts(self):
        assert apply(penalties([0, 1, 2], presence_penalty=1.0, repeat_last_n=2), [0, 0, 0, 0]) == {
            0: 0.0, 1: -1.0, 2: -1.0, 3: 0.0,
        }  # fmt: skip
        assert apply(penalties([0, 1, 2], presence_penalty=1.0, repeat_last_n=-1), [0, 0, 0]) == {
            0: -1.0, 1: -1.0, 2: -1.0,
        }  # fmt: skip

    def test_after_top_k_they_reorder_the_survivors(self):
        candidates = Candidates(np.array([1, 5, 4, 3], np.float32), 0)
        TopK(3).apply(candidates)
        penalties([1], presence_penalty=1.5).apply(candidates)
        assert candidates.ids.tolist() == [1, 2, 3]
        assert candidates.logits.tolist() == [3.5, 4, 3]
        TopK(1).apply(candidates)
        assert candidates.ids.tolist() == [2]

    def test_rolling_back_further_than_accepted_is_an_error(self):
        with pytest.raises(ValueError, match="rollback of 3 tokens, 2 were accepted"):
            penalties([1, 2], presence_penalty=1.0).rollback(3)


@given(
    context=st.lists(st.integers(0, 5), max_size=12),
    steps=st.lists(st.one_of(st.integers(0, 5), st.integers(-4, -1)), max_size=40),
    window=st.sampled_from([-1, 1, 2, 5, 64]),
)
def test_c7_accept_and_rollback_leave_no_trace(context, steps, window):
    """Any sequence of accepts (token ids) and rollbacks (negative counts) equals a fresh replay of what is
    left.
    """
    settings = {
        "repeat_penalty": 1.3,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.1,
        "repeat_last_n": window,
    }
    processor = penalties(context, **settings)
    kept: list[int] = []
    for step in steps:
        if step >= 0:
            processor.accept(step)
            kept.append(step)
        else:
            count = min(-step, len(kept))
            processor.rollback(count)
            del kept[len(kept) - count :]
        logits = [1.0, -1.0, 2.0, 0.0, 3.0, -2.0]
        assert apply(processor, logits) == apply(penalties(context + kept, **settings), logits)


class TestChain:
    def kinds(self, **settings):
        return [type(p).__name__ for p in build_chain(SamplingParams(**settings), [], 100)]

    def test_default_order_and_what_is_off(self):
        assert self.kinds() == ["TopK", "TopP", "MinP", "Temperature"]
        assert self.kinds(top_k=0, top_p=1.0, min_p=0.0, temperature=1.0) == []
        assert self.kinds(repeat_penalty=1.1, logit_bias=((1, 1.0),)) == [
            "LogitBias", "Penalties", "TopK", "TopP", "MinP", "Temperature",
        ]  # fmt: skip
        assert self.kinds(repeat_penalty=1.1, repeat_last_n=0, top_k=0, top_p=1.0, min_p=0.0) == [
            "Temperature"
        ]

    def test_order_is_that_of_samplers(self):
        order = ("temperature", "min_p", "penalties", "top_k", "top_p")
        assert self.kinds(samplers=order, presence_penalty=1.0) == [
            "Temperature", "MinP", "Penalties", "TopK", "TopP",
        ]  # fmt: skip

    def test_temperature_zero_skips_what_cannot_change_the_best(self):
        assert self.kinds(temperature=0) == []
        assert self.kinds(temperature=0, presence_penalty=1.0) == ["Penalties"]

    def test_order_changes_the_result(self):
        logits = log_of([0.6, 0.25, 0.1, 0.05])
        hot_first = build_chain(
            SamplingParams(
                temperature=5, min_p=0.5, top_p=1.0, samplers=("temperature", "min_p", "top_p", "top_k")
            ),
            [],
            4,
        )
        hot_last = build_chain(SamplingParams(temperature=5, min_p=0.5, top_p=1.0), [], 4)
        sizes = []
        for chain in (hot_first, hot_last):
            candidates = Candidates(logits.astype(np.float32), 0)
            for processor in chain:
                processor.apply(candidates)
            sizes.append(len(candidates))
        assert sizes == [4, 1]
