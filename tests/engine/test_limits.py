"""Context limits, prompts in pieces, progress (group D)."""

import numpy as np
import pytest

from specdec_cli.decoding.drafters.draft_model import DraftModelDrafter
from specdec_cli.decoding.policy import FixedDraftLength
from specdec_cli.engine import Engine, EngineOptions, GenerationRequest
from specdec_cli.errors import UsageError
from specdec_cli.sampling.candidates import LogitsError
from specdec_cli.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0)


@pytest.mark.parametrize("k", [0, 1, 8, 16])
def test_d1_ends_at_the_context_limit(toy, k):
    model = toy.Model(toy.table(1, 8), 8, 64)
    drafter = DraftModelDrafter(toy.Model(toy.table(1, 8), 8, 64))
    engine = Engine(model, token_bytes=toy.letters, drafters=[drafter], policy=FixedDraftLength(k))
    for max_tokens in (None, 100):
        result = toy.run(engine, GenerationRequest((1, 2) * 30, GREEDY, max_tokens))
        assert (len(result.token_ids), result.finish_reason) == (4, "length")


def test_d2_drafts_are_clamped_to_the_room_that_is_left(toy):
    forced = toy.Scripted(lambda context, n: [0] * 16)
    model = toy.Model(toy.constant([0.9, 0.1]), 2, 64)
    engine = Engine(model, token_bytes=toy.letters, drafters=[forced], policy=FixedDraftLength(16))
    result = toy.run(engine, GenerationRequest((1,) * 56, GREEDY, None))
    assert forced.asked == [7]  # 8 tokens fit, one of them is the target's own
    assert (len(result.token_ids), result.finish_reason) == (8, "length")
    assert result.stats.num_draft_tokens == 7


def test_h7_the_last_draft_is_counted_as_long_as_it_was(toy):
    """k = 3 and 6 tokens: 1 of the prompt pass, a round of 4, and a last round with nothing to draft."""
    drafter = DraftModelDrafter(toy.Model(toy.table(1, 8), 8))
    engine = Engine(
        toy.Model(toy.table(1, 8), 8), token_bytes=toy.letters, drafters=[drafter], policy=FixedDraftLength(3)
    )
    stats = toy.run(engine, GenerationRequest((1, 2), GREEDY, 6)).stats
    assert (stats.num_rounds, stats.num_draft_tokens, stats.num_accepted_tokens) == (2, 3, 3)
    assert stats.mean_acceptance_length == 5 / 2
    stats = toy.run(engine, GenerationRequest((1, 2), GREEDY, 8)).stats
    assert (stats.num_rounds, stats.num_draft_tokens) == (2, 3 + 2)


def test_h6_counters_of_a_scripted_run(toy):
    """Ten rounds of three drafted tokens, the number of right ones known."""
    accepted = [3, 0, 1, 2, 3, 0, 3, 1, 2, 0]
    total = sum(accepted) + len(accepted)
    wanted = [1 + i % 3 for i in range(total + 10)]
    starts = {1 + sum(a + 1 for a in accepted[:i]): a for i, a in enumerate(accepted)}

    def propose(context, n):
        start = len(context) - 2
        if start not in starts:
            return []
        right = starts[start]
        return [*wanted[start : start + right], *[0] * 3][:3]

    engine = Engine(
        toy.Model(toy.script(2, wanted, 4), 4),
        token_bytes=toy.letters,
        drafters=[toy.Scripted(propose)],
        policy=FixedDraftLength(3),
    )
    # One token more than needed, so that the last draft is not clamped.
    stats = toy.run(engine, GenerationRequest((1, 2), GREEDY, 1 + total + 3)).stats
    drafter = stats.drafters["scripted"]
    assert drafter.num_rounds == 10
    assert (stats.num_draft_tokens, stats.num_accepted_tokens) == (30, 15)
    assert stats.acceptance_per_position == [0.7, 0.5, 0.3]
    assert stats.num_rounds == 10 + 3  # three plain ones at the end
    assert stats.mean_acceptance_length == (25 + 3) / 13


