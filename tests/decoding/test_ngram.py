"""The n-gram drafter: which match it takes, what it proposes, what a token costs."""

from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.decoding.drafters.base import DraftRequest
from specdec_cli.decoding.drafters.ngram import NgramDrafter
from specdec_cli.errors import UsageError
from specdec_cli.sampling.params import SamplingParams
from specdec_cli.sampling.sampler import Sampler

SAMPLER = Sampler(SamplingParams(), [], n_vocab=1000)


def ask(drafter, context, max_tokens=4, *, sequence=0, eog_ids=()):
    request = DraftRequest(sequence, context, max_tokens, SAMPLER, frozenset(eog_ids))
    return drafter.propose([request])[0]


def drafted(context, max_tokens=4, *, min_match=2, max_match=4, eog_ids=()):
    drafter = NgramDrafter(min_match=min_match, max_match=max_match)
    return ask(drafter, context, max_tokens, eog_ids=eog_ids).token_ids


def test_a1_a_run_proposes_its_continuation():
    assert drafted([1, 1, 1], 1) == [1]


def test_f5_the_most_recent_match_counts():
    early, late = [1, 2, 3, 50, 51], [1, 2, 3, 60, 61]
    assert drafted([*early, 9, *late, 8, 1, 2, 3], 2) == [60, 61]


def test_the_longest_match_counts_before_the_most_recent_one():
    assert drafted([7, 1, 2, 50, 9, 1, 2, 60, 7, 1, 2], 1) == [50]


def test_nothing_below_the_shortest_match():
    assert drafted([1, 2, 50, 3, 2], min_match=2) == []
    assert drafted([1, 2, 50, 3, 2], 2, min_match=1) == [50, 3]


def test_a_match_at_the_end_goes_on_periodically():
    assert drafted([9, 1, 2, 3, 1, 2, 3, 1, 2], 7) == [3, 1, 2, 3, 1, 2, 3]


def test_b9_a_draft_ends_with_the_first_end_token():
    assert drafted([1, 2, 3, 99, 4, 5, 1, 2], 4, eog_ids={99}) == [3, 99]


def test_f2_no_repeats_no_drafts():
    drafter = NgramDrafter()
    for length in range(1, 200):
        assert ask(drafter, list(range(length))).token_ids == []


def test_f9_sequences_do_not_see_each_other():
    drafter = NgramDrafter(min_match=2)
    ask(drafter, [1, 2, 3, 4, 5], sequence=0)
    assert ask(drafter, [9, 8, 1, 2], sequence=1).token_ids == []


def test_a_context_that_is_not_a_continuation_starts_afresh():
    drafter = NgramDrafter(min_match=2)
    assert ask(drafter, [1, 2, 3, 4, 1, 2], 2).token_ids == [3, 4]
    assert ask(drafter, [1, 2, 7, 8, 1, 2], 2).token_ids == [7, 8]
    growing = [1, 2, 7, 8, 1, 2]
    ask(drafter, growing)
    growing[2] = 5  # no such thing happens in the engine, but it must not go unnoticed with a new list
    assert ask(drafter, list(growing), 1).token_ids == [5]


def test_released_sequences_are_forgotten():
    drafter = NgramDrafter(min_match=2)
    ask(drafter, [1, 2, 3, 4], sequence=5)
    drafter.release(5)
    drafter.release(6)
    assert drafter._indexes == {}


def test_f1_settings_are_kept_and_matter():
    assert (
        NgramDrafter(min_match=3, max_match=8).min_match,
        NgramDrafter(min_match=3, max_match=8).max_match,
    ) == (3, 8)
    assert NgramDrafter(min_match=5).max_match == 8
    context = [1, 50, 2, 1]
    assert drafted(context, 8, min_match=3) == []
    assert drafted(context, 1, min_match=1) == [50]


@pytest.mark.parametrize(("low", "high"), [(0, 3), (4, 3)])
def test_senseless_settings_are_refused(low, high):
    with pytest.raises(UsageError, match="n-gram match"):
        NgramDrafter(min_match=low, max_match=high)


def obvious(context, max_tokens, min_match, max_match):
    """Search the whole context for each length, latest first."""
    for length in range(max_match, min_match - 1, -1):
        if length >= len(context):
            continue
        for start in range(len(context) - length - 1, -1, -1):
            if context[start : start + length] == context[-length:]:
                text = list(context)
                for offset in range(max_tokens):
                    text.append(text[start + length + offset])
                return text[len(context) :]
    return []


@given(
    context=st.lists(st.integers(0, 2), min_size=1, max_size=60),
    min_match=st.integers(1, 4),
    extra=st.integers(0, 4),
)
def test_incremental_lookup_equals_a_full_search(context, min_match, extra):
    drafter = NgramDrafter(min_match=min_match, max_match=min_match + extra)
    growing: list[int] = []
    for token in context:
        growing.append(token)
        assert ask(drafter, growing, 5).token_ids == obvious(growing, 5, min_match, min_match + extra)


def test_f6_cost_per_token_is_flat():
    """16k tokens of repetitive text: the last thousand tokens cost what the first ones did."""
    pattern = np.random.default_rng(0).integers(0, 50, 300).tolist()
    text = (pattern * 60)[:16_384]
    drafter = NgramDrafter()
    growing: list[int] = []
    costs = []
    for start in range(0, len(text), 512):
        started = perf_counter()
        for token in text[start : start + 512]:
            growing.append(token)
            ask(drafter, growing)
        costs.append(perf_counter() - started)
    early, late = np.median(costs[1:9]), np.median(costs[-8:])
    assert late < 3 * early  # medians of a shared machine; a scan of the context would cost 20 times as much
