"""Runs to rows, one per strategy and category, and one per strategy for all: ratios of summed counters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from specdec_cli.bench.equality import Fork, find_fork
from specdec_cli.bench.harness import PLAIN, Run
from specdec_cli.bench.passes import PassTotals
from specdec_cli.bench.prompts import ALL
from specdec_cli.decoding.stats import SpecStats


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one strategy on the prompts of a category. None is undefined.

    Times are medians over repetitions per prompt, then summed: `decode_tps` is tokens after the first over
    the time after the first. Its minimum and maximum are over repetitions, None where there is but one.
    `ceiling`: the speed-up that drafts of this acceptance would bring if drafting cost nothing.
    """

    strategy: str
    draft_max: int | None
    category: str
    prompts: int
    decode_tps: float | None
    decode_tps_min: float | None
    decode_tps_max: float | None
    speedup: float | None  # of decode_tps over the plain one
    speedup_total: float | None  # the same from submission to the last token
    draft_acceptance_rate: float | None
    acceptance_per_position: tuple[float | None, ...]
    mean_acceptance_length: float | None
    passes_per_token: float | None  # target passes per token, prompt passes apart
    draft_share: float | None  # of the decode time
    overhead_share: float | None  # decode time that is neither target pass nor drafting
    ceiling: float | None
    equal: bool

    @property
    def label(self) -> str:
        """Name, with the draft length where that is a part of the strategy."""
        return self.strategy if self.draft_max is None else f"{self.strategy}@{self.draft_max}"


@dataclass(frozen=True, slots=True)
class Inequality:
    """An output that differs from plain decoding: what promise 1 rules out."""

    run: Run
    fork: Fork


def make_rows(runs: Sequence[Run], t_ms: Mapping[int, float]) -> list[Row]:
    """Rows by category, then by strategy, in order of appearance; `t_ms` is the time of a pass by its rows.

    The runs of the strategy "none" are the baseline; without them there are no speed-ups.
    """
    labels = list(dict.fromkeys(run.strategy.label for run in runs))
    categories = [*dict.fromkeys(run.task.category for run in runs), ALL]
    unequal = {id(found.run) for found in find_inequalities(runs)}
    rows = []
    for category in categories:
        part = [run for run in runs if category in (ALL, run.task.category)]
        plain = _Speed.of([run for run in part if run.strategy.label == PLAIN])
        for label in labels:
            own = [run for run in part if run.strategy.label == label]
            if not own:
                continue
            equal = not any(id(run) in unequal for run in own)
            rows.append(_row(category, own, plain, t_ms, equal=equal))
    return rows


def find_inequalities(runs: Sequence[Run]) -> list[Inequality]:
    """Runs whose ids differ from those of the first plain run of the same prompt, plain ones included."""
    expected: dict[str, tuple[int, ...]] = {}
    for run in runs:
        if run.strategy.label == PLAIN:
            expected.setdefault(run.task.id, run.result.token_ids)
    found = []
    for run in runs:
        if run.task.id in expected:
            fork = find_fork(expected[run.task.id], run.result.token_ids)
            if fork is not None:
                found.append(Inequality(run, fork))
    return found


def ceiling(t_ms: Mapping[int, float], acceptance: float | None) -> float | None:
    """Largest expected speed-up over pass sizes when every draft token is accepted with this probability.

    A pass of M rows yields (1 - a^M) / (1 - a) tokens (M for a = 1) and costs t(M): Leviathan et al. 2023,
    equation 1, with a measured t(M) and free drafts. None when t(1) or the acceptance is unknown.
    """
    if acceptance is None or 1 not in t_ms:
        return None
    return max(expected_tokens(m, acceptance) * t_ms[1] / t for m, t in t_ms.items())


def expected_tokens(rows: int, acceptance: float) -> float:
    """Tokens that a pass over a context token and `rows` - 1 draft tokens yields."""
    return float(sum(acceptance**i for i in range(rows)))


@dataclass(frozen=True, slots=True)
class _Speed:
    """Tokens and their times, summed over prompts."""

    decoded: int  # tokens after the first
    decode_ms: float
    emitted: int
    total_ms: float
    by_repetition: tuple[float, ...]  # decode tokens/s

    @property
    def decode_tps(self) -> float | None:
        return 1000 * self.decoded / self.decode_ms if self.decoded and self.decode_ms > 0 else None

    @property
    def total_tps(self) -> float | None:
        return 1000 * self.emitted / self.total_ms if self.emitted and self.total_ms > 0 else None

    @classmethod
    def of(cls, runs: Sequence[Run]) -> "_Speed":
        by_task: dict[str, list[Run]] = {}
        by_repetition: dict[int, list[Run]] = {}
        for run in runs:
            by_task.setdefault(run.task.id, []).append(run)
            by_repetition.setdefault(run.repetition, []).append(run)
        same = [group[0].result.timings for group in by_task.values()]
        rates = [_rate(group) for group in by_repetition.values()]
        return cls(
            decoded=sum(max(0, timings.predicted_n - 1) for timings in same),
            decode_ms=sum(median(r.result.timings.predicted_ms for r in group) for group in by_task.values()),
            emitted=sum(timings.predicted_n for timings in same),
            total_ms=sum(median(r.total_ms or 0.0 for r in group) for group in by_task.values()),
            by_repetition=tuple(rate for rate in rates if rate is not None),
        )


def _rate(runs: Sequence[Run]) -> float | None:
    decoded = sum(max(0, run.result.timings.predicted_n - 1) for run in runs)
    milliseconds = sum(run.result.timings.predicted_ms for run in runs)
    return 1000 * decoded / milliseconds if decoded and milliseconds > 0 else None


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _row(category: str, runs: Sequence[Run], plain: _Speed, t_ms: Mapping[int, float], *, equal: bool) -> Row:
    stats, passes = SpecStats(), PassTotals()
    for run in runs:
        stats.merge(run.result.stats)
        passes.merge(run.passes)
    speed = _Speed.of(runs)
    decode_ms = sum(run.result.timings.predicted_ms for run in runs)
    several = len(speed.by_repetition) > 1
    other_ms = decode_ms - passes.forward_ms - passes.draft_ms
    return Row(
        strategy=runs[0].strategy.name,
        draft_max=runs[0].strategy.draft_max,
        category=category,
        prompts=len({run.task.id for run in runs}),
        decode_tps=speed.decode_tps,
        decode_tps_min=min(speed.by_repetition) if several else None,
        decode_tps_max=max(speed.by_repetition) if several else None,
        speedup=_ratio(speed.decode_tps, plain.decode_tps),
        speedup_total=_ratio(speed.total_tps, plain.total_tps),
        draft_acceptance_rate=stats.draft_acceptance_rate,
        acceptance_per_position=tuple(stats.acceptance_per_position),
        mean_acceptance_length=stats.mean_acceptance_length,
        passes_per_token=_ratio(stats.num_rounds, stats.num_round_tokens),
        draft_share=_ratio(passes.draft_ms, decode_ms),
        overhead_share=_ratio(max(0.0, other_ms), decode_ms),
        ceiling=ceiling(t_ms, passes.acceptance),
        equal=equal,
    )
