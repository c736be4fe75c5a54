"""The distribution of speculative output is the target's (group C). Deterministic: every draw follows from
its seed.
"""

import numpy as np
import pytest

from specdec_cli.decoding.drafters.base import Draft
from specdec_cli.decoding.drafters.draft_model import DraftModelDrafter
from specdec_cli.decoding.policy import FixedDraftLength
from specdec_cli.engine import Engine, GenerationRequest
from specdec_cli.sampling.params import SamplingParams
from specdec_cli.sampling.sampler import Sampler

P = [0.5, 0.3, 0.2]
Q = [0.1, 0.2, 0.7]
CRITICAL = {2: 13.8, 8: 26.1, 26: 54.1}  # 99.9 % quantiles of chi-square by degrees of freedom
PURE = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def chi_square(counts, probabilities):
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


class OtherSampler:
    """A draft model that proposes in its own way, not with the target's sampler and noise."""

    name = "other"
    needs_prefill = False

    def __init__(self, params):
        self.params = params

    def propose(self, requests):
        return [self.draft(request) for request in requests]

    def draft(self, request):
        sampler = Sampler(self.params, request.context, n_vocab=3)
        logits = np.log(Q).astype(np.float32)
        start = len(request.context)
        ids = [sampler.choose(logits, start + i).token_id for i in range(request.max_tokens)]
        return Draft(ids, [0.5] * len(ids))

    def release(self, sequence):
        pass


def draws(toy, drafter, n, seed, **settings):
    engine = Engine(
        toy.Model(toy.constant(P), 3, 50_000),
        token_bytes=toy.letters,
        drafters=[drafter],
        policy=FixedDraftLength(3),
    )
    result = toy.run(engine, GenerationRequest((0,), SamplingParams(seed=seed, **settings), n))
    assert result.stats.num_draft_tokens > n // 2
    assert 0 < result.stats.draft_acceptance_rate < 1
    return np.array(result.token_ids)


def assert_follows(tokens, p):
    """Single tokens and pairs of neighbours have the distribution p."""
    n = len(p)
    assert chi_square(np.bincount(tokens, minlength=n), p) < CRITICAL[n - 1]
    pairs = tokens[: len(tokens) // 2 * 2].reshape(-1, 2) @ [n, 1]
    assert chi_square(np.bincount(pairs, minlength=n * n), np.outer(p, p).ravel()) < CRITICAL[n * n - 1]


def test_c1_tokens_follow_the_target_whatever_the_draft_model_prefers(toy):
    drafter = DraftModelDrafter(toy.Model(toy.constant(Q), 3, 50_000))
    assert_follows(draws(toy, drafter, 4000, 1, **PURE), np.array(P))


def test_c2_with_a_greedy_draft(toy):
    drafter = OtherSampler(SamplingParams(temperature=0))
    assert_follows(draws(toy, drafter, 4000, 2, **PURE), np.array(P))


def test_c3_with_a_draft_that_samples_from_its_own_truncated_distribution(toy):
    drafter = OtherSampler(SamplingParams(temperature=1.0, top_k=2, top_p=1.0, min_p=0.0, seed=77))
    assert_follows(draws(toy, drafter, 4000, 3, **PURE), np.array(P))


def test_c4_truncation_and_temperature_of_the_target(toy):
    """Temperature 0.7, top-p 0.75: the nucleus is the first two tokens."""
    tokens = draws(toy, DraftModelDrafter(toy.Model(toy.constant(Q), 3, 50_000)), 4000, 4,
                   temperature=0.7, top_k=0, top_p=0.75, min_p=0.0)  # fmt: skip
    kept = np.array(P[:2]) ** (1 / 0.7)
    counts = np.bincount(tokens, minlength=3)
    assert counts[2] == 0
    assert chi_square(counts[:2], kept / kept.sum()) < 10.8


def test_c1_shared_noise_accepts_at_least_what_the_overlap_promises(toy):
    """(1 - TV) / (1 + TV) with TV the total variation distance, here 0.5."""
    engine = Engine(
        toy.Model(toy.constant(P), 3, 50_000),
        token_bytes=toy.letters,
        drafters=[DraftModelDrafter(toy.Model(toy.constant(Q), 3, 50_000))],
        policy=FixedDraftLength(1),
    )
    result = toy.run(engine, GenerationRequest((0,), SamplingParams(seed=1, **PURE), 2000))
    assert result.stats.draft_acceptance_rate > (1 - 0.5) / (1 + 0.5)


def test_c5_a_banned_token_never_appears(toy):
    """The draft loves token 2; the target bans it, also as a bonus token."""
    logits, loves = toy.table(1, 8), toy.constant([0.01] * 2 + [0.9] + [0.018] * 5)
    settings = SamplingParams(temperature=1.5, min_p=0.3, logit_bias=((2, -100.0),), seed=3)
    request = GenerationRequest((0, 1), settings, 400)
    shared = DraftModelDrafter(toy.Model(loves, 8))
    own = toy.Scripted(lambda context, n: [2] * n)
    mixed = toy.Scripted(lambda context, n: [int(logits(tuple(context)).argmax()), 2, 2][:n])
    for drafter in (shared, own, mixed):
        engine = Engine(toy.Model(logits, 8), token_bytes=toy.letters, drafters=[drafter])
        result = toy.run(engine, request)
        assert 2 not in result.token_ids
        assert result.token_ids == toy.plain(logits, 8, request).token_ids
        if drafter is own:
            assert result.stats.num_accepted_tokens == 0
            assert result.stats.num_draft_tokens > 300


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_c12_draft_p_min_changes_the_length_of_drafts_only(toy, temperature):
    logits = toy.table(5, 16, scale=4.0)
    # The penalty keeps greedy text from running in a circle.
    sampling = SamplingParams(temperature=temperature, seed=6, frequency_penalty=0.5)
    request = GenerationRequest((1, 2, 3), sampling, 150)
    drafted, texts = [], set()
    for p_min in (0.0, 0.5, 0.9):
        engine = Engine(
            toy.Model(logits, 16),
            token_bytes=toy.letters,
            drafters=[DraftModelDrafter(toy.Model(toy.blurred(logits, 1, 1.0), 16))],
            policy=FixedDraftLength(6, p_min=p_min),
        )
        result = toy.run(engine, request)
        drafted.append(result.stats.num_draft_tokens)
        texts.add(result.token_ids)
    assert drafted[0] > drafted[1] > drafted[2] > 0
    assert texts == {toy.plain(logits, 16, request).token_ids}