@pytest.mark.parametrize("n_prompt", [64, 65, 200])
def test_a_prompt_that_leaves_no_room_is_refused(toy, n_prompt):
    engine = Engine(toy.Model(toy.constant([1.0]), 1, 64), token_bytes=toy.letters)
    request = GenerationRequest((0,) * n_prompt, GREEDY, 5)
    with pytest.raises(UsageError, match=f"the prompt has {n_prompt} tokens, the context holds 64"):
        engine.submit(request)
    with pytest.raises(UsageError, match="no room"):
        engine.generate(request)
    assert not engine.busy


def test_senseless_requests_are_refused(toy):
    engine = Engine(toy.Model(toy.constant([0.5, 0.5]), 2), token_bytes=toy.letters)
    with pytest.raises(UsageError, match="token id 2, the vocabulary has 2"):
        engine.submit(GenerationRequest((0, 2, 1)))
    with pytest.raises(UsageError, match="token id -1"):
        engine.submit(GenerationRequest((-1,)))
    with pytest.raises(UsageError, match="prompt is empty"):
        GenerationRequest(())
    with pytest.raises(UsageError, match="stop string is empty"):
        GenerationRequest((1,), stop=("a", ""))
    with pytest.raises(UsageError, match="number of tokens"):
        GenerationRequest((1,), max_tokens=-1)
    with pytest.raises(UsageError, match="logprobs"):
        GenerationRequest((1,), logprobs=-1)
    with pytest.raises(UsageError, match="logit_bias names token 5"):
        engine.submit(GenerationRequest((1,), SamplingParams(logit_bias=((5, 1.0),))))


def test_d4_a_shorter_draft_context_switches_drafting_off_with_one_notice(toy):
    logits = toy.table(1, 16)
    notices = []
    engine = Engine(
        toy.Model(logits, 16, 512),
        token_bytes=toy.letters,
        drafters=[DraftModelDrafter(toy.Model(logits, 16, 128))],
        on_notice=notices.append,
    )
    long = GenerationRequest(tuple(range(16)) * 12 + (1,) * 8, GREEDY, 50)
    assert toy.run(engine, long).token_ids == toy.plain(logits, 16, long).token_ids
    assert notices == ["draft: drafting stopped: the draft model's context of 128 tokens is full"]
    # A request that grows beyond it: drafted up to there, plain after.
    growing = GenerationRequest(tuple(range(16)) * 6, GREEDY, 100)
    result = toy.run(engine, growing)
    assert result.token_ids == toy.plain(logits, 16, growing).token_ids
    assert 15 < result.stats.num_accepted_tokens < 40
    assert len(notices) == 1


def test_d13_a_paused_draft_model_resumes_where_the_text_is(toy):
    logits = toy.table(2, 16)

    class Pause(FixedDraftLength):
        def plan(self, state, drafters):
            return [] if 20 <= state.num_emitted < 70 else super().plan(state, drafters)

    engine = Engine(
        toy.Model(logits, 16),
        token_bytes=toy.letters,
        drafters=[DraftModelDrafter(toy.Model(logits, 16))],
        policy=Pause(4),
    )
    request = GenerationRequest((1, 2, 3), SamplingParams(temperature=1.0, seed=3), 150)
    result = toy.run(engine, request)
    assert result.token_ids == toy.plain(logits, 16, request).token_ids
    assert result.stats.draft_acceptance_rate == 1.0
    assert 50 < result.stats.num_rounds < 80


@pytest.mark.parametrize("chunk", [1, 2, 5, 16, 100])
def test_prompts_are_computed_in_pieces_at_fixed_edges(toy, chunk):
    model = toy.Model(toy.table(2, 16), 16)
    engine = Engine(model, token_bytes=toy.letters, options=EngineOptions(prefill_chunk=chunk))
    request = GenerationRequest(tuple(i % 16 for i in range(33)), GREEDY, 5)
    progress = []
    events = list(engine.generate(request, lambda done, total: progress.append((done, total))))
    assert events[-1].result.token_ids == toy.plain(toy.table(2, 16), 16, request).token_ids
    edges = [0, *range(chunk, 33, chunk), 33]
    assert progress == [(edge, 33) for edge in edges]
    sizes = [len(rows.token_ids) for rows in model.forwards]
    assert sizes == [*np.diff(edges).tolist(), 1, 1, 1, 1]
    # Logits are asked for the last prompt token only.
    assert [len(rows.outputs) for rows in model.forwards] == [0] * (len(edges) - 2) + [1] * 5


