"""`specdec verify` on tiny models."""

import pytest

from specdec_cli.cli import verify as verify_module
from specdec_cli.cli.verify import parse_temperatures
from specdec_cli.errors import UsageError


@pytest.fixture
def model(tiny_gguf):
    return tiny_gguf("qwen2", n_ctx=256)


def test_a2_every_strategy_length_and_temperature(specdec, model, prompt_file):
    done = specdec(
        "verify", "-m", model, "-md", model, "--prompts", prompt_file, "-n", 16, "-s", 3,
        "--draft-lengths", "0,1,3,7", "--spec", "ngram,draft,auto",
    )  # fmt: skip
    assert done.code == 0, done.err + done.out
    lines = done.out.splitlines()
    labels = [f"{name}@{k}" for name in ("ngram", "draft") for k in (0, 1, 3, 7)] + ["auto"]
    assert [line.partition(": ")[0] for line in lines[:-1]] == [
        f"{label}, temperature {temperature}" for temperature in ("0", "0.8") for label in labels
    ]
    assert all(": 4/4 equal" in line for line in lines[:-1])
    draft = [line for line in lines if line.startswith("draft@3")]
    assert all(line.endswith("draft acceptance rate 100.0 %") for line in draft)
    assert lines[-1].startswith("EQUAL: 72 outputs, ")


def test_a_lying_executor_is_caught(specdec, model, prompt_file, lying):
    common = (
        "verify", "-m", model, "-md", model, "--prompts", prompt_file, "-n", 12, "--temps", "0",
        "--draft-lengths", "0,3", "--spec", "draft",
    )  # fmt: skip
    done = specdec(*common)
    assert done.code == 1
    assert "draft@0, temperature 0: 4/4 equal" in done.out
    assert "FORK: prompt a1, strategy draft@3 at temperature 0, output token " in done.out
    assert "; top-2 gap " in done.out
    assert done.out.splitlines()[-1].startswith("NOT EQUAL: ")
    done = specdec(*common, "-o", "json")
    assert done.code == 1
    fork = done.json["forks"][0]
    assert fork["recomputed"] == fork["plain"]
    assert fork["found"]["id"] != fork["plain"]["id"]
    assert fork["top_2_gap"] > 0


def test_json_holds_the_ids_of_plain_decoding(specdec, model, prompt_file):
    done = specdec(
        "verify",
        "-m",
        model,
        "--prompts",
        prompt_file,
        "-n",
        5,
        "--temps",
        "0",
        "--spec",
        "none",
        "-o",
        "json",
    )
    assert done.code == 0
    assert [entry["prompt"] for entry in done.json["plain"]] == ["a1", "a2", "b1", "b2"]
    assert all(0 < len(entry["token_ids"]) <= 5 for entry in done.json["plain"])
    assert done.json["num_runs"] == 0


def test_a_restart_compares_with_a_fresh_process(specdec, model, prompt_file):
    done = specdec(
        "verify", "-m", model, "--prompts", prompt_file, "-n", 8, "--draft-lengths", "2", "--spec", "ngram",
        "--restart",
    )  # fmt: skip
    assert done.code == 0, done.err + done.out
    assert "restart, temperature 0: 4/4 equal" in done.out
    assert "restart, temperature 0.8: 4/4 equal" in done.out  # the seed drawn here is used there


def test_a_difference_after_a_restart_is_reported(specdec, model, prompt_file, monkeypatch):
    real = verify_module._outputs_of_fresh_process

    def other(*groups):
        outputs = dict(real(*groups))
        outputs["a2", 0.0] = [*outputs["a2", 0.0][:2], 5, *outputs["a2", 0.0][3:]]
        return outputs

    monkeypatch.setattr(verify_module, "_outputs_of_fresh_process", other)
    done = specdec(
        "verify", "-m", model, "--prompts", prompt_file, "-n", 8, "--temps", "0", "--draft-lengths", "2",
        "--spec", "ngram", "--restart",
    )  # fmt: skip
    assert done.code == 1
    assert "FORK: prompt a2, strategy restart at temperature 0, output token 2" in done.out


def test_a_fresh_process_that_fails_is_an_error(specdec, model, prompt_file, monkeypatch):
    monkeypatch.setattr(verify_module, "as_arguments", lambda *_: ["--no-such-option"])
    done = specdec(
        "verify", "-m", model, "--prompts", prompt_file, "-n", 2, "--draft-lengths", "2", "--spec", "ngram",
        "--restart",
    )  # fmt: skip
    assert done.code == 1
    assert "the fresh process failed: " in done.err


@pytest.mark.parametrize("text", ["", "a", "0,,1", "-1", "nan", "inf"])
def test_temperatures_that_make_no_sense(text):
    with pytest.raises(UsageError, match="--temps"):
        parse_temperatures(text)


def test_temperatures():
    assert parse_temperatures("0,0.8,0") == (0.0, 0.8)
