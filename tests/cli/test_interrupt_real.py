"""Ctrl-C (a real SIGINT) at a command that works on a real model: how soon it ends, and with what."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.skipif(os.name == "nt", reason="SIGINT of POSIX")]

LIMIT = 0.3  # seconds
LONG = " ".join(f"word{number}" for number in range(700))  # 2.7 thousand tokens: many seconds of prefill


@contextmanager
def specdec(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "specdec_cli", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, bufsize=1, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def interrupt(process: "subprocess.Popen[str]") -> tuple[float, str]:
    """Seconds from the signal to the end of the process, and the rest of its stderr."""
    assert process.poll() is None
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.wait(timeout=30)
    elapsed = time.monotonic() - started
    assert process.stderr is not None
    errors = process.stderr.read()
    assert "Traceback" not in errors
    return elapsed, errors


def wait_for(process: "subprocess.Popen[str]", text: str) -> None:
    """Read stderr until a line contains `text`."""
    assert process.stderr is not None
    while text not in (line := process.stderr.readline()):
        assert line, "the process ended early"


@pytest.fixture
def big(model_path: Callable[[str], Path]) -> str:
    return str(model_path("qwen2.5-coder-1.5b"))


@pytest.mark.parametrize("delay", [0.05, 0.3, 0.6, 0.9])
def test_ctrl_c_while_it_starts_and_loads(big: str, delay: float) -> None:
    with specdec("run", "-m", big, "--no-spec", "hello") as process:
        time.sleep(delay)
        elapsed, errors = interrupt(process)
    assert (process.returncode, errors) == (130, "")
    assert elapsed < LIMIT


@pytest.mark.parametrize("delay", [0.2, 1.0])
def test_ctrl_c_in_a_prefill(big: str, delay: float) -> None:
    with specdec("run", "-v", "-m", big, "--no-spec", LONG) as process:
        wait_for(process, "loaded ")
        time.sleep(delay)
        elapsed, errors = interrupt(process)
        assert process.stdout is not None
        assert process.stdout.read().strip() == ""
    assert process.returncode == 130
    assert "finish reason: cancelled" in errors
    assert "decoded 0 tokens" in errors
    assert elapsed < LIMIT


@pytest.mark.parametrize("spec", [["--no-spec"], ["--spec", "ngram,draft"]])
def test_ctrl_c_while_it_decodes(big: str, spec: list[str]) -> None:
    with specdec(
        "run", "-v", "-m", big, *spec, "--temp", "0", "Count from 1 to 400, one per line."
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        elapsed, errors = interrupt(process)
    assert process.returncode == 130
    assert "finish reason: cancelled" in errors
    assert elapsed < LIMIT


def test_ctrl_c_in_the_prefill_of_a_chat_leaves_it_usable(big: str) -> None:
    with specdec("chat", "-v", "-m", big, "--no-spec", "--temp", "0", "-n", "8") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(LONG + "\n")
        wait_for(process, "loaded ")
        time.sleep(1)
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        wait_for(process, "finish reason: cancelled")
        assert time.monotonic() - started < LIMIT
        process.stdin.write("What is the capital of France? One word.\n")
        wait_for(process, "finish reason: ")
        process.stdin.close()
        assert process.wait(timeout=30) == 0
        assert "Paris" in process.stdout.read()


def test_ctrl_c_of_json_output_is_a_whole_document(big: str) -> None:
    with specdec("run", "-v", "--json", "-m", big, "--no-spec", LONG) as process:
        wait_for(process, "loaded ")
        time.sleep(0.5)
        interrupt(process)
        assert process.stdout is not None
        document = json.loads(process.stdout.read())
    assert process.returncode == 130
    assert (document["finish_reason"], document["token_ids"]) == ("cancelled", [])
