"""Where the prompt comes from."""

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from specdec_cli.cli import prompt_input
from specdec_cli.cli.options import PromptOptions
from specdec_cli.cli.prompt_input import read_prompt
from specdec_cli.errors import SpecdecError, UsageError


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_bytes(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    set_bytes(b"")
    return set_bytes


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / "note.txt"
    path.write_bytes("ein Brief\nmit ö\n".encode())
    return path


def test_each_source_alone(stdin: Any, note: Path) -> None:
    assert read_prompt(PromptOptions(words=["hi"])) == "hi"
    assert read_prompt(PromptOptions(prompt="hi")) == "hi"
    assert read_prompt(PromptOptions(file=note)) == "ein Brief\nmit ö"
    stdin("aus der Röhre\n".encode())
    assert read_prompt(PromptOptions()) == "aus der Röhre"
    stdin(b"dash")
    assert read_prompt(PromptOptions(words=["-"])) == "dash"
    stdin(b"dash file")
    assert read_prompt(PromptOptions(file=Path("-"))) == "dash file"


def test_an_instruction_goes_before_a_text(stdin: Any, note: Path) -> None:
    assert read_prompt(PromptOptions(words=["Summarise:"], file=note)) == "Summarise:\n\nein Brief\nmit ö"
    stdin(b"diff")
    assert read_prompt(PromptOptions(words=["Explain", "-"])) == "Explain\n\ndiff"


def test_stdin_is_left_alone_when_a_prompt_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()  # never closed while the test runs: reading it would hang
    with os.fdopen(read_end) as pipe, os.fdopen(write_end, "w"):
        monkeypatch.setattr(sys, "stdin", pipe)
        assert read_prompt(PromptOptions(words=["hi"])) == "hi"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"words": ["a", "b"]}, "'b' is a second one"),
        ({"words": ["a"], "prompt": "b"}, "as an argument and with --prompt"),
        ({"words": ["-", "-"]}, "- is given twice"),
        ({"words": ["-"], "file": Path("x")}, "--file and - (stdin)"),
        ({"words": ["-"], "file": Path("-")}, "- is given twice"),
        ({"words": [""]}, "the prompt is empty"),
        ({"prompt": ""}, "the prompt is empty"),
        ({}, "the prompt is empty"),
        ({"words": ["\udcff"]}, "not valid UTF-8"),
    ],
)
def test_wrong_combinations_are_refused(options: dict[str, Any], message: str, stdin: Any) -> None:
    with pytest.raises(UsageError) as refused:
        read_prompt(PromptOptions(**options))
    assert message in str(refused.value)


def test_a_terminal_without_a_prompt_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    with pytest.raises(UsageError, match="no prompt: give it"):
        read_prompt(PromptOptions())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x89PNG\r\n", "not UTF-8 text (byte 0x89 at offset 0)"),
        ("utf-16".encode("utf-16"), "not UTF-8 text (byte 0xff at offset 0)"),
        (b"text\0more", "NUL byte at offset 4"),
    ],
)
def test_a_binary_file_is_refused(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "prompt.bin"
    path.write_bytes(data)
    with pytest.raises(SpecdecError) as refused:
        read_prompt(PromptOptions(file=path))
    assert str(refused.value).startswith(f"{path}: ")
    assert message in str(refused.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(SpecdecError, match="Is a directory"):
        read_prompt(PromptOptions(file=tmp_path))
    with pytest.raises(SpecdecError, match="No such file"):
        read_prompt(PromptOptions(file=tmp_path / "none"))
    locked = tmp_path / "locked"
    locked.write_text("x")
    locked.chmod(0)
    if os.geteuid() != 0:
        with pytest.raises(SpecdecError, match="Permission denied"):
            read_prompt(PromptOptions(file=locked))


def test_a_huge_file_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_input, "_MAX_BYTES", 1 << 20)
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SpecdecError, match="larger than 1 MiB"):
        read_prompt(PromptOptions(file=path))


def test_only_one_final_newline_and_a_byte_order_mark_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(b"\xef\xbb\xbf a\r\n\n\n")
    assert read_prompt(PromptOptions(file=path)) == " a\r\n\n"
