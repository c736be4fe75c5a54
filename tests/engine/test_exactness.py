"""Promise 1 on toy models: speculative output equals plain output, whatever drafts, lengths, batches,
settings.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.decoding.drafters.base import ROOT, Draft
from specdec_cli.decoding.drafters.draft_model import DraftModelDrafter
from specdec_cli.decoding.drafters.ngram import NgramDrafter
from specdec_cli.decoding.policy import Attempt, FixedDraftLength
from specdec_cli.engine import Engine, EngineOptions, FinishEvent, GenerationRequest
from specdec_cli.sampling.params import SamplingParams

N_VOCAB = 16
EOG = 15


class Erratic(FixedDraftLength):
    """Another length in every round and for every sequence, a pause now and then, and sometimes a cut
    draft.
    """

    def __init__(self, seed, longest):
        super().__init__()
        object.__setattr__(self, "seed", seed)
        object.__setattr__(self, "longest", longest)

    def number(self, state, modulus):
        return (self.seed * 7919 + state.context_length * 31 + state.sequence * 17) % 1009 % modulus

    def plan(self, state, drafters):
        length = self.number(state, self.longest + 1)
        names = [d.name for d in drafters]
        return [Attempt(name, length) for name in (names if length % 2 else names[::-1])]

    def keep(self, state, drafter, draft):
        return max(1, len(draft.token_ids) - self.number(state, 3))


class TreeDrafter:
    """Two branches per draft: the one of a model drafter, and the same with its first token replaced."""

    name = "tree"
    needs_prefill = True

    def __init__(self, inner):
        self.inner = inner

    def propose(self, requests):
        return [
            self.fork(draft, request)
            for draft, request in zip(self.inner.propose(requests), requests, strict=True)
        ]

    def fork(self, draft, request):
        ids = draft.token_ids[: request.max_tokens // 2]
        if not ids:
            return Draft()
        chain = [ROOT, *range(len(ids) - 1)]
        twin = [ROOT, *range(len(ids), 2 * len(ids) - 1)]
        other = [(ids[0] + 1) % N_VOCAB, *ids[1:]]
        return Draft(other + ids, [0.5] * 2 * len(ids), chain + twin)

    def release(self, sequence):
        self.inner.release(sequence)


def drafters_of(toy, kind, logits, seed):
    def model(amount):
        return toy.Model(toy.blurred(logits, seed, amount), N_VOCAB)

    return {
        "ngram": lambda: [NgramDrafter(min_match=1)],
        "good": lambda: [DraftModelDrafter(model(0.5))],
        "fair": lambda: [DraftModelDrafter(model(2.0), catch_up_rows=3)],
        "bad": lambda: [DraftModelDrafter(toy.Model(toy.table(seed + 999, N_VOCAB), N_VOCAB))],
        "both": lambda: [NgramDrafter(min_match=2), DraftModelDrafter(model(1.0), blocked_ids=[3])],
        "tree": lambda: [TreeDrafter(DraftModelDrafter(model(1.0)))],
    }[kind]()


KINDS = ["ngram", "good", "fair", "bad", "both", "tree"]

sampling_settings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 0, 0.3, 0.8, 1.0, 2.0]),
    top_k=st.sampled_from([0, 2, 5, 40]),
    top_p=st.sampled_from([0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.3]),
    repeat_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.8]),
    repeat_last_n=st.sampled_from([-1, 0, 3, 64]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -0.3]),
    logit_bias=st.sampled_from([(), ((3, -100.0),), ((1, 2.0), (2, float("-inf")))]),
    seed=st.integers(0, 2**64 - 1),
)

requests = st.builds(
    GenerationRequest,
    prompt_ids=st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=20).map(tuple),
    sampling=sampling_settings,
    max_tokens=st.one_of(st.integers(1, 60), st.none()),
    stop=st.sampled_from([(), ("ab",), ("c", "dd")]),
    eog_ids=st.sampled_from([frozenset(), frozenset({EOG})]),
    logprobs=st.sampled_from([None, None, 2]),
    ignore_eos=st.booleans(),
)


def visible(result):
    """All of a result that must not depend on speculation."""
    return (result.token_ids, result.text, result.finish_reason, result.logprobs)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 1000),
    order=st.integers(0, 3),
    request=requests,
    kind=st.sampled_from(KINDS),
    lengths=st.tuples(st.sampled_from([1, 2, 3, 4, 7, 15]), st.booleans()),
)
def test_a2_output_equals_plain(toy, seed, order, request, kind, lengths):
    logits = toy.table(seed, N_VOCAB, order=order)
    length, erratic = lengths
    policy = Erratic(seed, length) if erratic else FixedDraftLength(length)
    engine = Engine(
        toy.Model(logits, N_VOCAB, 80),
        token_bytes=toy.letters,
        drafters=drafters_of(toy, kind, logits, seed),
        policy=policy,
    )
    assert visible(toy.run(engine, request)) == visible(toy.plain(logits, N_VOCAB, request, n_ctx=80))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    batch=st.lists(requests, min_size=1, max_size=5),
    kind=st.sampled_from(KINDS),
    length=st.integers(1, 6),
    limits=st.tuples(st.integers(1, 4), st.sampled_from([1, 3, 7, 512])),
    pauses=st.lists(st.integers(0, 5), max_size=4),
)
def test_a2_output_does_not_depend_on_the_batch(toy, seed, batch, kind, length, limits, pauses):
    """Sequences that join while others are under way, more than fit, prompts in pieces, each with its own
    length.
    """
    logits = toy.table(seed, N_VOCAB)
    model = toy.Model(logits, N_VOCAB, 80)
    engine = Engine(
        model,
        token_bytes=toy.letters,
        drafters=drafters_of(toy, kind, logits, seed),
        policy=Erratic(seed, length),
        options=EngineOptions(max_sequences=limits[0], prefill_chunk=limits[1]),
    )
    events, numbers = [], []
    for request, pause in zip(batch, [*pauses, 0, 0, 0, 0, 0], strict=False):
        numbers.append(engine.submit(request))
        for _ in range(pause):
            events += engine.step()
    while engine.busy:
        events += engine.step()
    results = {e.sequence: e.result for e in events if isinstance(e, FinishEvent)}
    assert sorted(results) == numbers
    for number, request in zip(numbers, batch, strict=True):
        assert visible(results[number]) == visible(toy.plain(logits, N_VOCAB, request, n_ctx=80))
    assert model.sequences == {}


def greedy(prompt, n, **options):
    return GenerationRequest(tuple(prompt), SamplingParams(temperature=0), n, **options)


def test_a1_draft_is_checked_against_the_row_before_it(toy):
    """Prompt 1 1 1, the lookup drafts 1, the target wants 2."""
    logits = toy.script(3, [2, 3], 5)
    engine = Engine(
        toy.Model(logits, 5),
        token_bytes=toy.letters,
        drafters=[NgramDrafter(min_match=2)],
        policy=FixedDraftLength(1),
    )
    result = toy.run(engine, greedy([1, 1, 1], 3))
    assert result.token_ids == (2, 3, 0)
    assert result.stats.num_draft_tokens >= 1
    assert result.stats.num_accepted_tokens == 0


def test_a6_nothing_follows_an_end_token_at_the_end_of_an_accepted_draft(toy):
    wanted = [4, 5, 6, EOG, 7, 7]
    model = toy.Model(toy.script(2, wanted, N_VOCAB), N_VOCAB)
    engine = Engine(
        model,
        token_bytes=toy.letters,
        drafters=[toy.Scripted(toy.oracle(2, wanted))],
        policy=FixedDraftLength(3),
    )
    result = toy.run(engine, greedy([1, 2], 50, eog_ids=frozenset({EOG})))
    assert result.token_ids == (4, 5, 6, EOG)
    assert result.finish_reason == "stop"
    assert result.text == "efg"


def test_a7_draft_equal_to_target_is_always_accepted(toy):
    """At temperature 0 and above: the same noise, the same penalties, position for position."""
    logits = toy.table(3, N_VOCAB)
    for options in (
        {"temperature": 0},
        {"temperature": 1.0, "seed": 5, "frequency_penalty": 0.3, "top_p": 0.9},
    ):
        engine = Engine(
            toy.Model(logits, N_VOCAB),
            token_bytes=toy.letters,
            drafters=[DraftModelDrafter(toy.Model(logits, N_VOCAB))],
            policy=FixedDraftLength(7),
        )
        result = toy.run(engine, GenerationRequest((1, 2, 3), SamplingParams(**options), 120))
        assert result.stats.draft_acceptance_rate == 1.0
        assert result.stats.acceptance_per_position == [1.0] * 7
        assert result.stats.num_rounds == 15  # 1 token of the prompt pass, 14 rounds of 8, 1 of what is left


def test_a8_an_unrelated_draft_is_hardly_ever_accepted(toy):
    logits = toy.table(3, 200)
    engine = Engine(
        toy.Model(logits, 200),
        token_bytes=toy.letters,
        drafters=[DraftModelDrafter(toy.Model(toy.table(4, 200), 200))],
    )
    request = greedy([1, 2, 3], 150)
    result = toy.run(engine, request)
    assert visible(result) == visible(toy.plain(logits, 200, request))
    assert result.stats.num_draft_tokens > 400
    assert result.stats.draft_acceptance_rate < 0.1


@pytest.mark.parametrize("penalty", ["repeat_penalty", "presence_penalty", "frequency_penalty"])
def test_c7_penalties_see_accepted_tokens_once_and_rejected_ones_never(toy, penalty):
    logits = toy.table(8, N_VOCAB, order=1)
    request = GenerationRequest((1, 2, 3), SamplingParams(temperature=0, **{penalty: 1.5}), 100)
    expected = toy.plain(logits, N_VOCAB, request)
    for size in (2, 8, 48):
        for kind in ("ngram", "fair", "tree"):
            engine = Engine(
                toy.Model(logits, N_VOCAB),
                token_bytes=toy.letters,
                drafters=drafters_of(toy, kind, logits, 1),
                policy=FixedDraftLength(size),
            )
            assert visible(toy.run(engine, request)) == visible(expected)


def test_c6_frequency_penalty_works_in_both_directions(toy):
    logits = toy.table(8, N_VOCAB, order=1, scale=1.0)
    texts = {}
    for penalty in (-2.0, 0.0, 2.0):
        request = GenerationRequest((1, 2, 3), SamplingParams(temperature=0, frequency_penalty=penalty), 60)
        engine = Engine(
            toy.Model(logits, N_VOCAB), token_bytes=toy.letters, drafters=[NgramDrafter(min_match=1)]
        )
        texts[penalty] = toy.run(engine, request).token_ids
        assert texts[penalty] == toy.plain(logits, N_VOCAB, request).token_ids
    assert len(set(texts.values())) == 3
    assert len(set(texts[-2.0])) < len(set(texts[2.0]))


def test_c9_seed_decides(toy):
    logits = toy.table(8, N_VOCAB)

    def text(seed):
        request = GenerationRequest((1, 2), SamplingParams(temperature=2.0, seed=seed), 50)
        engine = Engine(
            toy.Model(logits, N_VOCAB), token_bytes=toy.letters, drafters=[NgramDrafter(min_match=1)]
        )
        return toy.run(engine, request)

    assert text(42).token_ids == text(42).token_ids
    assert text(42).token_ids != text(43).token_ids
    assert text(42).seed == 42
