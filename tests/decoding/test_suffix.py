"""The suffix drafter: which match it takes, what it proposes, what a token costs."""

from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.decoding.drafters.base import DraftRequest
from specdec_cli.decoding.drafters.suffix import SuffixDrafter
from specdec_cli.errors import UsageError
from specdec_cli.sampling.params import SamplingParams
from specdec_cli.sampling.sampler import Sampler

SAMPLER = Sampler(SamplingParams(), [], n_vocab=1000)


def ask(drafter, context, max_tokens=4, *, sequence=0, eog_ids=()):
    return drafter.propose([DraftRequest(sequence, context, max_tokens, SAMPLER, frozenset(eog_ids))])[0]


def drafted(context, max_tokens=4, *, min_match=2, eog_ids=()):
    return ask(SuffixDrafter(min_match=min_match), context, max_tokens, eog_ids=eog_ids).token_ids


def test_a1_a_run_proposes_its_continuation():
    assert drafted([1, 1, 1], 5) == [1] * 5
    assert drafted([1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]


def test_f2_nothing_without_a_repetition():
    assert drafted(list(range(100))) == []
    assert drafted([5]) == []


def test_f5_of_equally_frequent_continuations_the_most_recent_counts():
    early, late = [1, 2, 3, 50, 51], [1, 2, 3, 60, 61]
    assert drafted([*early, 9, *late, 8, 1, 2, 3], 2) == [60, 61]


def test_f5_the_most_frequent_continuation_counts_first():
    often, once = [1, 2, 3, 50, 51], [1, 2, 3, 60, 61]
    draft = ask(SuffixDrafter(), [*often, 9, *often, 8, *once, 7, 1, 2, 3], 2)
    assert draft.token_ids == [50, 51]
    assert draft.confidences == pytest.approx([2.0, 2.0])  # 3 tokens match, 2 of 3 occurrences agree


def test_the_longest_match_counts_before_frequency():
    assert drafted([7, 1, 2, 50, 9, 1, 2, 60, 8, 1, 2, 60, 7, 1, 2], 1) == [50]


def test_confidence_is_the_length_of_the_match():
    draft = ask(SuffixDrafter(), [*range(20), 99, *range(20)], 3)
    assert draft.token_ids == [99, 0, 1]
    assert draft.confidences == [20.0] * 3


def test_a_draft_ends_with_an_end_token():
    assert drafted([1, 2, 9, 3, 1, 2], 4, eog_ids=[9]) == [9]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.integers(1, 4))
def test_longest_match_equals_a_search(tokens, step):
    """Grown piece by piece, the match is the longest suffix that occurs earlier; a draft continues one."""
    drafter, context = SuffixDrafter(min_match=1), []
    for start in range(0, len(tokens), step):
        context += tokens[start : start + step]
        draft = ask(drafter, context, 1)
        n = len(context)
        longest, followers = 0, []
        for length in range(1, n):
            ends = [e for e in range(length, n) if context[e - length : e] == context[n - length :]]
            if ends:
                longest, followers = length, [context[e] for e in ends]
        assert len(draft.token_ids) == (longest > 0)
        if longest:
            assert draft.token_ids[0] in followers
            assert 1.0 <= draft.confidences[0] <= longest
            counts = {token: followers.count(token) for token in followers}
            # Within very long runs not every short match is counted.
            assert n > 20 or counts[draft.token_ids[0]] == max(counts.values())


def test_a_context_that_does_not_go_on_starts_afresh():
    drafter = SuffixDrafter()
    assert ask(drafter, [1, 2, 50, 1, 2], 1).token_ids == [50]
    assert ask(drafter, [1, 2, 60, 1, 2], 1).token_ids == [60]  # as long, other tokens
    assert ask(drafter, [1, 2], 1).token_ids == []
    assert ask(drafter, [1, 2, 70, 1, 2], 1).token_ids == [70]


def test_f9_sequences_do_not_see_each_other():
    drafter = SuffixDrafter()
    ask(drafter, [1, 2, 50, 1, 2], sequence=0)
    assert ask(drafter, [1, 2], sequence=1).token_ids == []
    drafter.release(0)
    drafter.release(7)
    assert ask(drafter, [1, 2], sequence=0).token_ids == []


def test_f6_a_token_costs_the_same_at_any_depth():
    """Time per token over 1k tokens, early and after 16k; a generous bound, for a shared machine."""
    random = np.random.default_rng(0)
    phrases = random.integers(0, 500, (40, 25)).tolist()
    repetitive = [token for which in random.integers(0, 40, 700) for token in phrases[which]]

    def cost(depth):
        best = float("inf")
        for _ in range(3):
            drafter, context = SuffixDrafter(), repetitive[:depth]
            ask(drafter, context)
            started = perf_counter()
            for token in repetitive[depth : depth + 500]:
                context.append(token)
                ask(drafter, context)
            best = min(best, perf_counter() - started)
        return best / 500

    shallow, deep = cost(1000), cost(16000)
    assert deep < 3 * shallow
    assert deep < 500e-6


def test_f1_a_senseless_size_is_refused():
    with pytest.raises(UsageError, match="shortest suffix match"):
        SuffixDrafter(min_match=0)
