"""Drafters in the engine: lookups, chains of drafters, and drafters that misbehave (groups E and F)."""

import numpy as np
import pytest

from specdec_cli.decoding.drafters.base import Draft
from specdec_cli.decoding.drafters.draft_model import DraftModelDrafter
from specdec_cli.decoding.drafters.ngram import NgramDrafter
from specdec_cli.decoding.policy import FixedDraftLength
from specdec_cli.engine import Engine, GenerationRequest
from specdec_cli.sampling.params import SamplingParams

N_VOCAB = 16
GREEDY = SamplingParams(temperature=0)


def run_with(toy, drafters, request, *, logits=None, policy=None):
    notices = []
    engine = Engine(
        toy.Model(logits or toy.table(1, N_VOCAB), N_VOCAB),
        token_bytes=toy.letters,
        drafters=drafters,
        policy=policy,
        on_notice=notices.append,
    )
    return toy.run(engine, request), notices


def test_f1_match_and_draft_length_matter(toy):
    request = GenerationRequest((1, 2, 3) * 5, GREEDY, 60)
    logits = toy.table(1, N_VOCAB, order=1)
    wide, _ = run_with(
        toy, [NgramDrafter(min_match=3, max_match=3)], request, logits=logits, policy=FixedDraftLength(8)
    )
    narrow, _ = run_with(
        toy, [NgramDrafter(min_match=1, max_match=1)], request, logits=logits, policy=FixedDraftLength(1)
    )
    assert wide.token_ids == narrow.token_ids
    assert len(wide.stats.acceptance_per_position) == 8
    assert len(narrow.stats.acceptance_per_position) == 1


def test_f2_text_without_repeats_is_decoded_plainly(toy):
    wanted = list(range(1, 200))
    model = toy.Model(toy.script(1, wanted, 200), 200)
    engine = Engine(model, token_bytes=toy.letters, drafters=[NgramDrafter()])
    result = toy.run(engine, GenerationRequest((0,), GREEDY, 199))
    assert list(result.token_ids) == wanted
    assert result.stats.num_draft_tokens == 0
    assert result.stats.draft_acceptance_rate is None
    assert result.stats.mean_acceptance_length == 1.0
    assert len(model.forwards) == 199
    assert {len(rows.token_ids) for rows in model.forwards} == {1}


def test_f3_two_drafters_in_a_row_always_move_on(toy):
    logits = toy.table(1, N_VOCAB)
    request = GenerationRequest((1, 2, 3), SamplingParams(seed=1), 300)
    drafters = [NgramDrafter(min_match=2), DraftModelDrafter(toy.Model(toy.blurred(logits, 1, 1.0), N_VOCAB))]
    result, notices = run_with(toy, drafters, request, logits=logits)
    assert result.token_ids == toy.plain(logits, N_VOCAB, request).token_ids
    stats = result.stats
    assert set(stats.drafters) == {"ngram", "draft"}
    assert all(d.num_draft_tokens > 0 for d in stats.drafters.values())
    assert stats.num_rounds <= stats.num_round_tokens
    assert stats.num_accepted_tokens + stats.num_rounds == stats.num_round_tokens
    assert notices == []


def misbehave(kind, context):
    if kind == "raises":
        raise RuntimeError("lost my index")
    if kind == "raises-later" and len(context) > 20:
        raise ZeroDivisionError
    return {
        "beyond": [N_VOCAB, N_VOCAB + 1],
        "negative": [-1, 2],
        "too-many": [1] * 500,
        "half-good": [int(context[-1]), 99_999, 3],
        "raises-later": [1],
        "none": [],
    }[kind]


@pytest.mark.parametrize(
    "kind", ["beyond", "negative", "too-many", "half-good", "none", "raises", "raises-later"]
)
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_misbehaving_drafter_changes_nothing(toy, kind, temperature):
    request = GenerationRequest((1, 2, 3), SamplingParams(temperature=temperature, presence_penalty=0.3), 60)
    drafter = toy.Scripted(lambda context, n: misbehave(kind, context))
    result, notices = run_with(toy, [drafter], request, policy=FixedDraftLength(5))
    assert result.token_ids == toy.plain(toy.table(1, N_VOCAB), N_VOCAB, request).token_ids
    assert len(notices) == (1 if kind.startswith("raises") else 0)
    assert max(len(result.stats.acceptance_per_position), 0) <= 5


def test_one_failing_drafter_leaves_the_other(toy):
    def fail(context, n):
        raise OSError("disk gone")

    logits = toy.table(1, N_VOCAB)
    request = GenerationRequest((1, 2, 3), GREEDY, 60)
    drafters = [toy.Scripted(fail, name="broken"), DraftModelDrafter(toy.Model(logits, N_VOCAB))]
    result, notices = run_with(toy, drafters, request, logits=logits)
    assert notices == ["broken: drafter switched off, it failed: OSError: disk gone"]
    assert result.stats.drafters["draft"].draft_acceptance_rate == 1.0


def test_a_draft_model_with_broken_numbers_is_switched_off(toy):
    broken = toy.Model(lambda prefix: np.full(N_VOCAB, np.nan if len(prefix) > 12 else 0.0), N_VOCAB)
    request = GenerationRequest((1, 2, 3), SamplingParams(seed=2), 40)
    result, notices = run_with(toy, [DraftModelDrafter(broken)], request)
    assert result.token_ids == toy.plain(toy.table(1, N_VOCAB), N_VOCAB, request).token_ids
    assert len(notices) == 1
    assert "LogitsError" in notices[0]
    assert broken.sequences == {}


def test_e3_padding_ids_are_never_drafted(toy):
    """A draft vocabulary that is longer by padding rows which its model happens to like."""

    def padded(prefix):
        row = np.full(N_VOCAB + 8, 30.0, np.float32)
        row[:N_VOCAB] = toy.table(1, N_VOCAB)(prefix)
        return row

    request = GenerationRequest((1, 2, 3), GREEDY, 60)
    drafter = DraftModelDrafter(toy.Model(padded, N_VOCAB + 8), n_shared_vocab=N_VOCAB)
    result, _ = run_with(toy, [drafter], request)
    assert result.stats.draft_acceptance_rate == 1.0


def test_a_tree_draft_is_verified_along_its_branches(toy):
    wanted = [3, 4, 5, 6]

    class Tree:
        name, needs_prefill = "tree", False

        def propose(self, requests):
            return [Draft([9, 3, 8, 4, 5], [0.5] * 5, parents=[-1, -1, 1, 1, 3]) for _ in requests]

        def release(self, sequence):
            pass

    model = toy.Model(toy.script(1, wanted, N_VOCAB), N_VOCAB)
    engine = Engine(model, token_bytes=toy.letters, drafters=[Tree()], policy=FixedDraftLength(8))
    result = toy.run(engine, GenerationRequest((0,), GREEDY, 20, session="kept"))
    assert result.token_ids[:4] == (3, 4, 5, 6)
    assert result.stats.drafters["tree"].accepted_at[:3] == [1, 1, 1]
    (committed,) = model.sequences.values()
    assert committed == (0, *result.token_ids[:-1])
