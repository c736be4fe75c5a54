"""Option groups back to arguments."""

from pathlib import Path

import pytest

from specdec_cli.cli.arguments import as_arguments
from specdec_cli.cli.bench_options import (
    BenchGenerationOptions,
    BenchOutputOptions,
    Format,
    MeasureOptions,
    PromptSetOptions,
    parse_lengths,
)
from specdec_cli.cli.options import Executor, ModelOptions
from specdec_cli.errors import UsageError


def test_values_that_are_set_come_back():
    groups = (
        PromptSetOptions(prompts=Path("a b.jsonl")),
        ModelOptions(model="m", executor=Executor.TORCH),
        MeasureOptions(sweep=True, warm_up=0),
        BenchOutputOptions(output=Format.CSV),
    )
    assert as_arguments(*groups) == [
        "--prompts=a b.jsonl",
        "--model=m",
        "--executor=torch",
        "--warm-up=0",
        "--sweep",
        "--format=csv",
    ]


def test_lists_are_repeated():
    options = BenchGenerationOptions(stop=["-a", "b"], seed=5)
    arguments = as_arguments(options)
    assert [a for a in arguments if "stop" in a or "seed" in a] == ["--stop=-a", "--stop=b", "--seed=5"]


@pytest.mark.parametrize(
    ("text", "numbers"), [("1-4", (1, 2, 3, 4)), ("4,1", (4, 1)), ("0, 2-3,3", (0, 2, 3)), ("7", (7,))]
)
def test_lists_of_numbers(text, numbers):
    assert parse_lengths(text, "--x", minimum=0) == numbers


@pytest.mark.parametrize("text", ["", "a", "1,,2", "-1", "3-1", "1-", "1.5", "1-2-3", "0-99999999"])
def test_what_is_no_list_of_numbers_is_refused(text):
    with pytest.raises(UsageError, match="--x"):
        parse_lengths(text, "--x", minimum=0)


def test_numbers_below_the_minimum_are_refused():
    with pytest.raises(UsageError, match="--x 0-3: 0 is less than 1"):
        parse_lengths("0-3", "--x", minimum=1)
