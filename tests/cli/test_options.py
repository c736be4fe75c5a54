"""Options: aliases, environment, groups, and what they become."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer

from specdec_cli.cli.flatten import with_option_groups
from specdec_cli.cli.lazy import as_command
from specdec_cli.cli.options import (
    CommonOptions,
    FileOptions,
    GenerationOptions,
    ModelOptions,
    OutputOptions,
    PromptOptions,
    SpecOptions,
    TemplateOptions,
    option,
)


class Parsed(dict[str, Any]):
    """Values of all options by field name."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def parse(*arguments: str) -> Parsed:
    """Values that `run` gets from a command line."""
    found: list[Any] = []

    @with_option_groups
    def run(
        *,
        a: PromptOptions,
        b: TemplateOptions,
        c: ModelOptions,
        d: GenerationOptions,
        e: SpecOptions,
        f: OutputOptions,
        g: FileOptions,
        h: CommonOptions,
    ) -> None:
        found.extend((a, b, c, d, e, f, g, h))

    as_command("run", run).main(args=list(arguments), prog_name="specdec run", standalone_mode=False)
    return Parsed({name: getattr(group, name) for group in found for name in group.__slots__})


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["-m", "x.gguf"], "model", "x.gguf"),
        (["--model=x.gguf"], "model", "x.gguf"),
        (["-sys", "be brief"], "system_prompt", "be brief"),
        (["--system-prompt", "be brief"], "system_prompt", "be brief"),
        (["-md", "d.gguf"], "draft_model", "d.gguf"),
        (["--draft-model", "d"], "draft_model", "d"),
        (["--model-draft", "d"], "draft_model", "d"),
        (["-n", "7"], "n_predict", 7),
        (["--n-predict", "7"], "n_predict", 7),
        (["--max-tokens", "7"], "n_predict", 7),
        (["-n", "-1"], "n_predict", -1),
        (["--draft-max", "3"], "draft_max", 3),
        (["--num-draft-tokens", "3"], "draft_max", 3),
        (["--spec-draft-n-max", "3"], "draft_max", 3),
        (["-c", "64"], "ctx_size", 64),
        (["-t", "2"], "threads", 2),
        (["-s", "9"], "seed", 9),
        (["-r", "a b", "--stop", "\n"], "stop", ["a b", "\n"]),
        (["-l", "5-1", "-l", "7+2"], "logit_bias", ["5-1", "7+2"]),
        (["--no-stats"], "stats", False),
        (["--no-spec"], "no_spec", True),
        (["--json"], "json_output", True),
        (["a prompt"], "words", ["a prompt"]),
        (["-"], "words", ["-"]),
        (["--", "-n"], "words", ["-n"]),
        (["-p", "- item"], "prompt", "- item"),
    ],
)
def test_flags_and_aliases(arguments: list[str], name: str, value: object) -> None:
    assert parse(*arguments)[name] == value


def test_defaults_are_those_of_the_conventions() -> None:
    found = parse()
    assert (found.temp, found.top_k, found.top_p, found.min_p) == (0.8, 40, 0.95, 0.05)
    assert (found.n_predict, found.repeat_penalty, found.repeat_last_n) == (512, 1.0, 64)
    assert (found.spec, found.executor, found.color, found.stats) == ("auto", "native", "auto", True)
    assert (found.stop, found.logit_bias, found.seed, found.model) == ([], [], None, None)


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("SPECDEC_MODEL", "m.gguf", "model", "m.gguf"),
        ("SPECDEC_TEMP", "0.1", "temp", 0.1),
        ("SPECDEC_TOP_K", "3", "top_k", 3),
        ("SPECDEC_N_PREDICT", "3", "n_predict", 3),
        ("SPECDEC_MAX_TOKENS", "3", "n_predict", 3),
        ("SPECDEC_MODEL_DRAFT", "d", "draft_model", "d"),
        ("SPECDEC_SYSTEM_PROMPT", "s", "system_prompt", "s"),
        ("SPECDEC_JSON", "1", "json_output", True),
        ("SPECDEC_STATS", "0", "stats", False),
        ("SPECDEC_NO_SPEC", "true", "no_spec", True),
        ("SPECDEC_STOP", "User: \nsecond", "stop", ["User: ", "second"]),
        ("SPECDEC_LOGIT_BIAS", "5-1", "logit_bias", ["5-1"]),
        ("SPECDEC_EXECUTOR", "torch", "executor", "torch"),
    ],
)
def test_every_option_comes_from_the_environment(
    variable: str, text: str, name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    assert parse()[name] == value


def test_every_option_has_an_environment_variable() -> None:
    from specdec_cli.cli.chat import chat
    from specdec_cli.cli.run import run

    for name, function in (("run", run), ("chat", chat)):
        for param in as_command(name, function).params:
            if param.param_type_name == "option" and param.name != "help":
                listed = param.envvar or [param.default.__closure__ and "SPECDEC_from_environment"]
                assert all(variable.startswith("SPECDEC_") for variable in listed), param.name


def test_the_command_line_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_TEMP", "0.1")
    monkeypatch.setenv("SPECDEC_STOP", "x")
    found = parse("--temp", "0.5", "-r", "y")
    assert (found.temp, found.stop) == (0.5, ["y"])


def test_groups_become_dataclasses_next_to_plain_parameters() -> None:
    @dataclass(frozen=True, slots=True)
    class Group:
        size: Annotated[int, option("--size", help="Size.")] = 3

    seen: list[object] = []

    @with_option_groups
    def command(group: Group, name: Annotated[str, typer.Option("--name")] = "n") -> None:
        seen.extend((group, name))

    as_command("c", command).main(args=["--size", "5"], prog_name="c", standalone_mode=False)
    assert seen == [Group(5), "n"]
