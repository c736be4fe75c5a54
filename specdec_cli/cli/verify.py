"""`specdec verify`: speculation does not change the output, checked on the user's own models and prompts."""

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.cli.arguments import as_arguments
from specdec_cli.cli.bench import ProgressBar, force_isa
from specdec_cli.cli.bench_options import (
    BenchGenerationOptions,
    PromptSetOptions,
    StrategyOptions,
    parse_lengths,
)
from specdec_cli.cli.console import Reporter
from specdec_cli.cli.flatten import with_option_groups
from specdec_cli.cli.options import CommonOptions, ModelOptions, TemplateOptions, option
from specdec_cli.cli.plain import print_json, print_text
from specdec_cli.errors import SpecdecError, UsageError

if TYPE_CHECKING:
    from specdec_cli.bench.verification import Verification

_VERIFY = "Verification"
_TIMEOUT_S = 24 * 3600


class Format(StrEnum):
    """How `verify` prints what it found."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """What is compared."""

    temps: Annotated[
        str, option("--temps", metavar="LIST", panel=_VERIFY, help="Temperatures, such as 0,0.8.")
    ] = "0,0.8"
    draft_lengths: Annotated[
        str,
        option(
            "--draft-lengths",
            metavar="LIST",
            panel=_VERIFY,
            help="Lengths of drafts for each drafter, such as 0,1,4 or 1-8.",
        ),
    ] = "0,1,3,4,7,15"
    restart: Annotated[
        bool,
        option("--restart", panel=_VERIFY, help="Compare with plain decoding in a fresh process, too."),
    ] = False
    isa: Annotated[
        str | None,
        option(
            "--isa",
            metavar="NAME",
            panel=_VERIFY,
            help="Instruction set to use; see `specdec doctor` for names.",
        ),
    ] = None
    output: Annotated[
        Format, option("-o", "--format", metavar="text|json", panel="Output", help="Format on stdout.")
    ] = Format.TEXT


@with_option_groups
def verify(
    *,
    prompt_set: PromptSetOptions,
    template: TemplateOptions,
    model: ModelOptions,
    generation: BenchGenerationOptions,
    spec: StrategyOptions,
    checks: VerifyOptions,
    common: CommonOptions,
) -> None:
    """Check that speculation does not change the output: every drafter, draft length and temperature.

    Each prompt is decoded plainly, then with each strategy; token ids must be the same. If not, prints where
    outputs part, both tokens and the gap between the target's two best choices. Exit code 1 then.
    """
    from specdec_cli.bench.report import fork_line

    force_isa(checks.isa, model.executor)
    reporter = Reporter(verbose=common.verbose)
    temperatures = parse_temperatures(checks.temps)
    lengths = parse_lengths(checks.draft_lengths, "--draft-lengths", minimum=0)
    found, settings, token_text = _verify(
        (prompt_set, template, model, generation, spec, checks), temperatures, lengths, reporter
    )
    reporter.clear_status()
    if checks.output is Format.JSON:
        print_json(_document(found, settings, token_text))
    else:
        print_text("\n".join(_lines(found)))
        for fork in found.forks:
            print_text(fork_line(fork, token_text))
        print_text(_verdict(found))
    if not found.equal:
        raise typer.Exit(1)


def parse_temperatures(text: str) -> tuple[float, ...]:
    """Numbers of a comma list. Raises UsageError."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = [math.nan]
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise UsageError(f"--temps {text}: expected temperatures such as 0,0.8")
    return tuple(dict.fromkeys(values))


