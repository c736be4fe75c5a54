"""A draft model on a diet, by option: what is altered is told, and the ids stay those of plain decoding."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from specdec_cli.cli.options import GenerationOptions, SpecOptions, TemplateOptions
from specdec_cli.cli.settings import Settings

TinyGguf = Callable[..., Path]
DIETS = (
    ["--draft-quant", "q4_0"],
    ["--draft-vocab", "270"],
    ["--draft-quant", "Q8_0", "--draft-vocab", "300"],
)


@pytest.mark.parametrize(
    ("executor", "sampling"), [("torch", ["--temp", "0"]), ("native", ["--temp", "0.9", "--top-k", "0"])]
)
def test_the_ids_are_those_of_plain_decoding(
    specdec: Any, tiny_gguf: TinyGguf, executor: str, sampling: Sequence[str]
) -> None:
    """Prompt and answer hold ids that the cut head lacks at first."""
    target, draft = (str(tiny_gguf(seed=seed, extra_tokens=4000)) for seed in (1, 2))
    base = ["-m", target, "-n", "40", "-s", "3", *sampling, "--executor", executor, "the thing"]

    def run(*arguments: str) -> dict[str, Any]:
        done = specdec("run", "--json", *base, *arguments)
        assert done.code == 0, done.err
        found: dict[str, Any] = json.loads(done.out)
        return found

    plain = run("--no-spec")
    assert max(plain["token_ids"]) > 300
    for diet in DIETS:
        for model in (target, draft):
            found = run("-md", model, "--spec", "draft", *diet)
            assert found["token_ids"] == plain["token_ids"]
            assert found["speculative_decoding"]["num_draft_tokens"] > 0


def test_ids_that_occurred_are_drafted_again(specdec: Any, tiny_gguf: TinyGguf) -> None:
    """With the target as its own draft, only tokens that are new to a cut head are missed."""
    target = str(tiny_gguf(seed=1, extra_tokens=4000))
    done = specdec("run", "--json", "-m", target, "-md", target, "--spec", "draft", "--draft-vocab", "270",
                   "-n", "60", "--temp", "0", "the thing")  # fmt: skip
    found = json.loads(done.out)
    new = len({i for i in found["token_ids"] if i >= 270})
    stats = found["speculative_decoding"]
    assert new > 0
    assert stats["num_accepted_tokens"] >= len(found["token_ids"]) - stats["num_rounds"] - new


def test_what_was_altered_is_told(specdec: Any, tiny_gguf: TinyGguf) -> None:
    target = str(tiny_gguf(seed=1, extra_tokens=4000))
    base = ("run", "-v", "-m", target, "-md", target, "-n", "4", "hi")
    assert "draft model used as it is: " in specdec(*base).err  # auto leaves a tiny model alone
    err = specdec(*base, "--draft-quant", "Q8_0", "--draft-vocab", "300").err
    assert "draft model on a diet: " in err
    assert "a head of 300 tokens and those that occur" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--draft-quant", "Q4_K_M"], "--draft-quant Q4_K_M: expected auto, keep or a type: Q4_0, "),
        (["--draft-vocab", "few"], "--draft-vocab few: expected auto, all or a number of tokens"),
    ],
)
def test_wrong_values_are_refused(
    specdec: Any, tiny_gguf: TinyGguf, arguments: list[str], message: str
) -> None:
    done = specdec("run", "-m", str(tiny_gguf()), *arguments, "hi")
    assert done.code == 2
    assert message in done.err


def test_settings_name_the_diet() -> None:
    spec = SpecOptions(draft_quant="q4_0", draft_vocab="all")
    settings = Settings.of(GenerationOptions(), spec, TemplateOptions()).as_dict()
    assert (settings["draft_quant"], settings["draft_vocab"]) == ("Q4_0", "all")
