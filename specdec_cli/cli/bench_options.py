"""Options of the commands that measure and verify: those of `run`, and their own."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from specdec_cli.cli.options import GenerationOptions, SpecOptions, option, repeatable
from specdec_cli.errors import UsageError

_BENCH = "Measurement"
_CURVE = "Cost of a pass (--curve)"
_OUTPUT = "Output"


class Format(StrEnum):
    """How `bench` prints its report."""

    MD = "md"
    CSV = "csv"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchGenerationOptions(GenerationOptions):
    """Those of `run`, with fewer tokens; -r stands for repetitions here."""

    n_predict: Annotated[
        int,
        option(
            "-n",
            "--n-predict",
            "--max-tokens",
            metavar="N",
            panel="Generation",
            help="Tokens to generate at most for each prompt; -1: until the context is full.",
        ),
    ] = 128
    stop: Annotated[
        list[str],
        repeatable("--stop", metavar="TEXT", panel="Generation", help="End before this text; repeatable."),
    ] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyOptions(SpecOptions):
    """Those of `run`, but --spec lists what to compare."""

    spec: Annotated[
        str,
        option(
            "--spec",
            metavar="NAMES",
            panel="Speculative decoding",
            help="Strategies to compare (comma list): what --spec of `run` takes, drafters that work "
            "together joined by + (draft+ngram); default: none, each drafter there is, auto.",
        ),
    ] = ""
    no_spec: Annotated[bool, option("--no-spec", hidden=True, help="Not for comparisons.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSetOptions:
    """Which prompts."""

    prompts: Annotated[
        Path | None,
        option(
            "--prompts",
            metavar="FILE",
            panel="Prompt",
            help='JSON lines with id, category, messages (or a raw "prompt") and perhaps prediction; '
            "default: a built-in set of eight categories.",
        ),
    ] = None
    limit: Annotated[
        int | None,
        option(
            "--limit",
            metavar="N",
            panel="Prompt",
            help="Take at most N prompts of each category; default: all of FILE, one of the built-in set.",
        ),
    ] = None

    @property
    def per_category(self) -> int | None:
        """Prompts of each category; None: all."""
        return 1 if self.limit is None and self.prompts is None else self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """How `bench` measures."""

    repetitions: Annotated[
        int | None,
        option(
            "-r",
            "--repetitions",
            metavar="N",
            panel=_BENCH,
            help="Times that everything runs; figures are medians; default: 3, and 9 with --curve.",
        ),
    ] = None
    warm_up: Annotated[
        int,
        option("--warm-up", metavar="N", panel=_BENCH, help="Short runs of each strategy before measuring."),
    ] = 1
    sweep: Annotated[
        bool,
        option(
            "--sweep", panel=_BENCH, help="Run the strategies with fixed lengths of drafts, for each one."
        ),
    ] = False
    draft_lengths: Annotated[
        str | None,
        option(
            "--draft-lengths",
            metavar="LIST",
            panel=_BENCH,
            help="Lengths of --sweep, such as 1-8 or 1,2,4; default: 1-8.",
        ),
    ] = None
    isa: Annotated[
        str | None,
        option(
            "--isa",
            metavar="NAME",
            panel=_BENCH,
            help="Instruction set to use; see `specdec doctor` for names.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveModeOptions:
    """`bench --curve`."""

    curve: Annotated[
        bool,
        option(
            "--curve",
            panel=_CURVE,
            help="Measure passes of 1 to 16 rows, plain decoding, prefill, loading and memory of the model "
            "(and of -md) instead of prompts.",
        ),
    ] = False
    depth: Annotated[
        str | None,
        option(
            "--depth",
            metavar="LIST",
            panel=_CURVE,
            help="Tokens of context before the passes, such as 0,2048; default: 0.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOutputOptions:
    """What `bench` prints."""

    output: Annotated[
        Format, option("-o", "--format", metavar="md|csv|json", panel=_OUTPUT, help="Format on stdout.")
    ] = Format.MD
    plot: Annotated[
        Path | None,
        option(
            "--plot",
            metavar="FILE",
            panel=_OUTPUT,
            help="Draw acceptance, speed-ups and t(M) into FILE (.png, .svg, .pdf); needs matplotlib.",
        ),
    ] = None


def parse_lengths(text: str, flag: str, *, minimum: int) -> tuple[int, ...]:
    """Numbers of a list such as `1-8` or `0,1,4`, in order and without repeats. Raises UsageError."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise UsageError(f"{flag} {text}: expected numbers and ranges such as 0,1,4 or 1-8")
        start, end = int(first), int(last or first)
        if end < start or end - start > 1024:
            raise UsageError(f"{flag} {text}: {part.strip()} is no range")
        numbers += range(start, end + 1)
    if min(numbers) < minimum:
        raise UsageError(f"{flag} {text}: {min(numbers)} is less than {minimum}")
    return tuple(dict.fromkeys(numbers))
