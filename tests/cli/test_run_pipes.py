"""`specdec run` in pipes: what is on stdout, and nothing else."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

KEYS = [
    "text", "token_ids", "prompt_token_ids", "finish_reason", "seed", "timings", "speculative_decoding",
    "settings",
]  # fmt: skip


def test_k7_only_text_on_stdout(toy: Any) -> None:
    done = toy("run", "hi", replies=["hello\nworld"])
    assert (done.code, done.out) == (0, b"hello\nworld\n")
    assert done.err.startswith("prompt 10 tokens at ")
    assert done.err.count("\n") == 1


def test_k7_only_json_on_stdout(toy: Any) -> None:
    done = toy("run", "--json", "-s", "7", "hi", replies=["hé\x1b"], draft=True)
    found = json.loads(done.out)
    assert list(found) == KEYS
    assert found["text"] == "hé\x1b"
    assert found["token_ids"] == [*"hé\x1b".encode(), 256]
    assert bytes(found["prompt_token_ids"][:-1]) == b"user: hi\n"
    assert (found["finish_reason"], found["seed"]) == ("stop", 7)
    assert found["speculative_decoding"]["num_accepted_tokens"] == found["timings"]["draft_n_accepted"] > 0
    assert found["settings"]["sampling"]["temperature"] == 0.8


def test_speculation_changes_nothing_but_the_figures(toy: Any) -> None:
    def ids(*arguments: str) -> tuple[Any, Any]:
        found = json.loads(toy("run", "--json", "hi", *arguments, replies=["abc" * 20], draft=True).out)
        return found["token_ids"], found["settings"]["drafters"]

    plain, none = ids("--no-spec")
    drafted, toys = ids("--draft-max", "7")
    assert plain == drafted
    assert (none, toys) == ([], ["toy"])


def test_no_stats_means_a_silent_stderr(toy: Any) -> None:
    assert toy("run", "--no-stats", "hi").err == ""


def test_b3_stop_texts(toy: Any) -> None:
    done = toy("run", "-r", "is", "-r", ",", "--json", "hi", replies=["user is, a"], draft=True)
    found = json.loads(done.out)
    assert (found["text"], found["finish_reason"]) == ("user ", "stop")
    assert toy("run", "-r", "is", "hi", replies=["user is, a"]).out == b"user \n"


@pytest.mark.parametrize("count", [0, 1, 8, 13])
def test_b7_the_number_of_tokens_is_the_one_asked_for(count: int, toy: Any) -> None:
    found = json.loads(toy("run", "-n", str(count), "--json", "hi", replies=["x" * 50], draft=True).out)
    assert found["finish_reason"] == "length"
    assert len(found["token_ids"]) == found["timings"]["predicted_n"] == count


def test_d1_the_end_of_the_context_is_an_end(toy: Any) -> None:
    found = json.loads(
        toy("run", "-n", "-1", "--json", "-v", "hi", replies=["x" * 99], draft=True, TOY_CTX="64").out
    )
    assert found["finish_reason"] == "length"
    assert len(found["prompt_token_ids"]) + len(found["token_ids"]) in (64, 65)


def test_a_prompt_that_does_not_fit_is_one_line(toy: Any) -> None:
    done = toy("run", "x" * 100, TOY_CTX="64")
    assert (done.code, done.out) == (2, b"")
    assert done.err == "error: the prompt has 108 tokens, the context holds 64: no room for an answer\n"


def test_k1_characters_split_over_tokens_arrive_whole(toy: Any) -> None:
    done = toy("run", "hi", replies=["\U0001f600 é"], draft=True)
    assert done.out.decode() == "\U0001f600 é\n"


def test_k4_control_characters_pass_unchanged(toy: Any) -> None:
    reply = "\x1b[2J\x1b]52;c;aGk=\x07 \r \x9b"
    assert toy("run", "hi", replies=[reply]).out == reply.encode() + b"\n"


def test_k5_an_encoding_without_the_character_gives_a_replacement(toy: Any) -> None:
    done = toy("run", "hi", replies=["né \U0001f600"], PYTHONIOENCODING="cp1252", PYTHONUTF8="0")
    assert (done.code, done.out) == (0, "né ?\n".encode("cp1252"))
    done = toy("run", "--json", "hi", replies=["né \U0001f600"], PYTHONIOENCODING="cp1252", PYTHONUTF8="0")
    assert json.loads(done.out.decode("ascii"))["text"] == "né \U0001f600"


def test_a_chosen_error_handler_is_respected(toy: Any) -> None:
    done = toy("run", "hi", replies=["\U0001f600"], PYTHONIOENCODING="ascii:backslashreplace", PYTHONUTF8="0")
    assert done.out == b"\\U0001f600\n"


def test_k8_a_reader_that_goes_away_is_no_error(toy: Any) -> None:
    process = toy.start("run", "-n", "-1", "hi", replies=["line\n" * 500], delay=0.001)
    assert process.stdout.readline() == b"line\n"
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(timeout=20) == 1
    assert err == ""


def test_text_is_streamed_while_it_is_generated(toy: Any) -> None:
    process = toy.start("run", "hi", replies=["ab" * 300], delay=0.02)
    with process:
        first = process.stdout.read(4)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=20)
    assert first == b"abab"
    assert len(rest) < 500


def test_no_stream_prints_at_the_end(toy: Any) -> None:
    process = toy.start("run", "--no-stream", "hi", replies=["ab" * 40], delay=0.01)
    with process:
        started = time.monotonic()
        assert process.stdout.read(1) == b"a"
        assert time.monotonic() - started > 0.5
        rest = process.stdout.read()
        process.stderr.read()
    assert b"a" + rest == b"ab" * 40 + b"\n"


@pytest.mark.parametrize("arguments", [[], ["--no-stream"], ["--json"]])
def test_ctrl_c_prints_what_there_is_and_the_figures(arguments: list[str], toy: Any) -> None:
    process = toy.start("run", *arguments, "hi", replies=["ab" * 300], delay=0.02)
    time.sleep(2.0)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    text = json.loads(out)["text"] if arguments == ["--json"] else out.decode().rstrip("\n")
    assert process.returncode == 130
    assert text
    assert ("ab" * 300).startswith(text)
    assert "decoded" in err.decode()
    assert "Traceback" not in err.decode()
    if arguments == ["--json"]:
        assert json.loads(out)["finish_reason"] == "cancelled"


def test_the_output_file_gets_the_text_instead_of_stdout(toy: Any, tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    done = toy("run", "-o", str(path), "hi", replies=["né\x1b"])
    assert (done.code, done.out, path.read_bytes()) == (0, b"", "né\x1b\n".encode())
    done = toy("run", "-o", str(path), "--json", "hi", PYTHONIOENCODING="ascii")
    assert (done.code, done.out) == (0, b"")
    assert list(json.loads(path.read_text())) == KEYS


def test_an_output_file_in_no_directory_fails_before_anything_runs(toy: Any, tmp_path: Path) -> None:
    done = toy("run", "-o", str(tmp_path / "no" / "out.txt"), "hi")
    assert (done.code, done.out) == (2, b"")
    assert done.err.startswith("error: -o ")


def test_the_prompt_comes_from_stdin(toy: Any) -> None:
    found = json.loads(toy("run", "--json", stdin="grüß\n".encode()).out)
    assert bytes(found["prompt_token_ids"][:-1]).decode() == "user: grüß\n"
    found = json.loads(toy("run", "--json", "--raw", "Say:", "-", stdin=b"x\n").out)
    assert bytes(found["prompt_token_ids"][:-1]) == b"Say:\n\nx"


def test_k9_no_prompt_at_all(toy: Any) -> None:
    done = toy("run")
    assert (done.code, done.out, done.err) == (2, b"", "error: the prompt is empty\n")


def test_the_system_prompt_and_the_exact_prompt(toy: Any) -> None:
    done = toy("run", "-sys", "be brief", "--show-prompt", "--no-stats", "hi")
    assert done.out == b"hello\n"
    assert done.err == "system: be brief\nuser: hi\n<answer>\n"


def test_verbose_tells_why_it_ended(toy: Any) -> None:
    assert "finish reason: length (-n)\n" in toy("run", "-v", "-n", "2", "hi").err
    assert "finish reason: stop\n" in toy("run", "-v", "hi").err


def test_colours_in_a_pipe_only_by_force(toy: Any) -> None:
    done = toy("run", "--show-draft", "hi", draft=True)
    assert done.code == 2
    assert "--show-draft needs colours" in done.err
    done = toy(
        "run", "--show-draft", "--color", "always", "--no-stats", "hi", replies=["abcdefgh"], draft=True
    )
    assert b"\x1b[32m" in done.out
    assert done.out.replace(b"\x1b[32m", b"").replace(b"\x1b[0m", b"") == b"abcdefgh\n"


def test_show_draft_contradicts_json(toy: Any) -> None:
    done = toy("run", "--show-draft", "--json", "--color", "always", "hi")
    assert done.code == 2
    assert "--show-draft contradicts --json" in done.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [[], ["--json"], ["--no-stream"]])
def test_a_full_disk_is_one_line(arguments: list[str], toy: Any) -> None:
    with Path("/dev/full").open("wb") as full:
        done = toy("run", *arguments, "hi", stdout=full)
    assert done.code == 1
    assert done.err.splitlines()[-1] == "error: No space left on device"


def test_a_closed_stdin_is_no_obstacle(toy: Any) -> None:
    command = ["sh", "-c", 'exec "$@" <&-', "sh", *toy.command("run")]
    done = subprocess.run(
        [*command, "hi"], capture_output=True, check=False, timeout=30, env=toy.environment()
    )
    assert (done.returncode, done.stdout) == (0, b"hello\n")
    done = subprocess.run(command, capture_output=True, check=False, timeout=30, env=toy.environment())
    assert (done.returncode, done.stderr) == (
        2,
        b"error: no prompt: give it as an argument, with -f FILE, or on stdin\n",
    )
