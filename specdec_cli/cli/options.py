"""Every option of the commands that generate text, declared once, in groups (see flatten.py)."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from specdec_cli.cli.declare import DebugOption, option, repeatable
from specdec_cli.sampling.params import DEFAULT_ORDER, SamplingParams

__all__ = [
    "Color",
    "CommonOptions",
    "DebugOption",
    "Executor",
    "ExecutorOption",
    "FileOptions",
    "GenerationOptions",
    "JsonOption",
    "ModelOption",
    "ModelOptions",
    "OutputOptions",
    "PromptOptions",
    "SpecOptions",
    "TemplateOptions",
    "ThreadsOption",
    "option",
    "repeatable",
]

_SAMPLING = SamplingParams()
_PROMPT = "Prompt"
_MODEL = "Model"
_GENERATE = "Generation"
_SAMPLE = "Sampling"
_SPEC = "Speculative decoding"
_OUTPUT = "Output"


class Executor(StrEnum):
    """What computes the model."""

    NATIVE = "native"
    TORCH = "torch"


class Color(StrEnum):
    """When to colour output."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


ModelOption = Annotated[
    str | None,
    option(
        "-m",
        "--model",
        metavar="MODEL",
        panel=_MODEL,
        help="GGUF file, directory, alias (see `specdec models list`) or hf:OWNER/REPO[:FILE]; "
        "default: the default alias, fetched when first used.",
    ),
]
ThreadsOption = Annotated[
    int | None,
    option(
        "-t", "--threads", metavar="N", panel=_MODEL, help="Threads; default: all physical cores allowed."
    ),
]
ExecutorOption = Annotated[Executor, option("--executor", panel=_MODEL, help="What computes the model.")]
JsonOption = Annotated[bool, option("--json", panel=_OUTPUT, help="Print one JSON document.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """Options of every command."""

    verbose: Annotated[
        bool, option("-v", "--verbose", help="Tell on stderr what is loaded and why it ended.")
    ] = False
    debug: DebugOption = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The target and how to run it."""

    model: ModelOption = None
    ctx_size: Annotated[
        int | None,
        option(
            "-c",
            "--ctx-size",
            metavar="N",
            panel=_MODEL,
            help="Tokens of context; 0: as many as the model was trained for; default: 4096 or that.",
        ),
    ] = None
    threads: ThreadsOption = None
    executor: ExecutorOption = Executor.NATIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """Where the prompt of `run` comes from."""

    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT",
            show_default=False,
            help="The prompt; - reads stdin, after the prompt when both are given.",
        ),
    ] = None
    prompt: Annotated[
        str | None, option("-p", "--prompt", metavar="TEXT", panel=_PROMPT, help="The prompt.")
    ] = None
    file: Annotated[
        Path | None,
        option(
            "-f",
            "--file",
            metavar="FILE",
            panel=_PROMPT,
            help="Read the prompt from FILE, or what follows the prompt when one is given.",
        ),
    ] = None
    raw: Annotated[
        bool, option("--raw", panel=_PROMPT, help="Continue the text as it is, without a template.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateOptions:
    """How messages become a prompt."""

    system_prompt: Annotated[
        str | None, option("-sys", "--system-prompt", metavar="TEXT", panel=_PROMPT, help="System message.")
    ] = None
    system_file: Annotated[
        Path | None,
        option("--system-file", metavar="FILE", panel=_PROMPT, help="Read the system message from FILE."),
    ] = None
    chat_template: Annotated[
        str | None,
        option(
            "--chat-template",
            metavar="NAME|JINJA",
            panel=_PROMPT,
            help="Built-in template or template source to use instead of the file's own.",
        ),
    ] = None
    chat_template_file: Annotated[
        Path | None,
        option("--chat-template-file", metavar="FILE", panel=_PROMPT, help="Read the template from FILE."),
    ] = None
    chat_template_kwargs: Annotated[
        str | None,
        option(
            "--chat-template-kwargs",
            metavar="JSON",
            panel=_PROMPT,
            help='Variables for the template, such as {"enable_thinking": false}.',
        ),
    ] = None
    allow_special: Annotated[
        bool,
        option(
            "--allow-special", panel=_PROMPT, help="Let control tokens written in the prompt act as such."
        ),
    ] = False
    show_prompt: Annotated[
        bool,
        option(
            "--show-prompt", panel=_PROMPT, help="Print the exact prompt, control tokens included, on stderr."
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """How much to generate, and how tokens are drawn."""

    n_predict: Annotated[
        int,
        option(
            "-n",
            "--n-predict",
            "--max-tokens",
            metavar="N",
            panel=_GENERATE,
            help="Tokens to generate at most; -1: until the context is full.",
        ),
    ] = 512
    stop: Annotated[
        list[str],
        repeatable(
            "-r", "--stop", metavar="TEXT", panel=_GENERATE, help="End before this text; may be repeated."
        ),
    ] = field(default_factory=list)
    seed: Annotated[
        int | None,
        option(
            "-s", "--seed", metavar="N", panel=_GENERATE, help="Seed of the noise; default: random, shown."
        ),
    ] = None
    temp: Annotated[
        float, option("--temp", metavar="X", panel=_SAMPLE, help="Temperature; 0: the most likely token.")
    ] = _SAMPLING.temperature
    top_k: Annotated[
        int, option("--top-k", metavar="N", panel=_SAMPLE, help="Keep the N most likely; 0: off.")
    ] = _SAMPLING.top_k
    top_p: Annotated[
        float,
        option("--top-p", metavar="X", panel=_SAMPLE, help="Keep the most likely that sum to X; 1: off."),
    ] = _SAMPLING.top_p
    min_p: Annotated[
        float,
        option(
            "--min-p", metavar="X", panel=_SAMPLE, help="Keep those at least X times the likeliest; 0: off."
        ),
    ] = _SAMPLING.min_p
    repeat_penalty: Annotated[
        float,
        option("--repeat-penalty", metavar="X", panel=_SAMPLE, help="Penalty of repeated tokens; 1: off."),
    ] = _SAMPLING.repeat_penalty
    repeat_last_n: Annotated[
        int,
        option(
            "--repeat-last-n",
            metavar="N",
            panel=_SAMPLE,
            help="Tokens that penalties look at; 0: none, -1: all.",
        ),
    ] = _SAMPLING.repeat_last_n
    presence_penalty: Annotated[
        float,
        option("--presence-penalty", metavar="X", panel=_SAMPLE, help="Penalty of tokens that occurred."),
    ] = _SAMPLING.presence_penalty
    frequency_penalty: Annotated[
        float, option("--frequency-penalty", metavar="X", panel=_SAMPLE, help="Penalty per occurrence.")
    ] = _SAMPLING.frequency_penalty
    samplers: Annotated[
        str,
        option(
            "--samplers", metavar="NAMES", panel=_SAMPLE, help="Order of the samplers; others do not run."
        ),
    ] = ";".join(DEFAULT_ORDER)
    logit_bias: Annotated[
        list[str],
        repeatable(
            "-l",
            "--logit-bias",
            metavar="ID+BIAS",
            panel=_SAMPLE,
            help="Add BIAS to the logit of token ID (ID-BIAS subtracts, ID-inf bans); may be repeated.",
        ),
    ] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecOptions:
    """Who drafts, and how much."""

    draft_model: Annotated[
        str | None,
        option(
            "-md",
            "--draft-model",
            "--model-draft",
            metavar="MODEL",
            panel=_SPEC,
            help="Draft model, named like -m; default: the model's pair, if it is on this machine.",
        ),
    ] = None
    spec: Annotated[
        str,
        option(
            "--spec",
            metavar="NAMES",
            panel=_SPEC,
            help="Drafters in order of preference (comma list): draft, ngram, suffix, predict; none; "
            "auto: what is there, whenever it pays.",
        ),
    ] = "auto"
    no_spec: Annotated[
        bool, option("--no-spec", panel=_SPEC, help="Decode plainly, whatever the other options say.")
    ] = False
    draft_max: Annotated[
        int | None,
        option(
            "--draft-max",
            "--num-draft-tokens",
            "--spec-draft-n-max",
            metavar="N",
            panel=_SPEC,
            help="Tokens to draft per round, with auto at most; default: 4, with auto what pays.",
        ),
    ] = None
    draft_min: Annotated[
        int, option("--draft-min", metavar="N", panel=_SPEC, help="Do not use shorter drafts.")
    ] = 0
    draft_p_min: Annotated[
        float,
        option(
            "--draft-p-min", metavar="P", panel=_SPEC, help="End a draft before a token of lower confidence."
        ),
    ] = 0.0
    draft_quant: Annotated[
        str,
        option(
            "--draft-quant",
            metavar="auto|keep|TYPE",
            panel=_SPEC,
            help="Type that the draft model's matrices are converted to when it is loaded; auto: a fast "
            "4-bit type for those that are larger, if that makes a step a tenth cheaper.",
        ),
    ] = "auto"
    draft_vocab: Annotated[
        str,
        option(
            "--draft-vocab",
            metavar="auto|all|N",
            panel=_SPEC,
            help="Tokens that the draft model may propose: the N most frequent and those that occur; auto: "
            "49152 where that makes a step a tenth cheaper.",
        ),
    ] = "auto"
    ngram_min: Annotated[
        int,
        option(
            "--ngram-min", metavar="N", panel=_SPEC, help="Shortest match that ngram and suffix draft from."
        ),
    ] = 3
    ngram_max: Annotated[
        int | None,
        option(
            "--ngram-max", metavar="N", panel=_SPEC, help="Longest match; default: 3 more than the shortest."
        ),
    ] = None
    predict_file: Annotated[
        Path | None,
        option(
            "--predict-file",
            metavar="FILE",
            panel=_SPEC,
            help="Text that the answer may resemble, for the drafter predict; auto uses it first.",
        ),
    ] = None
    allow_mismatch: Annotated[
        bool,
        option(
            "--allow-mismatch",
            panel=_SPEC,
            help="Use a draft model although some token ids differ; those are never drafted.",
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """What is shown, and how."""

    stats: Annotated[
        bool, option("--stats/--no-stats", panel=_OUTPUT, help="End with a line of figures on stderr.")
    ] = True
    show_draft: Annotated[
        bool, option("--show-draft", panel=_OUTPUT, help="Colour the tokens that came from accepted drafts.")
    ] = False
    color: Annotated[
        Color,
        option("--color", panel=_OUTPUT, help="Colours: on a terminal unless NO_COLOR is set, or by force."),
    ] = Color.AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """Where the answer of `run` goes."""

    json_output: JsonOption = False
    no_stream: Annotated[
        bool, option("--no-stream", panel=_OUTPUT, help="Print the text when it is complete.")
    ] = False
    output: Annotated[
        Path | None,
        option("-o", "--output", metavar="FILE", panel=_OUTPUT, help="Write to FILE instead of stdout."),
    ] = None
