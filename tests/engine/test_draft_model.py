"""The draft model's own cache and limits; its output never matters, its positions and its contents do."""

import numpy as np
import pytest

from specdec_cli.decoding.drafters.base import DraftRequest
from specdec_cli.decoding.drafters.draft_model import DraftModelDrafter
from specdec_cli.decoding.policy import FixedDraftLength
from specdec_cli.engine import Engine, GenerationRequest
from specdec_cli.errors import UsageError
from specdec_cli.sampling.params import SamplingParams
from specdec_cli.sampling.sampler import Sampler

GREEDY = SamplingParams(temperature=0)


def request(context, n=4, *, sequence=1, params=GREEDY, n_vocab=16, eog_ids=(), p_min=0.0):
    sampler = Sampler(params, context, n_vocab=n_vocab)
    return DraftRequest(sequence, context, n, sampler, frozenset(eog_ids), p_min)


def held(model):
    """What the draft model's only sequence has computed."""
    (tokens,) = model.sequences.values()
    return tokens


def expected_chain(logits, context, n):
    chain = list(context)
    for _ in range(n):
        chain.append(int(logits(tuple(chain)).argmax()))
    return chain[len(context) :]


def test_proposes_its_own_greedy_continuation(toy):
    logits = toy.table(1, 16)
    model = toy.Model(logits, 16)
    (draft,) = DraftModelDrafter(model).propose([request([1, 2, 3])])
    assert draft.token_ids == expected_chain(logits, [1, 2, 3], 4)
    assert all(0 < c <= 1 for c in draft.confidences)
    assert held(model) == (1, 2, 3, *draft.token_ids[:3])  # the last one is not computed


def test_a9_after_full_acceptance_last_draft_token_and_bonus_token_are_caught_up(toy):
    logits = toy.table(1, 16)
    model = toy.Model(logits, 16)
    drafter = DraftModelDrafter(model)
    context = [1, 2, 3]
    (draft,) = drafter.propose([request(context)])
    context += [*draft.token_ids, 9]
    (second,) = drafter.propose([request(context)])
    assert second.token_ids == expected_chain(logits, context, 4)
    assert held(model)[: len(context)] == tuple(context)
    catch_up = model.forwards[4]
    assert catch_up.token_ids.tolist() == [draft.token_ids[-1], 9]
    assert catch_up.positions.tolist() == [6, 7]


def test_after_a_rejection_only_what_differs_is_computed(toy):
    model = toy.Model(toy.table(1, 16), 16)
    drafter = DraftModelDrafter(model)
    context = [1, 2, 3]
    (draft,) = drafter.propose([request(context)])
    other = (draft.token_ids[1] + 1) % 16
    context += [draft.token_ids[0], other]
    drafter.propose([request(context)])
    assert model.forwards[4].token_ids.tolist() == [other]
    assert held(model)[:5] == tuple(context)


def test_a_new_context_of_the_same_sequence_keeps_the_common_part(toy):
    model = toy.Model(toy.table(1, 16), 16)
    drafter = DraftModelDrafter(model)
    drafter.propose([request([1, 2, 3, 4, 5])])
    drafter.propose([request([1, 2, 3, 8, 9])])
    assert [len(rows.token_ids) for rows in model.forwards] == [5, 1, 1, 1, 2, 1, 1, 1]
    assert held(model)[:5] == (1, 2, 3, 8, 9)


def test_the_same_context_again_recomputes_its_last_token_only(toy):
    model = toy.Model(toy.table(1, 16), 16)
    drafter = DraftModelDrafter(model)
    context = [1, 2, 3]
    (first,) = drafter.propose([request(context)])
    (second,) = drafter.propose([request(context)])
    assert first.token_ids == second.token_ids
    assert len(model.forwards[4].token_ids) == 1


def test_requests_are_batched(toy):
    logits = toy.table(1, 16)
    model = toy.Model(logits, 16)
    contexts = [[1, 2, 3], [4], [5, 6]]
    wanted = [4, 1, 2]
    asked = [request(c, n, sequence=i) for i, (c, n) in enumerate(zip(contexts, wanted, strict=True))]
    drafts = DraftModelDrafter(model).propose(asked)
    assert [d.token_ids for d in drafts] == [
        expected_chain(logits, c, n) for c, n in zip(contexts, wanted, strict=True)
    ]
    assert [len(rows.token_ids) for rows in model.forwards] == [6, 2, 1, 1]