def _verify(
    groups: tuple[Any, ...], temperatures: Sequence[float], lengths: Sequence[int], reporter: Reporter
) -> "tuple[Verification, dict[str, Any], Any]":
    """Do everything; returns what was found, the settings, and what turns ids into text."""
    from specdec_cli.bench.harness import PLAIN
    from specdec_cli.bench.prompts import load_prompts
    from specdec_cli.bench.verification import (
        Verification,
        compare_outputs,
        plain_outputs,
        verify_all,
    )
    from specdec_cli.cli.strategies import Plan, Workshop

    prompt_set, template, model, generation, spec, checks = groups
    prompts = load_prompts(prompt_set.prompts).limited(prompt_set.per_category)
    with (
        Workshop(model, generation, spec, template, prompts=prompts.prompts, reporter=reporter) as shop,
        reporter.deferring_notices(),
    ):
        plans = shop.plans(lengths)
        strategies = [shop.strategy(plan) for plan in plans if plan.name != PLAIN]
        tasks = shop.tasks()
        plain = shop.strategy(Plan(PLAIN))
        target = shop.target.model
        references = plain_outputs(plain, tasks, temperatures, on_step=ProgressBar(reporter))
        found = verify_all(target, references, strategies, tasks, temperatures, on_step=ProgressBar(reporter))
        if checks.restart:
            reporter.status("plain decoding in a fresh process")
            # The seed is the one of this process, where it was drawn by lot.
            seeded = replace(generation, seed=shop.generation.seed)
            others = _outputs_of_fresh_process(prompt_set, template, model, seeded, spec, checks)
            for tally, forks in compare_outputs(target, references, others, tasks):
                found = Verification((*found.tallies, tally), (*found.forks, *forks), references)
        settings = {
            **shop.describe(prompts),
            "strategies": [strategy.label for strategy in strategies],
            "temperatures": list(temperatures),
        }
        return found, settings, shop.token_text


def _outputs_of_fresh_process(
    prompt_set: PromptSetOptions,
    template: TemplateOptions,
    model: ModelOptions,
    generation: BenchGenerationOptions,
    spec: StrategyOptions,
    checks: VerifyOptions,
) -> Mapping[tuple[str, float], Sequence[int]]:
    """Plain outputs of this very command in another process: `verify --spec none -o json`."""
    groups = (
        prompt_set,
        replace(template, show_prompt=False),
        model,
        generation,
        replace(spec, spec="none", draft_model=None, predict_file=None),
        replace(checks, restart=False, output=Format.JSON),
    )
    command = [sys.executable, "-m", "specdec_cli.cli.main", "verify", *as_arguments(*groups)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise SpecdecError(f"the fresh process failed: {reason[0]}")
    outputs = json.loads(done.stdout)["plain"]
    return {(entry["prompt"], float(entry["temperature"])): entry["token_ids"] for entry in outputs}


def _lines(found: "Verification") -> list[str]:
    from specdec_cli.bench.tables import percent

    lines = []
    for tally in found.tallies:
        equal = tally.runs - tally.forks
        rate = (
            ""
            if tally.draft_acceptance_rate is None
            else (f", draft acceptance rate {percent(tally.draft_acceptance_rate)}")
        )
        lines.append(
            f"{tally.label}, temperature {tally.temperature:g}: {equal}/{tally.runs} equal, "
            f"{tally.tokens} tokens{rate}"
        )
    return lines


def _verdict(found: "Verification") -> str:
    if not found.tallies:
        return "nothing to compare: no strategy besides plain decoding"
    if found.equal:
        return f"EQUAL: {found.num_runs} outputs, {found.num_tokens} tokens, no fork"
    return f"NOT EQUAL: {len(found.forks)} of {found.num_runs} outputs differ from plain decoding"


def _document(found: "Verification", settings: dict[str, Any], token_text: Any) -> dict[str, Any]:
    from specdec_cli.bench.report import fork_document

    return {
        "equal": found.equal,
        "num_runs": found.num_runs,
        "num_tokens": found.num_tokens,
        "strategies": [
            {
                "strategy": tally.label,
                "temperature": tally.temperature,
                "runs": tally.runs,
                "equal": tally.runs - tally.forks,
                "tokens": tally.tokens,
                "draft_acceptance_rate": tally.draft_acceptance_rate,
            }
            for tally in found.tallies
        ],
        "forks": [fork_document(fork, token_text) for fork in found.forks],
        "plain": [
            {"prompt": prompt, "temperature": temperature, "token_ids": list(ids)}
            for (prompt, temperature), ids in found.references.items()
        ],
        "settings": settings,
    }
