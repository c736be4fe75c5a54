"""`specdec bench`: strategies on real prompts against plain decoding, or the cost of passes (--curve)."""

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from specdec_cli.cli.arguments import given_flags
from specdec_cli.cli.bench_options import (
    BenchGenerationOptions,
    BenchOutputOptions,
    CurveModeOptions,
    Format,
    MeasureOptions,
    PromptSetOptions,
    StrategyOptions,
    parse_lengths,
)
from specdec_cli.cli.console import Reporter, is_terminal
from specdec_cli.cli.flatten import with_option_groups
from specdec_cli.cli.options import CommonOptions, Executor, ModelOptions, TemplateOptions
from specdec_cli.cli.plain import print_json, print_text
from specdec_cli.errors import UsageError

if TYPE_CHECKING:
    from specdec_cli.bench.harness import Step
    from specdec_cli.bench.prompts import PromptSet
    from specdec_cli.bench.report import BenchReport
    from specdec_cli.cli.strategies import Workshop
    from specdec_cli.loader import LoadedModel

_SWEEP = "1-8"
_REPETITIONS, _WIDTH = 3, 20
_MODEL_FIELDS = ("model", "ctx_size", "threads", "executor", "draft_model", "verbose", "debug")
_MEANINGFUL_WITH_CURVE = (*_MODEL_FIELDS, "curve", "depth", "repetitions", "isa", "output", "plot")


@with_option_groups
def bench(
    *,
    context: typer.Context,
    prompt_set: PromptSetOptions,
    template: TemplateOptions,
    model: ModelOptions,
    generation: BenchGenerationOptions,
    spec: StrategyOptions,
    measure: MeasureOptions,
    mode: CurveModeOptions,
    destination: BenchOutputOptions,
    common: CommonOptions,
) -> None:
    """Compare strategies on real prompts with plain decoding: speed, acceptance, and equality of the output.

    Strategies take turns prompt by prompt, plain decoding first; the order rotates with each repetition. Ends
    with advice. Exit code 1 when an output differs from plain decoding.
    """
    if destination.plot is not None:
        from specdec_cli.bench.plot import check_plot

        check_plot(destination.plot)
    check_repetitions(measure)
    force_isa(measure.isa, model.executor)
    reporter = Reporter(verbose=common.verbose)
    if mode.curve:
        from specdec_cli.cli.bench_curve import run_curve

        _refuse_without_meaning(context)
        run_curve(model, spec.draft_model, measure, mode, destination, reporter)
        return
    if mode.depth is not None:
        raise UsageError("--depth belongs to --curve")
    report, token_text = _measure(prompt_set, template, model, generation, spec, measure, reporter)
    _print(report, token_text, destination)
    if not report.equal:
        raise typer.Exit(1)


def force_isa(name: str | None, executor: Executor) -> None:
    """Make the native engine use an instruction set; works only before a model is loaded."""
    if name is None:
        return
    if executor is not Executor.NATIVE:
        raise UsageError(f"--isa {name}: only the native executor has instruction sets")
    os.environ["SPECDEC_FORCE_ISA"] = name
    from specdec_cli.bench.machine import native_info

    info = native_info()
    if "problem" in info:
        raise UsageError(f"--isa {name}: {info['problem']}")
    if info["isa"] != name:  # chosen once per process
        raise UsageError(f"--isa {name}: this process uses {info['isa']} already")


def load_average(reporter: Reporter) -> float:
    """What the machine did in the last minute, in runnable tasks; says so when that was much."""
    from specdec_cli.bench.soundness import machine_warnings
    from specdec_cli.runtime.device import usable_cores

    load = os.getloadavg()[0]
    for warning in machine_warnings(load, usable_cores()):
        reporter.notice(warning)
    return round(load, 2)


def check_repetitions(measure: MeasureOptions) -> None:
    """Raise UsageError for numbers of runs that make no sense."""
    if measure.repetitions is not None and measure.repetitions < 1:
        raise UsageError(f"-r {measure.repetitions}: expected at least 1 repetition")
    if measure.warm_up < 0:
        raise UsageError(f"--warm-up {measure.warm_up}: expected 0 or more")


def sweep_lengths(measure: MeasureOptions) -> tuple[int, ...]:
    """Draft lengths to sweep over; none without --sweep. Raises UsageError."""
    if not measure.sweep:
        if measure.draft_lengths is not None:
            raise UsageError("--draft-lengths belongs to --sweep; --draft-max sets one length")
        return ()
    return parse_lengths(measure.draft_lengths or _SWEEP, "--draft-lengths", minimum=1)


def _refuse_without_meaning(context: typer.Context) -> None:
    """Raise UsageError for options on the command line that --curve would have to ignore."""
    idle = [flag for name, flag in given_flags(context).items() if name not in _MEANINGFUL_WITH_CURVE]
    if idle:
        raise UsageError(f"{', '.join(idle)}: no meaning with --curve, which runs no prompts")


