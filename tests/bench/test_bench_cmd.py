"""`specdec bench` on tiny models."""

import csv
import io
import json
import os
import subprocess
import sys

import pytest

from specdec_cli.cli import bench as bench_module


@pytest.fixture
def model(tiny_gguf):
    return tiny_gguf("qwen2", n_ctx=256)


def test_json_has_rows_settings_and_equality(specdec, model, prompt_file):
    done = specdec(
        "bench", "-m", model, "-n", 12, "-r", 2, "--temp", 0, "-t", 1, "-s", 5, "--prompts", prompt_file,
        "--spec", "none,ngram,suffix", "-o", "json",
    )  # fmt: skip
    assert done.code == 0, done.err
    document = done.json
    assert document["equal"] is True
    assert document["forks"] == []
    assert [(r["category"], r["strategy"], r["prompts"]) for r in document["rows"]] == [
        (category, strategy, prompts)
        for category, prompts in (("a", 2), ("b", 2), ("all", 4))
        for strategy in ("none", "ngram", "suffix")
    ]
    assert all(row["decode_tps"] > 0 for row in document["rows"])
    plain = document["rows"][0]
    assert (plain["speedup"], plain["mean_acceptance_length"], plain["draft_acceptance_rate"]) == (1, 1, None)
    settings = document["settings"]
    assert settings["model_fingerprint"]
    assert (settings["threads"], settings["seed"], settings["n_predict"]) == (1, 5, 12)
    assert settings["prompts"]["count"] == 4
    assert settings["strategies"] == ["none", "ngram", "suffix"]
    assert document["machine"]["cpu"]
    assert document["machine"]["isa"]
    assert document["t_ratio"]["1"] == 1
    assert len(document["runs"]) == 4 * 3 * 2
    first, second = document["runs"][:3], document["runs"][12:15]
    assert [run["strategy"] for run in first] == ["none", "ngram", "suffix"]
    assert [run["strategy"] for run in second] == ["ngram", "suffix", "none"]


def test_markdown_ends_with_advice_and_csv_is_only_rows(specdec, model, prompt_file):
    common = ("bench", "-m", model, "-n", 6, "-r", 1, "--prompts", prompt_file, "--spec", "ngram")
    done = specdec(*common)
    assert done.code == 0, done.err
    assert done.out.startswith("- model ")
    assert "| all" in done.out
    assert done.out.splitlines()[-1].endswith(".")
    assert "prompts that read like random tokens" in done.err  # weights drawn by lot expect nothing
    done = specdec(*common, "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert [(row["category"], row["strategy"]) for row in rows][-1] == ("all", "ngram")


def test_without_spec_every_drafter_and_auto_take_part(specdec, model, prompt_file):
    done = specdec("bench", "-m", model, "-n", 4, "-r", 1, "--prompts", prompt_file, "-o", "json")
    assert done.json["settings"]["strategies"] == ["none", "ngram", "suffix", "auto"]
    done = specdec(
        "bench", "-m", model, "-md", model, "-n", 4, "-r", 1, "--prompts", prompt_file, "-o", "json"
    )
    assert done.json["settings"]["strategies"] == ["none", "ngram", "suffix", "draft", "auto"]
    assert done.json["settings"]["draft_model"] == str(model)


def test_a7_the_model_itself_as_draft_is_always_accepted(specdec, model, prompt_file):
    done = specdec(
        "bench", "-m", model, "-md", model, "-n", 20, "-r", 1, "--prompts", prompt_file, "--spec", "draft",
        "--draft-max", 3, "-o", "json",
    )  # fmt: skip
    row = done.json["rows"][-1]
    assert (row["strategy"], row["draft_acceptance_rate"], row["equal"]) == ("draft", 1.0, True)
    assert row["acceptance_per_position"] == [1.0, 1.0, 1.0]
    assert 0 < row["draft_share"] < 1


def test_m3_a_sweep_has_a_row_for_each_length_and_names_the_best(specdec, model, prompt_file):
    done = specdec(
        "bench", "-m", model, "-n", 8, "-r", 1, "--prompts", prompt_file, "--spec", "none,ngram,auto",
        "--sweep", "--draft-lengths", "1-2,4", "-o", "json",
    )  # fmt: skip
    rows = [(r["strategy"], r["draft_max"]) for r in done.json["rows"] if r["category"] == "all"]
    assert rows == [("none", None), ("ngram", 1), ("ngram", 2), ("ngram", 4), ("auto", None)]
    assert done.json["best_draft_length"]["ngram"] in (1, 2, 4)


def test_predictions_of_the_prompts_are_used(specdec, model, prompt_file, tmp_path):
    """The answer of the first run, given as prediction in the second one, is accepted."""
    run = specdec("run", "-m", model, "--raw", "-n", 30, "--temp", 0, "the the the the the the", "--no-stats")
    line = {"id": "x", "category": "c", "prompt": "the the the the the the", "prediction": run.out}
    plain = {"id": "y", "category": "c", "prompt": "an an an in an an an in an an an in"}
    file = tmp_path / "predicted.jsonl"
    file.write_text(json.dumps(line) + "\n" + json.dumps(plain) + "\n")
    done = specdec(
        "bench",
        "-m",
        model,
        "-n",
        30,
        "-r",
        1,
        "--temp",
        0,
        "--prompts",
        file,
        "--spec",
        "predict",
        "-o",
        "json",
    )
    drafted = {
        run["prompt"]: run["speculative_decoding"]["num_draft_tokens"]
        for run in done.json["runs"]
        if run["strategy"] == "predict"
    }
    assert drafted["x"] > 0
    assert drafted["y"] == 0
    assert done.json["equal"]


def test_a_lying_executor_is_reported_with_exit_code_1(specdec, model, prompt_file, lying):
    common = (
        "bench", "-m", model, "-md", model, "-n", 12, "-r", 1, "--temp", 0, "--prompts", prompt_file,
        "--spec", "draft",
    )  # fmt: skip
    done = specdec(*common, "-o", "json")
    assert done.code == 1
    assert done.json["equal"] is False
    fork = done.json["forks"][0]
    assert fork["strategy"] == "draft"
    assert fork["plain"]["id"] != fork["found"]["id"]
    assert fork["recomputed"] == fork["plain"]
    assert fork["top_2_gap"] > 0
    done = specdec(*common)
    assert done.code == 1
    assert "FORK: prompt " in done.out
    assert "which is a bug of specdec" in done.out


def test_a_plot_is_written(specdec, model, prompt_file, tmp_path):
    path = tmp_path / "bench.png"
    done = specdec(
        "bench", "-m", model, "-n", 4, "-r", 1, "--prompts", prompt_file, "--spec", "ngram", "--plot", path
    )
    assert done.code == 0, done.err
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--spec", "none,eagle"), "unknown drafter 'eagle'"),
        (("--spec", "ngram,ngram"), "ngram is given twice"),
        (("--spec", "auto+ngram"), "auto and none stand alone"),
        (("--spec", "predict", "--prompts", "PLAIN"), "predict needs a text"),
        (("--no-spec",), "plain decoding is always a part"),
        (("-r", "0"), "-r 0"),
        (("--warm-up", "-1"), "--warm-up -1"),
        (("--limit", "0"), "--limit 0"),
        (("--depth", "0"), "--depth belongs to --curve"),
        (("--draft-lengths", "1"), "--draft-lengths belongs to --sweep"),
        (("--sweep", "--draft-lengths", "0"), "0 is less than 1"),
        (("--sweep", "--draft-lengths", "x"), "expected numbers"),
        (("--plot", "x.txt"), "must end in"),
        (("--temp", "-1"), "temperature"),
        (("--isa", "avx2", "--executor", "torch"), "only the native executor"),
        (("--curve", "--temp", "0"), "--temp: no meaning with --curve"),
        (("--curve", "--spec", "ngram", "--sweep"), "--spec, --sweep: no meaning with --curve"),
        (("--curve", "--depth", "x"), "--depth x"),
    ],
)
def test_what_cannot_be_is_refused_before_a_model_is_loaded(
    specdec, monkeypatch, tmp_path, arguments, complaint
):
    monkeypatch.setattr("specdec_cli.loader.load_model", lambda *_, **__: pytest.fail("loaded a model"))
    plain = tmp_path / "plain.jsonl"
    plain.write_text('{"id": "x", "category": "c", "prompt": "text"}\n')
    done = specdec("bench", *(str(plain) if a == "PLAIN" else a for a in arguments))
    assert done.code == 2
    assert complaint in done.err
    assert done.out == ""
    assert len(done.err.splitlines()) == 1