def test_a_long_context_is_caught_up_in_pieces(toy):
    logits = toy.table(1, 16)
    model = toy.Model(logits, 16)
    drafter = DraftModelDrafter(model, catch_up_rows=8)
    long, short = [i % 16 for i in range(20)], [1, 2]
    shapes = []
    for _ in range(3):
        drafts = drafter.propose([request(short, 2, sequence=0), request(long, 2, sequence=1)])
        shapes.append([len(d.token_ids) for d in drafts])
    # 6 rows beside the short one's 2, then 7 beside its 1, then the other 7 in one pass.
    assert shapes == [[2, 0], [2, 0], [2, 2]]
    assert drafts[1].token_ids == expected_chain(logits, long, 2)
    assert max(len(rows.token_ids) for rows in model.forwards) == 8


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_only_shared_and_allowed_ids_are_proposed(toy, temperature):
    def loves_the_rest(prefix):
        row = toy.table(1, 20)(prefix).copy()
        row[[3, 7, 15, 16, 17, 18, 19]] += 50
        return row

    params = SamplingParams(temperature=temperature, seed=5)
    drafter = DraftModelDrafter(toy.Model(loves_the_rest, 20), n_shared_vocab=15, blocked_ids=[3, 7, 99])
    (draft,) = drafter.propose([request([1, 2], 30, params=params)])
    assert len(draft.token_ids) == 30
    assert set(draft.token_ids) <= set(range(15)) - {3, 7}


def test_a_draft_vocabulary_smaller_than_the_targets(toy):
    drafter = DraftModelDrafter(toy.Model(toy.table(1, 10), 10))
    (draft,) = drafter.propose([request([1, 2], n_vocab=16)])
    assert len(draft.token_ids) == 4
    (draft,) = drafter.propose([request([1, 2, 12], n_vocab=16)])
    assert (draft.token_ids, draft.notice) == (
        [],
        "drafting stopped: the text contains a token that the draft model does not know",
    )


def test_nothing_in_common_is_refused(toy):
    with pytest.raises(UsageError, match="shares no token"):
        DraftModelDrafter(toy.Model(toy.table(1, 10), 10), n_shared_vocab=0)


def test_stops_after_an_end_token(toy):
    drafter = DraftModelDrafter(toy.Model(toy.script(2, [5, 6, 9, 4, 4], 16), 16))
    (draft,) = drafter.propose([request([1, 2], 8, eog_ids={9})])
    assert draft.token_ids == [5, 6, 9]


@pytest.mark.parametrize(("n", "drafted"), [(13, 4), (14, 3), (15, 2), (16, 1), (17, 0)])
def test_stays_within_its_context(toy, n, drafted):
    drafter = DraftModelDrafter(toy.Model(toy.table(1, 16), 16, 16))
    (draft,) = drafter.propose([request([1] * n)])
    assert len(draft.token_ids) == drafted
    assert (draft.notice is not None) == (n > 16)


def test_the_sampler_is_left_as_it_was(toy):
    params = SamplingParams(temperature=1.0, presence_penalty=2.0, seed=1)
    asked = request([1, 2, 3], params=params)
    DraftModelDrafter(toy.Model(toy.table(1, 16), 16)).propose([asked])
    fresh = Sampler(params, [1, 2, 3], n_vocab=16)
    logits = np.linspace(0, 2, 16).astype(np.float32)
    assert asked.sampler.num_accepted == 0
    assert [asked.sampler.choose(logits, t).token_id for t in range(20)] == [
        fresh.choose(logits, t).token_id for t in range(20)
    ]


def test_the_sampler_is_left_as_it_was_after_a_failure(toy):
    model = toy.Model(lambda prefix: np.full(16, np.nan if len(prefix) > 4 else 0.0), 16)
    asked = request([1, 2, 3], params=SamplingParams(temperature=0, presence_penalty=2.0))
    with pytest.raises(Exception, match="contain nan"):
        DraftModelDrafter(model).propose([asked])
    assert asked.sampler.num_accepted == 0


def test_drafts_see_penalties_of_their_own_tokens(toy):
    """The chain of a draft follows the penalised text, as the target's will."""
    flat = np.linspace(1, 0, 16).astype(np.float32)
    drafter = DraftModelDrafter(toy.Model(lambda prefix: flat, 16))
    (draft,) = drafter.propose([request([9], 5, params=SamplingParams(temperature=0, presence_penalty=5.0))])
    assert draft.token_ids == [0, 1, 2, 3, 4]


def test_release_frees_its_sequence(toy):
    model = toy.Model(toy.table(1, 16), 16)
    drafter = DraftModelDrafter(model)
    drafter.propose([request([1, 2, 3])])
    drafter.release(1)
    drafter.release(1)
    assert model.sequences == {}


def test_in_the_engine_its_sequences_end_with_the_targets(toy):
    target, draft = toy.Model(toy.table(1, 16), 16), toy.Model(toy.table(1, 16), 16)
    engine = Engine(
        target, token_bytes=toy.letters, drafters=[DraftModelDrafter(draft)], policy=FixedDraftLength(4)
    )
    toy.run(engine, GenerationRequest((1, 2, 3), GREEDY, 40))
    assert (target.sequences, draft.sequences) == ({}, {})
    toy.run(engine, GenerationRequest((1, 2, 3), GREEDY, 40, session="chat"))
    assert len(draft.sequences) == len(target.sequences) == 1
    engine.close()
    assert (target.sequences, draft.sequences) == ({}, {})
