"""The commands on SmolLM2, in processes of their own, as a user starts them."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

QUESTION = "What is the capital of France? Answer in one sentence."


@pytest.fixture
def smollm2(model_path: Callable[[str], Path]) -> Callable[..., subprocess.CompletedProcess[str]]:
    path = str(model_path("smollm2-135m"))

    def run(command: str, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "specdec_cli.cli.main", command, "-m", path, *arguments],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )

    return run


def test_run_answers_and_reports(smollm2: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = smollm2("run", "--temp", "0", "-n", "24", QUESTION)
    assert "Paris" in done.stdout
    assert re.fullmatch(
        r"prompt \d+ tokens at [\d.]+ tok/s, decoded \d+ tokens at [\d.]+ tok/s, ttft \d+ ms \| "
        r"draft \d+/\d+ accepted \((n/a|[\d.]+ %)\), mean acceptance length [\d.]+ \| "
        r"(plain: [^|]+ \| )?seed \d+\n",
        done.stderr,
    )


@pytest.mark.parametrize("sampling", [["--temp", "0"], ["--temp", "0.8", "-s", "7"]])
def test_the_text_is_a_function_of_the_seed(
    sampling: list[str], smollm2: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    prompt = "Repeat three times: the quick brown fox jumps over the lazy dog."

    def ids(*more: str) -> list[int]:
        found: list[int] = json.loads(smollm2("run", "--json", "-n", "48", *sampling, *more, prompt).stdout)[
            "token_ids"
        ]
        return found

    plain = ids("--no-spec")
    assert ids("--spec", "ngram", "--draft-max", "7") == plain
    assert ids("-t", "1") == plain


def test_chat_reuses_the_conversation(smollm2: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = smollm2("chat", "--temp", "0", "-n", "24", stdin=f"{QUESTION}\nAnd of Italy?\n/exit\n")
    first, second = done.stderr.splitlines()
    assert "Paris" in done.stdout
    prompt_n = int(re.match(r"prompt (\d+) ", first)[1])  # type: ignore[index]
    total, reused = map(int, re.match(r"prompt (\d+) tokens \((\d+) reused\)", second).groups())  # type: ignore[union-attr]
    assert reused >= prompt_n
    assert total - reused < 24
