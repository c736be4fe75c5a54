"""Forks: found, explained, and provoked by a model that breaks row invariance."""

import numpy as np
import pytest

from specdec_cli.bench.equality import Fork, contest, find_fork
from specdec_cli.bench.harness import Strategy, Task, run_all
from specdec_cli.bench.report import as_document, fork_line, make_report
from specdec_cli.bench.rows import find_inequalities
from specdec_cli.decoding.policy import FixedDraftLength
from specdec_cli.decoding.types import GenerationRequest
from specdec_cli.sampling.params import SamplingParams


@pytest.mark.parametrize(
    ("expected", "found", "fork"),
    [
        ((), (), None),
        ((1, 2), (1, 2), None),
        ((1, 2), (1, 3), Fork(1, 2, 3)),
        ((1, 2), (1,), Fork(1, 2, None)),
        ((1,), (1, 2), Fork(1, None, 2)),
        ((), (7,), Fork(0, None, 7)),
    ],
)
def test_find_fork(expected, found, fork):
    assert find_fork(expected, found) == fork


def test_a_contest_shows_the_two_best_and_their_gap(toy):
    def logits(prefix):
        row = np.zeros(6, np.float32)
        row[3], row[5] = 2.0, 1.5
        return row + np.float32(len(prefix))

    model = toy.Model(logits, 6)
    request = GenerationRequest((1, 2), SamplingParams(temperature=0))
    found = contest(model, request, (4, 4))
    assert (found.chosen, found.best) == (3, (3, 5))
    assert found.gap == pytest.approx(0.5)
    assert model.sequences == {}


def test_a_contest_sees_penalties_of_the_output(toy):
    """With token 3 said already, a repeat penalty of 2 halves its logit: 1.0 against 1.5."""
    row = np.array([0, 0, 0, 2.0, 0, 1.5], np.float32)
    model = toy.Model(lambda _: row, 6)
    params = SamplingParams(temperature=0, repeat_penalty=2.0)
    found = contest(model, GenerationRequest((1, 2), params), (3,))
    assert (found.chosen, found.best) == (5, (3, 5))
    assert found.gap == pytest.approx(0.5)


def test_a_contest_at_a_temperature_repeats_the_choice_of_the_run(toy):
    model = toy.Model(toy.table(1, 40), 40)
    request = GenerationRequest((1, 2), SamplingParams(temperature=1.0, seed=5), 20)
    (run,) = run_all([Strategy("none", toy.engine(model))], [Task("t", "c", request)], warm_up=0)
    ids = run.result.token_ids
    for position in range(len(ids)):
        assert contest(model, request, ids[:position]).chosen == ids[position]


def test_a_lying_executor_is_detected_and_reported(toy):
    """Plain decoding computes one row a pass, so only speculation sees the lie."""
    script = [5, 6, 7, 8, 9, 10, 11, 12]
    model = toy.LyingModel(toy.script(2, script, 20), 20)
    right = toy.Scripted(lambda context, n: script[len(context) - 2 : len(context) - 2 + n])
    strategies = [
        Strategy("none", toy.engine(model)),
        Strategy("scripted", toy.engine(model, right, policy=FixedDraftLength(2))),
    ]
    task = Task("t", "c", GenerationRequest((1, 2), SamplingParams(temperature=0), len(script)))
    runs = run_all(strategies, [task])
    report = make_report(
        runs,
        find_inequalities(runs),
        t_ms={},
        settings={},
        machine={},
        contest=lambda found: contest(
            model, found.run.task.request, found.run.result.token_ids[: found.fork.position]
        ),
    )
    assert not report.equal
    (fork,) = report.forks
    assert (fork.label, fork.fork.position, fork.fork.expected) == ("scripted", 1, 6)
    assert fork.fork.found == 13  # 6 of 20, in reverse
    assert fork.contest.gap == pytest.approx(20)
    document = as_document(report, str)
    assert document["equal"] is False
    assert [run["equal"] for run in document["runs"]] == [True, False]
    assert document["forks"][0]["plain"] == {"id": 6, "text": "6"}
    assert {row["strategy"]: row["equal"] for row in document["rows"]} == {"none": True, "scripted": False}
    line = fork_line(fork, str)
    assert "prompt t, strategy scripted, output token 1: plain has 6 '6', this has 13 '13'" in line
    assert "top-2 gap 20" in line
    assert report.advice.startswith("Do not use scripted")


def test_the_honest_model_passes_the_same_test(toy):
    script = [5, 6, 7, 8, 9, 10, 11, 12]
    model = toy.Model(toy.script(2, script, 20), 20)
    right = toy.Scripted(lambda context, n: script[len(context) - 2 : len(context) - 2 + n])
    strategies = [
        Strategy("none", toy.engine(model)),
        Strategy("scripted", toy.engine(model, right, policy=FixedDraftLength(2))),
    ]
    task = Task("t", "c", GenerationRequest((1, 2), SamplingParams(temperature=0), len(script)))
    assert find_inequalities(run_all(strategies, [task])) == []