def test_a_long_prompt_does_not_stop_others(toy):
    """Rows of a prompt piece and of decoding sequences share a pass."""
    model = toy.Model(toy.table(2, 16), 16)
    engine = Engine(model, token_bytes=toy.letters, options=EngineOptions(prefill_chunk=4))
    first = engine.submit(GenerationRequest((1, 2), GREEDY, 20))
    engine.step()
    engine.submit(GenerationRequest((3,) * 20, GREEDY, 2))
    spoken = [sum(event.sequence == first for event in engine.step()) for _ in range(5)]
    assert spoken == [1] * 5
    assert [len(rows.token_ids) for rows in model.forwards[1:]] == [5] * 5


def test_errors_of_the_model_leave_a_clean_engine(toy):
    def logits(prefix):
        return np.full(4, np.nan if len(prefix) == 6 else 0.0)

    model = toy.Model(logits, 4)
    engine = Engine(model, token_bytes=toy.letters)
    other = engine.submit(GenerationRequest((1,), GREEDY, 50))
    with pytest.raises(LogitsError, match="position 6 contain nan"):
        list(engine.generate(GenerationRequest((1, 2), GREEDY, 20)))
    assert not engine.busy
    assert model.sequences == {}
    assert other == 0
    assert toy.run(engine, GenerationRequest((1, 2), GREEDY, 3)).token_ids == (0, 0, 0)


def test_nothing_speculative_on_the_prompt_pass_but_free_drafts(toy):
    """A model drafter would hold up the first token; a free one rides along and counts as a round."""
    wanted = [1, 2, 3, 1, 2]
    engine = Engine(
        toy.Model(toy.script(1, wanted, 4), 4),
        token_bytes=toy.letters,
        drafters=[toy.Scripted(toy.oracle(1, wanted))],
        policy=FixedDraftLength(4),
    )
    progress = []
    *_, finish = engine.generate(GenerationRequest((0,), GREEDY, 5), lambda *step: progress.append(step))
    stats = finish.result.stats
    assert (stats.num_rounds, stats.num_round_tokens) == (1, 5)
    assert progress == [(0, 1), (1, 1)]
    slow = toy.Scripted(lambda context, n: wanted[len(context) - 1 :][:n], name="slow", needs_prefill=True)
    engine = Engine(
        toy.Model(toy.script(1, wanted, 4), 4),
        token_bytes=toy.letters,
        drafters=[slow],
        policy=FixedDraftLength(3),
    )
    stats = toy.run(engine, GenerationRequest((0,), GREEDY, 5)).stats
    assert (stats.num_rounds, stats.num_round_tokens, slow.asked) == (1, 4, [3])


def test_a_policy_sees_costs_and_outcomes(toy):
    reports, states = [], []

    class Watch(FixedDraftLength):
        def plan(self, state, drafters):
            states.append(state)
            return super().plan(state, drafters)

        def observe(self, report):
            reports.append(report)

    wanted = [1, 2, 3, 1, 2]
    drafter = toy.Scripted(lambda context, n: [*wanted[len(context) - 2 :][: n - 1], 0], needs_prefill=True)
    engine = Engine(
        toy.Model(toy.script(2, wanted, 4), 4), token_bytes=toy.letters, drafters=[drafter], policy=Watch(3)
    )
    number = engine.submit(GenerationRequest((0, 0), GREEDY, 5))
    while engine.busy:
        engine.step()
    assert [(r.num_rows, r.num_prompt_rows) for r in reports] == [(2, 2), (4, 0), (1, 0)]
    assert all(0 < r.forward_ms <= r.total_ms for r in reports)
    outcomes = [o for r in reports for o in r.outcomes]
    assert [(o.num_verified, o.num_accepted, o.num_emitted) for o in outcomes] == [
        (0, 0, 1),
        (3, 2, 3),
        (0, 0, 1),
    ]
    assert outcomes[1].drafter == "scripted"
    assert outcomes[1].draft_ms["scripted"] >= 0
    first, second = states
    assert (first.sequence, first.first_pass, first.prompt_rows, first.max_draft) == (number, True, 1, 4)
    assert (second.context_length, second.num_emitted, second.num_left, second.max_draft) == (3, 1, 4, 3)
