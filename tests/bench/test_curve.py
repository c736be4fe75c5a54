"""t(M) and what goes with it, on a clock that the toy model moves."""

import pytest

from specdec_cli.bench import curve as curve_module
from specdec_cli.bench.curve import PREFIX, CurveOptions, measure_curve, needed_context
from specdec_cli.errors import UsageError


@pytest.fixture
def clocked(toy, monkeypatch):
    """A toy model whose pass of n rows takes 4 + n ms, and 50 % more in every fifth pass."""
    model = toy.Model(toy.constant([0.25] * 4), 4, n_ctx=1024)
    state = {"now": 0.0, "passes": 0}
    forward = model.forward

    def timed(rows):
        state["passes"] += 1
        factor = 1.5 if state["passes"] % 5 == 0 else 1.0
        state["now"] += factor * (4 + len(rows.token_ids)) / 1000
        return forward(rows)

    model.forward = timed
    monkeypatch.setattr(curve_module, "perf_counter", lambda: state["now"])
    return model


OPTIONS = CurveOptions(rows=(1, 2, 4, 8), depths=(0, 100), repetitions=9, prefills=(16,), decode_tokens=6)


def test_medians_by_rows_and_depth(clocked):
    curve = measure_curve(clocked, OPTIONS)
    assert [at.depth for at in curve.depths] == [0, 100]
    for at in curve.depths:
        assert at.t_ms == pytest.approx({1: 5.0, 2: 6.0, 4: 8.0, 8: 12.0})  # the slow fifth is no median
        assert at.t_ratio == pytest.approx({1: 1.0, 2: 1.2, 4: 1.6, 8: 2.4})
        assert 6 / (6 * 0.0075) < at.decode_tps < 6 / (6 * 0.005)
    assert curve.prefill_tps == pytest.approx({16: 16 / 0.020})


def test_passes_start_after_the_prefix_and_ask_for_all_logits(clocked):
    measure_curve(clocked, CurveOptions((1, 3), (5,), 1, (), 1))
    measured = [rows for rows in clocked.forwards if rows.positions[0] == PREFIX + 5]
    assert [len(rows.token_ids) for rows in measured] == [1, 3, 1, 3, 1]  # warm-up, one repetition, decode
    assert all(len(rows.outputs) == len(rows.token_ids) for rows in measured)
    assert clocked.sequences == {}


def test_rows_take_turns(clocked):
    measure_curve(clocked, CurveOptions((1, 2), (0,), 2, (), 1))
    lengths = [len(r.token_ids) for r in clocked.forwards if r.positions[0] == PREFIX]
    assert lengths[:6] == [1, 2, 1, 2, 1, 2]


def test_a_prompt_longer_than_the_context_is_not_measured(toy):
    model = toy.Model(toy.constant([0.5, 0.5]), 2, n_ctx=100)
    assert measure_curve(model, CurveOptions((1,), (0,), 1, (128,), 1)).prefill_tps == {128: None}


def test_depths_that_do_not_fit_are_refused(toy):
    model = toy.Model(toy.constant([0.5, 0.5]), 2, n_ctx=100)
    with pytest.raises(
        UsageError, match="--depth 50 needs a context of 130 tokens, the model is loaded with 100"
    ):
        measure_curve(model, CurveOptions((1, 16), (0, 50), 1, (), 4))
    with pytest.raises(UsageError, match="--depth -1"):
        measure_curve(model, CurveOptions((1,), (-1,), 1, (), 1))


def test_needed_context():
    assert needed_context(CurveOptions((1, 16), (0, 2048), 9, (128, 512), 48)) == 64 + 2048 + 48
    assert needed_context(CurveOptions((1, 16), (0,), 9, (128, 512), 48)) == 512
    assert needed_context(CurveOptions((1, 16), (0,), 9, (), 1)) == 64 + 16