def _measure(
    prompt_set: PromptSetOptions,
    template: TemplateOptions,
    model: ModelOptions,
    generation: BenchGenerationOptions,
    spec: StrategyOptions,
    measure: MeasureOptions,
    reporter: Reporter,
) -> "tuple[BenchReport, Any]":
    """Run everything; returns the report and what turns ids into text."""
    from specdec_cli.bench.equality import contest
    from specdec_cli.bench.harness import run_all
    from specdec_cli.bench.prompts import load_prompts
    from specdec_cli.bench.report import make_report
    from specdec_cli.bench.rows import find_inequalities
    from specdec_cli.bench.soundness import prompt_warnings, run_warnings
    from specdec_cli.cli.strategies import Workshop

    prompts = load_prompts(prompt_set.prompts).limited(prompt_set.per_category)
    lengths = sweep_lengths(measure)
    repetitions = measure.repetitions or _REPETITIONS
    with Workshop(model, generation, spec, template, prompts=prompts.prompts, reporter=reporter) as shop:
        plans = shop.plans(lengths)
        load = load_average(reporter)
        strategies = [shop.strategy(plan) for plan in plans]
        tasks = shop.tasks()
        reporter.status("looking at the prompts")
        for warning in prompt_warnings(_texts(shop, prompts), shop.target.model, bos_id=_bos(shop)):
            reporter.notice(warning)
        t_ms = _pass_costs(shop.target, reporter)
        with reporter.deferring_notices():
            runs = run_all(
                strategies,
                tasks,
                repetitions=repetitions,
                warm_up=measure.warm_up,
                on_step=ProgressBar(reporter),
            )
        reporter.clear_status()
        for warning in run_warnings(runs):
            reporter.notice(warning)
        settings = {
            **shop.describe(prompts),
            "strategies": [strategy.label for strategy in strategies],
            "repetitions": repetitions,
            "warm_up": measure.warm_up,
        }
        report = make_report(
            runs,
            find_inequalities(runs),
            t_ms=t_ms,
            settings=settings,
            machine=_machine(shop.target) | {"load_average": load},
            contest=lambda found: contest(
                shop.target.model,
                found.run.task.request,
                found.run.result.token_ids[: found.fork.position],
            ),
        )
        return report, shop.token_text


def _print(report: "BenchReport", token_text: Any, destination: BenchOutputOptions) -> None:
    from specdec_cli.bench.report import as_document
    from specdec_cli.bench.tables import comma_separated, markdown

    if destination.plot is not None:
        from specdec_cli.bench.plot import plot

        plot(report.rows, {"target": report.t_ms} if report.t_ms else {}, destination.plot)
    if destination.output is Format.JSON:
        print_json(as_document(report, token_text))
    elif destination.output is Format.CSV:
        print_text(comma_separated(report))
    else:
        if is_terminal(sys.stdout):
            from specdec_cli.bench.chart import print_chart

            print_chart(report.rows, sys.stdout)
        print_text(markdown(report, token_text))


class ProgressBar:
    """A bar on the status line: what runs, how far it is, how long it will take."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._started: float | None = None

    def __call__(self, step: "Step") -> None:
        """Show that a step begins."""
        now = time.monotonic()
        self._started = now if self._started is None else self._started
        filled = _WIDTH * step.index // step.total
        left = ""
        if step.index:
            seconds = (now - self._started) / step.index * (step.total - step.index)
            left = f", {seconds / 60:.0f} min left" if seconds >= 90 else f", {seconds:.0f} s left"
        done = f"[{'#' * filled}{'-' * (_WIDTH - filled)}] {step.index}/{step.total}"
        self._reporter.status(f"{done} {step.task_id} {step.label}{left}")


def _pass_costs(target: "LoadedModel", reporter: Reporter) -> dict[int, float]:
    """t(M) of the target in ms; empty when its context is too small to measure."""
    from specdec_cli.bench.curve import CurveOptions, measure_curve, needed_context

    rows = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16)
    options = CurveOptions(rows=rows, repetitions=5, prefills=(), decode_tokens=1)
    if needed_context(options) > target.model.n_ctx:
        reporter.notice("the context is too small to measure the cost of passes: no ceiling")
        return {}
    curve = measure_curve(target.model, options, on_step=reporter.status)
    return curve.depths[0].t_ms


def _texts(shop: "Workshop", prompts: "PromptSet") -> dict[str, Sequence[int]]:
    tokenizer = shop.target.tokenizer
    return {p.id: tokenizer.encode(p.content, add_bos=True) for p in prompts.prompts}


def _bos(shop: "Workshop") -> int | None:
    tokenizer = shop.target.tokenizer
    return tokenizer.bos_id if tokenizer.add_bos else None


def _machine(target: "LoadedModel") -> dict[str, Any]:
    from specdec_cli.bench.machine import machine

    return {**machine(), "isa": getattr(target.model, "isa", target.executor)}