def test_files_of_prompts_that_are_wrong(specdec, model, tmp_path):
    done = specdec("bench", "-m", model, "--prompts", tmp_path / "none.jsonl")
    assert done.code == 1
    assert "none.jsonl: No such file" in done.err
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"id": "x"}\n')
    done = specdec("bench", "-m", model, "--prompts", broken)
    assert done.code == 1
    assert "broken.jsonl, line 1" in done.err


def test_a_prompt_that_does_not_fit_is_named(specdec, model, tmp_path):
    file = tmp_path / "long.jsonl"
    file.write_text(json.dumps({"id": "long-one", "category": "c", "prompt": "x" * 300}) + "\n")
    done = specdec("bench", "-m", model, "--prompts", file, "--spec", "ngram")
    assert done.code == 2
    assert "prompt long-one has 300 tokens, the context holds 256" in done.err


def test_a_forced_isa_is_used(model, prompt_file):
    """In a process of its own: the instruction set is chosen once."""
    arguments = ["-m", model, "-n", "4", "-r", "1", "--prompts", prompt_file, "--spec", "ngram"]
    command = [
        sys.executable,
        "-m",
        "specdec_cli.cli.main",
        "bench",
        "--isa",
        "scalar",
        "-o",
        "json",
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["machine"]["isa"] == "scalar"
    command[command.index("scalar")] = "mmx"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "mmx" in done.stderr


def test_another_isa_than_the_one_in_use_is_refused(specdec, model, monkeypatch):
    monkeypatch.setenv("SPECDEC_FORCE_ISA", os.environ.get("SPECDEC_FORCE_ISA", ""))
    monkeypatch.setattr("specdec_cli.bench.machine.native_info", lambda: {"isa": "avx2"})
    done = specdec("bench", "-m", model, "--isa", "scalar")
    assert done.code == 2
    assert "this process uses avx2 already" in done.err


def test_progress_goes_to_the_status_line():
    shown = []

    class Reporter:
        status = staticmethod(shown.append)

    from specdec_cli.bench.harness import Step

    progress = bench_module.ProgressBar(Reporter())
    progress(Step(0, 4, "none", "x"))
    progress(Step(2, 4, "ngram", "y"))
    assert shown[0] == "[--------------------] 0/4 x none"
    assert shown[1].startswith("[##########----------] 2/4 y ngram, ")
    assert shown[1].endswith(" s left")
