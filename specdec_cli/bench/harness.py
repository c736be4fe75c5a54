"""Runs every strategy on every prompt, interleaved, so that drifts of the machine meet all of them alike."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from specdec_cli.bench.passes import PassTotals
from specdec_cli.decoding.types import FinishEvent, GenerationRequest, GenerationResult
from specdec_cli.engine import Engine

PLAIN = "none"
_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt made ready for the engine."""

    id: str
    category: str
    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to decode: an engine with its drafters and policy. `draft_max` is its draft length in a sweep.

    `engines`: those of tasks (by id) that need one of their own, as drafters with a text for one prompt do.
    """

    name: str
    engine: Engine
    draft_max: int | None = None
    engines: Mapping[str, Engine] = field(default_factory=dict)

    def engine_for(self, task: Task) -> Engine:
        """The engine that runs a task."""
        return self.engines.get(task.id, self.engine)

    @property
    def label(self) -> str:
        """Name, with the draft length where that is a part of the strategy."""
        return self.name if self.draft_max is None else f"{self.name}@{self.draft_max}"


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt, once, with one strategy."""

    task: Task
    strategy: Strategy
    repetition: int
    result: GenerationResult
    passes: PassTotals

    @property
    def total_ms(self) -> float | None:
        """From submission to the last token; None without a token."""
        timings = self.result.timings
        return None if timings.ttft_ms is None else timings.ttft_ms + timings.predicted_ms


@dataclass(frozen=True, slots=True)
class Step:
    """What is about to run: number `index` of `total`."""

    index: int
    total: int
    label: str
    task_id: str


def rotated(strategies: Sequence[Strategy], repetition: int) -> list[Strategy]:
    """The order in one repetition: as given in the first one, then moved by one place each time."""
    shift = repetition % len(strategies)
    return [*strategies[shift:], *strategies[:shift]]


def run_all(
    strategies: Sequence[Strategy],
    tasks: Sequence[Task],
    *,
    repetitions: int = 1,
    warm_up: int = 1,
    on_step: Callable[[Step], None] = lambda _: None,
) -> list[Run]:
    """Run the tasks; for each one all strategies in turn. Warm-up runs are short and not recorded."""
    for _ in range(warm_up):
        for strategy in strategies:
            generate(strategy.engine_for(tasks[0]), _shortened(tasks[0].request))
    runs: list[Run] = []
    total = repetitions * len(tasks) * len(strategies)
    for repetition in range(repetitions):
        for task in tasks:
            for strategy in rotated(strategies, repetition):
                on_step(Step(len(runs), total, strategy.label, task.id))
                engine = strategy.engine_for(task)
                with recording(engine) as passes:
                    result = generate(engine, task.request)
                runs.append(Run(task, strategy, repetition, result, passes))
    return runs


def generate(engine: Engine, request: GenerationRequest) -> GenerationResult:
    """Run one request to its end."""
    for event in engine.generate(request):
        if isinstance(event, FinishEvent):
            return event.result
    raise RuntimeError("the engine ended without a result")


@contextmanager
def recording(engine: Engine) -> Iterator[PassTotals]:
    """Take down the engine's passes while the body runs."""
    passes = PassTotals()
    engine.observers.append(passes.observe)
    try:
        yield passes
    finally:
        engine.observers.remove(passes.observe)


def _shortened(request: GenerationRequest) -> GenerationRequest:
    limit = request.max_tokens
    return replace(request, max_tokens=_WARM_UP_TOKENS if limit is None else min(limit, _WARM_UP_TOKENS))
