"""Log-probabilities are the target's own, before any processor, and the same bits with speculation (H4)."""

import numpy as np
import pytest

from specdec_cli.decoding.drafters.draft_model import DraftModelDrafter
from specdec_cli.decoding.policy import FixedDraftLength
from specdec_cli.engine import Engine, GenerationRequest
from specdec_cli.sampling.params import SamplingParams

N_VOCAB = 16


@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_h4_equal_to_plain_bit_for_bit(toy, temperature, count):
    logits = toy.table(1, N_VOCAB)
    sampling = SamplingParams(temperature=temperature, seed=4, presence_penalty=0.5)
    request = GenerationRequest((1, 2, 3), sampling, 60, logprobs=count)
    engine = Engine(
        toy.Model(logits, N_VOCAB),
        token_bytes=toy.letters,
        drafters=[DraftModelDrafter(toy.Model(toy.blurred(logits, 1, 0.5), N_VOCAB))],
        policy=FixedDraftLength(8),
    )
    result = toy.run(engine, request)
    assert result.stats.num_accepted_tokens > 20
    assert result.logprobs == toy.plain(logits, N_VOCAB, request).logprobs
    context = [1, 2, 3]
    for token_id, entry in zip(result.token_ids, result.logprobs, strict=True):
        row = logits(tuple(context)).astype(np.float64)
        expected = row - np.log(np.exp(row).sum())
        assert entry.token_id == token_id
        assert entry.logprob == pytest.approx(expected[token_id], abs=1e-12)
        assert entry.logprob < 0
        best = np.argsort(-expected, kind="stable")[:count]
        assert [i for i, _ in entry.top] == best.tolist()
        assert [p for _, p in entry.top] == pytest.approx(expected[best].tolist(), abs=1e-12)
        context.append(token_id)


def test_not_computed_unless_asked_for(toy):
    result = toy.plain(toy.table(1, N_VOCAB), N_VOCAB, GenerationRequest((1, 2), SamplingParams(), 5))
    assert result.logprobs is None
