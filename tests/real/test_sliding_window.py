"""Gemma-3 beyond its 512-token window, with drafts that are rejected and drafts that are kept (D7, D9)."""

import pytest

from specdec_cli.decoding.drafters.base import Draft
from specdec_cli.decoding.policy import FixedDraftLength
from specdec_cli.engine import Engine, GenerationRequest
from specdec_cli.loader import LoadOptions, choose_executor, load_model
from specdec_cli.sampling.params import SamplingParams

pytestmark = pytest.mark.real

WINDOW, N_TOKENS = 512, 700


@pytest.fixture(scope="module")
def gemma(model_path):
    if choose_executor("native", lambda _: None) != "native":
        pytest.skip("the native executor is not available")
    return load_model(model_path("gemma3-270m"), LoadOptions(executor="native", n_ctx=2048))


class Recalling:
    """Drafts a known continuation with every third token wrong: each round keeps some and rejects some."""

    name = "recalling"
    needs_prefill = False

    def __init__(self, answer, n_vocab):
        self.answer, self.n_vocab = answer, n_vocab

    def propose(self, requests):
        drafts = []
        for request in requests:
            done = len(request.context) - request.num_prompt
            known = self.answer[done : done + request.max_tokens]
            wrong = [(t + 1) % self.n_vocab if (done + i) % 3 == 2 else t for i, t in enumerate(known)]
            drafts.append(Draft(wrong, [1.0] * len(wrong)))
        return drafts

    def release(self, sequence):
        pass


def generate(engine, ids, *, temperature, n=N_TOKENS, session=None):
    request = GenerationRequest(
        tuple(ids), SamplingParams(temperature=temperature, seed=3), n, ignore_eos=True, session=session
    )
    *_, finish = engine.generate(request)
    return finish.result


def engine_for(gemma, drafters=(), k=0):
    return Engine(
        gemma.model,
        token_bytes=gemma.tokenizer.token_bytes,
        drafters=drafters,
        policy=FixedDraftLength(k),
        on_notice=pytest.fail,
    )


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_d7_rejected_drafts_past_the_window(gemma, temperature):
    ids = gemma.tokenizer.encode("The history of the lighthouse began", add_bos=True)
    plain = generate(engine_for(gemma), ids, temperature=temperature)
    assert len(plain.token_ids) == N_TOKENS > WINDOW
    for k in (3, 7):
        drafter = Recalling(plain.token_ids, gemma.model.n_vocab)
        drafted = generate(engine_for(gemma, [drafter], k), ids, temperature=temperature)
        assert drafted.token_ids == plain.token_ids
        assert 0 < drafted.stats.num_accepted_tokens < drafted.stats.num_draft_tokens


def test_d9_an_unrelated_turn_after_a_long_one_equals_a_fresh_sequence(gemma):
    long = gemma.tokenizer.encode("word " * 600, add_bos=True)
    other = gemma.tokenizer.encode("An entirely different text: rivers of Europe", add_bos=True)
    engine = engine_for(gemma)
    generate(engine, long, temperature=0, n=20, session="chat")
    second = generate(engine, other, temperature=0, n=60, session="chat")
    fresh = generate(engine_for(gemma), other, temperature=0, n=60)
    assert second.token_ids == fresh.token_ids
    assert second.timings.prompt_reused_n == 1  # the beginning-of-sequence token
