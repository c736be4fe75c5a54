"""A finished benchmark as a document for programs. Figures as in rows.py; undefined ones are null."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specdec_cli.bench.advice import advise, best_lengths
from specdec_cli.bench.equality import Contest, Fork
from specdec_cli.bench.harness import Run
from specdec_cli.bench.rows import Inequality, Row, ceiling, make_rows


@dataclass(frozen=True, slots=True)
class ForkReport:
    """An inequality and how close the target's choice was where the outputs part."""

    prompt_id: str
    label: str  # of the strategy
    fork: Fork
    contest: Contest
    repetition: int = 0


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Everything that was measured. `settings` and `machine` describe how and where."""

    runs: tuple[Run, ...]
    rows: tuple[Row, ...]
    forks: tuple[ForkReport, ...]
    t_ms: Mapping[int, float]  # rows of a target pass -> median time; empty when not measured
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]

    @property
    def equal(self) -> bool:
        """Whether every output equals that of plain decoding."""
        return not self.forks

    @property
    def advice(self) -> str:
        """One sentence."""
        return advise(self.rows)

    @property
    def ceiling(self) -> float | None:
        """Speed-up that free drafts would bring if all of them were accepted: max M t(1)/t(M)."""
        return ceiling(self.t_ms, 1.0)


def make_report(
    runs: Sequence[Run],
    inequalities: Sequence[Inequality],
    *,
    t_ms: Mapping[int, float],
    settings: Mapping[str, Any],
    machine: Mapping[str, Any],
    contest: Callable[[Inequality], Contest],
) -> BenchReport:
    """Put a report together; `contest` asks the target about a fork."""
    forks = [
        ForkReport(
            prompt_id=found.run.task.id,
            label=found.run.strategy.label,
            fork=found.fork,
            contest=contest(found),
            repetition=found.run.repetition,
        )
        for found in inequalities
    ]
    return BenchReport(
        runs=tuple(runs),
        rows=tuple(make_rows(runs, t_ms)),
        forks=tuple(forks),
        t_ms=t_ms,
        settings=settings,
        machine=machine,
    )


def as_document(report: BenchReport, token_text: Callable[[int], str]) -> dict[str, Any]:
    """The JSON of `bench`."""
    first = report.t_ms.get(1)
    return {
        "rows": [row_document(row) for row in report.rows],
        "equal": report.equal,
        "forks": [fork_document(fork, token_text) for fork in report.forks],
        "advice": report.advice,
        "best_draft_length": best_lengths(report.rows),
        "ceiling": rounded(report.ceiling, 3),
        "t_ms": {rows: rounded(time, 3) for rows, time in report.t_ms.items()},
        "t_ratio": {rows: rounded(time / first, 3) for rows, time in report.t_ms.items()} if first else {},
        "settings": dict(report.settings),
        "machine": dict(report.machine),
        "runs": [run_document(run, report.forks) for run in report.runs],
    }


def row_document(row: Row) -> dict[str, Any]:
    """One row; floats rounded to what is worth reading."""
    return {key: _rounded_value(value) for key, value in asdict(row).items()}


def run_document(run: Run, forks: Sequence[ForkReport] = ()) -> dict[str, Any]:
    """The raw record of one run."""
    result, timings, passes = run.result, run.result.timings, run.passes
    key = (run.task.id, run.strategy.label, run.repetition)
    return {
        "prompt": run.task.id,
        "category": run.task.category,
        "strategy": run.strategy.name,
        "draft_max": run.strategy.draft_max,
        "repetition": run.repetition,
        "prompt_n": timings.prompt_n,
        "prompt_ms": rounded(timings.prompt_ms, 3),
        "ttft_ms": rounded(timings.ttft_ms, 3),
        "predicted_n": timings.predicted_n,
        "predicted_ms": rounded(timings.predicted_ms, 3),
        "predicted_per_second": rounded(timings.predicted_per_second, 3),
        "target_ms": rounded(passes.forward_ms, 3),
        "draft_ms": rounded(passes.draft_ms, 3),
        "passes_by_rows": {
            rows: {"passes": count, "ms": rounded(ms, 3)}
            for rows, (count, ms) in sorted(passes.by_rows.items())
        },
        "speculative_decoding": result.stats.as_dict(),
        "finish_reason": result.finish_reason,
        "token_ids_sha256": digest(result.token_ids),
        "equal": key not in {(fork.prompt_id, fork.label, fork.repetition) for fork in forks},
    }


def fork_document(report: ForkReport, token_text: Callable[[int], str]) -> dict[str, Any]:
    """Where two outputs part; `position` counts from the first token of the output."""

    def token(token_id: int | None) -> dict[str, Any] | None:
        return None if token_id is None else {"id": token_id, "text": token_text(token_id)}

    gap = report.contest.gap
    return {
        "prompt": report.prompt_id,
        "strategy": report.label,
        "repetition": report.repetition,
        "position": report.fork.position,
        "plain": token(report.fork.expected),
        "found": token(report.fork.found),
        "top_2": [token(token_id) for token_id in report.contest.best],
        "top_2_gap": gap if gap < float("inf") else None,
        "recomputed": token(report.contest.chosen),
    }


def fork_line(report: ForkReport, token_text: Callable[[int], str]) -> str:
    """The same in one line for people."""

    def token(token_id: int | None) -> str:
        return "the end" if token_id is None else f"{token_id} {token_text(token_id)!r}"

    return (
        f"FORK: prompt {report.prompt_id}, strategy {report.label}, output token {report.fork.position}: "
        f"plain has {token(report.fork.expected)}, this has {token(report.fork.found)}; "
        f"top-2 gap {report.contest.gap:.3g}, recomputed {token(report.contest.chosen)}"
    )


def digest(token_ids: Sequence[int]) -> str:
    """A short name for an output: equal outputs have equal ones."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()


def rounded(value: float | None, digits: int) -> float | None:
    """Round what is defined."""
    return None if value is None else round(value, digits)


def _rounded_value(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, tuple):
        return [_rounded_value(item) for item in value]
    return value
