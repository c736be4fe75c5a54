"""Sums over passes, against scripted runs counted by hand."""

import pytest

from specdec_cli.bench.harness import Strategy, Task, run_all
from specdec_cli.bench.passes import PassTotals
from specdec_cli.bench.rows import make_rows
from specdec_cli.decoding.policy import FixedDraftLength, Outcome, RoundReport
from specdec_cli.decoding.types import GenerationRequest
from specdec_cli.sampling.params import SamplingParams

OUTPUT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]


def report(*, verified, accepted, rows=None, prompt_rows=0, forward_ms=10.0, draft_ms=2.0):
    outcome = Outcome(
        sequence=0,
        drafter="d",
        confidences=(),
        num_verified=verified,
        num_accepted=accepted,
        num_emitted=accepted + 1,
        draft_ms={"d": draft_ms},
    )
    num_rows = verified + 1 if rows is None else rows
    return RoundReport(num_rows, prompt_rows, forward_ms, forward_ms + draft_ms + 1, [outcome])


def test_sums_and_the_probability_of_acceptance():
    passes = PassTotals()
    passes.observe(report(verified=3, accepted=3))  # three judged, three right
    passes.observe(report(verified=3, accepted=1))  # two judged, the third never counted
    passes.observe(report(verified=0, accepted=0, forward_ms=8, draft_ms=0.5))
    assert (passes.num_passes, passes.num_tried, passes.num_accepted) == (3, 5, 4)
    assert passes.acceptance == pytest.approx(4 / 5)
    assert passes.forward_ms == pytest.approx(28)
    assert passes.draft_ms == pytest.approx(4.5)
    assert passes.by_rows == {4: (2, 20.0), 1: (1, 8.0)}


def test_prompt_passes_are_left_out():
    passes = PassTotals()
    passes.observe(report(verified=3, accepted=3, rows=20, prompt_rows=17, forward_ms=500))
    assert passes == PassTotals()
    assert passes.acceptance is None


def test_merging_adds():
    a, b = PassTotals(), PassTotals()
    a.observe(report(verified=1, accepted=1))
    b.observe(report(verified=1, accepted=0))
    b.observe(report(verified=2, accepted=0))
    a.merge(b)
    assert a.by_rows == {2: (2, 20.0), 3: (1, 10.0)}
    assert (a.num_passes, a.num_tried, a.num_accepted, a.forward_ms, a.draft_ms) == (3, 3, 1, 30, 6)


def test_h6_h7_a_scripted_run_counted_by_hand(toy):
    """Twelve tokens, drafts of three of which every third token of the output is wrong.

    Output positions 0 to 11; a draft for positions p, p+1, p+2 is right but for positions 2, 5, 8, 11. The
    prompt pass drafts too: positions 0, 1 right, 2 wrong; it emits 3 tokens. So does each further pass:
    positions 3-5, 6-8. The last one may draft two at most, since three tokens are left: 9, 10 right, and
    11 is the bonus token.
    """

    def propose(context, max_tokens):
        start = len(context) - 2
        wanted = OUTPUT[start : start + max_tokens]
        return [1 if (start + i) % 3 == 2 else token for i, token in enumerate(wanted)]

    model = toy.Model(toy.script(2, OUTPUT, 20), 20)
    engine = toy.engine(model, toy.Scripted(propose), policy=FixedDraftLength(3))
    plain = toy.engine(toy.Model(toy.script(2, OUTPUT, 20), 20))
    task = Task("t", "c", GenerationRequest((1, 2), SamplingParams(temperature=0), len(OUTPUT)))
    runs = run_all([Strategy("none", plain), Strategy("scripted", engine)], [task], warm_up=0)
    assert [run.result.token_ids for run in runs] == [tuple(OUTPUT)] * 2
    _, passes = (run.passes for run in runs)
    assert passes.num_passes == 3
    assert passes.num_tried == 3 + 3 + 2
    assert passes.num_accepted == 2 + 2 + 2
    assert {rows: count for rows, (count, _) in passes.by_rows.items()} == {4: 2, 3: 1}
    plain_row, row = (r for r in make_rows(runs, {}) if r.category == "all")
    assert plain_row.mean_acceptance_length == 1
    assert plain_row.draft_acceptance_rate is None
    assert row.draft_acceptance_rate == pytest.approx(8 / 11)  # drafted 3 + 3 + 3 + 2, accepted 2 each
    assert row.acceptance_per_position == pytest.approx((1, 1, 0))
    assert row.mean_acceptance_length == pytest.approx(12 / 4)
    assert row.passes_per_token == pytest.approx(4 / 12)
    assert row.equal
