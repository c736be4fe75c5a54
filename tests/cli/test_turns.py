"""Turns of a chat: several lines, commands, the conversation."""

import io

import pytest

from specdec_cli.cli.turns import Conversation, PipedLines, command_of, read_turn
from specdec_cli.errors import SpecdecError


def turns(text: str) -> list[str | None]:
    source = PipedLines(io.BytesIO(text.encode()))
    found: list[str | None] = []
    while not found or found[-1] is not None:
        found.append(read_turn(source))
    return found[:-1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("one\ntwo", ["one", "two"]),
        ("dos\r\n\n", ["dos", ""]),
        ('"""a\nb\n"""\nnext\n', ["a\nb", "next"]),
        ('"""\na\n\n  b"""\n', ["a\n\n  b"]),
        ('"""one line"""\n', ["one line"]),
        ('"""never closed\nb', ["never closed\nb"]),
        ('say """ok""" now\n', ['say """ok""" now']),
    ],
)
def test_lines_become_turns(text: str, expected: list[str]) -> None:
    assert turns(text) == expected


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(SpecdecError, match="stdin: not UTF-8"):
        read_turn(PipedLines(io.BytesIO(b"\xff\n")))


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/exit", "/exit"),
        ("/clear now", "/clear"),
        ("/nonsense", "/nonsense"),
        ("/etc/passwd is what?", None),
        ("/ what", None),
        ("no /exit", None),
    ],
)
def test_commands_are_told_from_text(text: str, command: str | None) -> None:
    assert command_of(text) == command


def test_a_conversation_alternates_and_keeps_its_system_message() -> None:
    talk = Conversation("be brief")
    talk.add("q1", "a1")
    asked = talk.with_question("q2")
    assert [m["role"] for m in asked] == ["system", "user", "assistant", "user"]
    assert talk.with_question("q3")[-1] == {"role": "user", "content": "q3"}
    talk.clear()
    assert talk.with_question("q4") == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "q4"},
    ]
