"""Prefix reuse: within a session only, reported, and without effect on the output (F9, D9)."""

from specdec_cli.decoding.drafters.draft_model import DraftModelDrafter
from specdec_cli.decoding.drafters.ngram import NgramDrafter
from specdec_cli.engine import Engine, EngineOptions, GenerationRequest
from specdec_cli.sampling.params import SamplingParams

N_VOCAB = 16
GREEDY = SamplingParams(temperature=0)


def make(toy, model=None, *, drafters=(), **options):
    model = model or toy.Model(toy.table(1, N_VOCAB), N_VOCAB)
    return Engine(model, token_bytes=toy.letters, drafters=drafters, options=EngineOptions(**options)), model


def reuse(result):
    return result.timings.prompt_reused_n, result.timings.prompt_n


def test_a_turn_computes_only_what_is_new(toy):
    engine, model = make(toy)
    first = toy.run(engine, GenerationRequest((1, 2, 3, 4), GREEDY, 6, session="chat"))
    assert reuse(first) == (0, 4)
    turn = (1, 2, 3, 4, *first.token_ids, 7, 8)
    second = toy.run(engine, GenerationRequest(turn, GREEDY, 6, session="chat"))
    # The last token of the answer was emitted, not computed.
    assert reuse(second) == (9, 3)
    assert len(model.sequences) == 1
    fresh = toy.plain(toy.table(1, N_VOCAB), N_VOCAB, GenerationRequest(turn, GREEDY, 6))
    assert second.token_ids == fresh.token_ids


def test_the_same_prompt_again_computes_its_last_token(toy):
    engine, _ = make(toy)
    request = GenerationRequest((1, 2, 3, 4), GREEDY, 6, session=7)
    first, second = toy.run(engine, request), toy.run(engine, request)
    assert (reuse(first), reuse(second)) == ((0, 4), (3, 1))
    assert first.token_ids == second.token_ids


def test_d9_an_unrelated_turn_equals_a_fresh_process(toy):
    engine, _ = make(toy)
    toy.run(engine, GenerationRequest((1, 2, 3, 4), GREEDY, 30, session="chat"))
    other = GenerationRequest((9, 8, 7), GREEDY, 30, session="chat")
    result = toy.run(engine, other)
    assert reuse(result) == (0, 3)
    assert result.token_ids == toy.plain(toy.table(1, N_VOCAB), N_VOCAB, other).token_ids


def test_d9_a_cache_that_cannot_go_back_is_replaced(toy):
    engine, model = make(toy, toy.Model(toy.table(1, N_VOCAB), N_VOCAB, truncates=False))
    toy.run(engine, GenerationRequest((1, 2, 3, 4), GREEDY, 30, session="chat"))
    other = GenerationRequest((1, 2, 9), GREEDY, 30, session="chat")
    result = toy.run(engine, other)
    assert reuse(result) == (0, 3)
    assert result.token_ids == toy.plain(toy.table(1, N_VOCAB), N_VOCAB, other).token_ids
    assert len(model.sequences) == 1


def test_f9_nothing_is_shared_between_callers(toy):
    """No KV, and no lookup: the second request contains the beginning of the first one's secret."""
    secret = (1, 2, 3, 4, 5, 6, 7, 8)
    lookup = NgramDrafter(min_match=2)
    engine, model = make(toy, drafters=[lookup])
    for session in (None, "alice"):
        toy.run(engine, GenerationRequest(secret, GREEDY, 3, session=session))
        probe = toy.run(engine, GenerationRequest((1, 2, 3), GREEDY, 1, session=None))
        assert reuse(probe) == (0, 3)
        other = toy.run(engine, GenerationRequest((1, 2, 3), GREEDY, 1, session="bob"))
        assert reuse(other) == (0, 3)
        assert probe.stats.num_draft_tokens == other.stats.num_draft_tokens == 0
    engine.close()
    assert model.sequences == {}
    assert lookup._indexes == {}


def test_without_a_session_nothing_is_kept(toy):
    engine, model = make(toy)
    toy.run(engine, GenerationRequest((1, 2, 3), GREEDY, 5))
    assert model.sequences == {}


def test_only_so_many_are_kept_the_oldest_goes_first(toy):
    engine, model = make(toy, max_kept_sequences=2)
    for session in ("a", "b", "c"):
        toy.run(engine, GenerationRequest((1, 2, 3), GREEDY, 5, session=session))
    assert len(model.sequences) == 2
    assert reuse(toy.run(engine, GenerationRequest((1, 2, 3), GREEDY, 5, session="b")))[0] == 2
    assert reuse(toy.run(engine, GenerationRequest((1, 2, 3), GREEDY, 5, session="a")))[0] == 0


def test_nothing_is_kept_when_that_is_asked_for(toy):
    engine, model = make(toy, max_kept_sequences=0)
    toy.run(engine, GenerationRequest((1, 2, 3), GREEDY, 5, session="a"))
    assert model.sequences == {}


def test_a_session_can_be_forgotten(toy):
    engine, model = make(toy, max_kept_sequences=2)
    for session in ("a", "b"):
        toy.run(engine, GenerationRequest((1, 2, 3), GREEDY, 5, session=session))
    engine.forget("a")
    assert len(model.sequences) == 1
    engine.forget("stranger")
    engine.forget()
    assert model.sequences == {}


def test_two_requests_of_a_session_at_once(toy):
    engine, model = make(toy)
    request = GenerationRequest((1, 2, 3), GREEDY, 5, session="a")
    numbers = [engine.submit(request) for _ in range(2)]
    results = {}
    while engine.busy:
        results.update({e.sequence: e.result for e in engine.step() if hasattr(e, "result")})
    assert results[numbers[0]].token_ids == results[numbers[1]].token_ids
    assert len(model.sequences) == 1


def test_the_draft_model_keeps_its_prefix_too(toy):
    draft = toy.Model(toy.table(1, N_VOCAB), N_VOCAB)
    engine, _ = make(toy, drafters=[DraftModelDrafter(draft)])
    first = toy.run(engine, GenerationRequest((1, 2, 3, 4) * 5, GREEDY, 10, session="chat"))
    turn = GenerationRequest(((1, 2, 3, 4) * 5 + first.token_ids + (7,)), GREEDY, 10, session="chat")
    before = len(draft.forwards)
    result = toy.run(engine, turn)
    assert len(draft.forwards[before].token_ids) <= 5
    assert result.stats.draft_acceptance_rate == 1.0


def test_an_abandoned_answer_keeps_the_session_valid(toy):
    engine, model = make(toy)
    stream = engine.generate(GenerationRequest((1, 2, 3), GREEDY, 50, session="chat"))
    said = [next(stream).token_id for _ in range(5)]
    stream.close()
    assert len(model.sequences) == 1
    turn = GenerationRequest((1, 2, 3, *said, 9), GREEDY, 10, session="chat")
    result = toy.run(engine, turn)
    assert reuse(result) == (7, 2)
    assert result.token_ids == toy.plain(toy.table(1, N_VOCAB), N_VOCAB, turn).token_ids
