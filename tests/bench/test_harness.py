"""The order of runs, warm-up, and what is left behind."""

from dataclasses import dataclass, field

import pytest

from specdec_cli.bench.harness import Strategy, Task, generate, recording, rotated, run_all
from specdec_cli.decoding.types import FinishEvent, GenerationRequest


@dataclass
class Recorder:
    """Stands in for an engine: notes who ran what."""

    name: str
    log: list
    observers: list = field(default_factory=list)

    def generate(self, request):
        self.log.append((self.name, request.prompt_ids, request.max_tokens))
        yield FinishEvent(0, "stop", "", None)


def strategies(log, *names):
    return [Strategy(name, Recorder(name, log)) for name in names]


def task(name, number, max_tokens=40):
    return Task(name, "c", GenerationRequest((number,), max_tokens=max_tokens))


def test_strategies_take_turns_and_rotate():
    log: list = []
    run_all(strategies(log, "none", "a", "b"), [task("x", 1), task("y", 2)], repetitions=2, warm_up=0)
    first = [("none", 1), ("a", 1), ("b", 1), ("none", 2), ("a", 2), ("b", 2)]
    second = [("a", 1), ("b", 1), ("none", 1), ("a", 2), ("b", 2), ("none", 2)]
    assert [(name, ids[0]) for name, ids, _ in log] == first + second
    everyone = strategies([], "a", "b", "c")
    assert [s.name for s in rotated(everyone, 5)] == ["c", "a", "b"]


def test_warm_up_runs_are_short_and_not_recorded():
    log: list = []
    runs = run_all(strategies(log, "none", "a"), [task("x", 1)], warm_up=2)
    assert log[:4] == [("none", (1,), 16), ("a", (1,), 16)] * 2
    assert log[4:] == [("none", (1,), 40), ("a", (1,), 40)]
    assert [run.strategy.name for run in runs] == ["none", "a"]


def test_steps_count_up():
    steps = []
    run_all(strategies([], "none", "a"), [task("x", 1)], repetitions=2, on_step=steps.append)
    assert [(s.index, s.total, s.label, s.task_id) for s in steps] == [
        (0, 4, "none", "x"),
        (1, 4, "a", "x"),
        (2, 4, "a", "x"),
        (3, 4, "none", "x"),
    ]


def test_a_task_may_have_an_engine_of_its_own():
    log: list = []
    own = Recorder("own", log)
    strategy = Strategy("predict", Recorder("shared", log), None, {"y": own})
    run_all([strategy], [task("x", 1), task("y", 2)], warm_up=0)
    assert [name for name, _, _ in log] == ["shared", "own"]


def test_labels_name_the_draft_length_of_a_sweep(toy):
    assert toy.run(strategy="draft").strategy.label == "draft"
    assert toy.run(strategy="draft", draft_max=4).strategy.label == "draft@4"


def test_observers_are_taken_off_again_even_after_a_failure(toy):
    engine = toy.engine(toy.Model(toy.constant([0.5, 0.5]), 2))

    def fail():
        with recording(engine):
            assert len(engine.observers) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert engine.observers == []


def test_a_run_takes_down_its_own_passes_only(toy):
    engine = toy.engine(toy.Model(toy.constant([0.5, 0.5]), 2))
    request = GenerationRequest((1, 1, 1), max_tokens=5)
    with recording(engine) as passes:
        generate(engine, request)
    generate(engine, request)
    assert passes.num_passes == 4  # the first of five tokens comes out of the prompt pass
    assert passes.by_rows.keys() == {1}


def test_total_time_is_from_submission_to_the_last_token(toy):
    assert toy.run(ttft_ms=50, predicted_ms=70).total_ms == 120
    assert toy.run(ttft_ms=None).total_ms is None
