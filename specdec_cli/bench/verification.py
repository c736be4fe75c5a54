"""Promise 1 on real models: every strategy, draft length and temperature against plain decoding."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from specdec_cli.bench.equality import contest, find_fork
from specdec_cli.bench.harness import PLAIN, Step, Strategy, Task, generate
from specdec_cli.bench.report import ForkReport
from specdec_cli.decoding.stats import SpecStats
from specdec_cli.decoding.types import GenerationRequest
from specdec_cli.protocols import LanguageModel

RESTART = "restart"  # label of plain decoding in a fresh process

References = Mapping[tuple[str, float], Sequence[int]]  # (prompt id, temperature) -> ids of plain decoding


@dataclass(slots=True)
class Tally:
    """Outcome of one strategy at one temperature."""

    label: str
    temperature: float
    runs: int = 0
    tokens: int = 0
    forks: int = 0
    draft_acceptance_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """All outcomes."""

    tallies: tuple[Tally, ...]
    forks: tuple[ForkReport, ...]
    references: References

    @property
    def equal(self) -> bool:
        """Whether no output differs from plain decoding."""
        return not self.forks

    @property
    def num_runs(self) -> int:
        """Outputs that were compared."""
        return sum(tally.runs for tally in self.tallies)

    @property
    def num_tokens(self) -> int:
        """Tokens of them."""
        return sum(tally.tokens for tally in self.tallies)


def at_temperature(task: Task, temperature: float) -> GenerationRequest:
    """The task's request at another temperature."""
    return replace(task.request, sampling=replace(task.request.sampling, temperature=temperature))


def plain_outputs(
    plain: Strategy,
    tasks: Sequence[Task],
    temperatures: Sequence[float],
    on_step: Callable[[Step], None] = lambda _: None,
) -> dict[tuple[str, float], tuple[int, ...]]:
    """Ids of plain decoding."""
    outputs: dict[tuple[str, float], tuple[int, ...]] = {}
    total = len(tasks) * len(temperatures)
    for temperature in temperatures:
        for task in tasks:
            on_step(Step(len(outputs), total, PLAIN, task.id))
            result = generate(plain.engine, at_temperature(task, temperature))
            outputs[task.id, temperature] = result.token_ids
    return outputs


def verify_all(
    model: LanguageModel,
    references: References,
    strategies: Sequence[Strategy],
    tasks: Sequence[Task],
    temperatures: Sequence[float],
    *,
    on_step: Callable[[Step], None] = lambda _: None,
    on_fork: Callable[[ForkReport], None] = lambda _: None,
) -> Verification:
    """Run every strategy on every task at every temperature and compare with `references`."""
    tallies, forks = [], []
    total = len(strategies) * len(tasks) * len(temperatures)
    index = 0
    for temperature in temperatures:
        for strategy in strategies:
            tally, stats = Tally(strategy.label, temperature), SpecStats()
            for task in tasks:
                on_step(Step(index, total, f"{strategy.label} at temperature {temperature:g}", task.id))
                index += 1
                request = at_temperature(task, temperature)
                result = generate(strategy.engine_for(task), request)
                stats.merge(result.stats)
                tally.runs += 1
                tally.tokens += len(result.token_ids)
                fork = fork_report(
                    model,
                    task,
                    temperature,
                    strategy.label,
                    references[task.id, temperature],
                    result.token_ids,
                )
                if fork is not None:
                    tally.forks += 1
                    forks.append(fork)
                    on_fork(fork)
            tally.draft_acceptance_rate = stats.draft_acceptance_rate
            tallies.append(tally)
    return Verification(tuple(tallies), tuple(forks), references)


def compare_outputs(
    model: LanguageModel, references: References, others: References, tasks: Sequence[Task]
) -> Iterator[tuple[Tally, list[ForkReport]]]:
    """Compare plain outputs of this process with those of another one, temperature by temperature."""
    by_id = {task.id: task for task in tasks}
    for temperature in dict.fromkeys(temperature for _, temperature in references):
        tally, forks = Tally(RESTART, temperature), []
        for (task_id, at), expected in references.items():
            if at != temperature:
                continue
            found = others[task_id, at]
            tally.runs += 1
            tally.tokens += len(found)
            fork = fork_report(model, by_id[task_id], at, RESTART, expected, found)
            if fork is not None:
                tally.forks += 1
                forks.append(fork)
        yield tally, forks


def fork_report(
    model: LanguageModel,
    task: Task,
    temperature: float,
    label: str,
    expected: Sequence[int],
    found: Sequence[int],
) -> ForkReport | None:
    """Where an output leaves that of plain decoding and how close the choice was; None when it does not."""
    fork = find_fork(expected, found)
    if fork is None:
        return None
    where = contest(model, at_temperature(task, temperature), expected[: fork.position])
    return ForkReport(task.id, f"{label} at temperature {temperature:g}", fork, where)
