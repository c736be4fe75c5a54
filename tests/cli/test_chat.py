"""`specdec chat`: from a pipe and on a terminal."""

from typing import Any

import pytest

READY = "\x1b[?2004h"  # the line editor asks the terminal to mark what is pasted: it waits for input


def test_each_line_of_a_pipe_is_a_turn(toy: Any) -> None:
    done = toy("chat", "--no-stats", stdin=b"one\ntwo\n", replies=["first", "second\n"])
    assert (done.code, done.out, done.err) == (0, b"first\nsecond\n", "")


def test_later_turns_reuse_what_is_computed(toy: Any) -> None:
    done = toy("chat", stdin=b"one\ntwo\n", replies=["first", "second"])
    first, second = done.err.splitlines()
    assert first.startswith("prompt 11 tokens at ")
    # 11 of the first prompt and 5 of the answer are there; its end token was never computed.
    assert second.startswith("prompt 28 tokens (16 reused) at ")


def test_the_conversation_is_what_the_model_sees(toy: Any) -> None:
    done = toy(
        "chat",
        "-sys",
        "be brief",
        "--show-prompt",
        "--no-stats",
        stdin=b"one\ntwo\n",
        replies=["first", "second"],
    )
    assert done.err.splitlines()[-4:] == [
        "system: be brief",
        "user: one",
        "<answer>first<eos>user: two",
        "<answer>",
    ]


def test_several_lines_and_commands(toy: Any) -> None:
    script = b'"""\na\nb\n"""\n\n/clear\n/help\nlast\n/exit\nnever\n'
    done = toy("chat", "--show-prompt", "--no-stats", stdin=script, replies=["first", "second"])
    assert (done.code, done.out) == (0, b"first\nfirst\n")
    assert "user: a\nb\n<answer>\n" in done.err
    assert "the conversation is forgotten\n" in done.err
    assert "/clear  forget the conversation" in done.err
    assert done.err.endswith("user: last\n<answer>\n")
    assert "never" not in done.err


def test_an_unknown_command_is_an_error_and_not_a_message(toy: Any) -> None:
    done = toy("chat", "--no-stats", stdin=b"/frobnicate\nhi\n")
    assert (done.code, done.out) == (1, b"hello\n")
    assert done.err == "error: unknown command /frobnicate; /help lists them\n"


@pytest.mark.parametrize("stdin", [None, b"", b"\n\n"])
def test_k9_nothing_to_say(stdin: bytes | None, toy: Any) -> None:
    done = toy("chat", stdin=stdin)
    assert (done.code, done.out, done.err) == (0, b"", "")


def test_a_turn_that_does_not_fit_is_reported_and_forgotten(toy: Any) -> None:
    done = toy("chat", "--no-stats", stdin=b"x" * 100 + b"\nshort\n", TOY_CTX="64")
    assert (done.code, done.out) == (1, b"hello\n")
    assert done.err.startswith("error: the prompt has 108 tokens, the context holds 64")


def test_input_that_is_no_text_is_one_line(toy: Any) -> None:
    done = toy("chat", stdin=b"\xff\xfe\n")
    assert (done.code, done.err) == (1, "error: stdin: not UTF-8 text\n")


def test_speculation_changes_nothing(toy: Any) -> None:
    script = b"one\ntwo\nthree\n"
    plain = toy("chat", "--no-spec", stdin=script, replies=["a" * 9, "b" * 30, "c"], draft=True)
    drafted = toy("chat", stdin=script, replies=["a" * 9, "b" * 30, "c"], draft=True)
    assert plain.out == drafted.out == b"a" * 9 + b"\n" + b"b" * 30 + b"\nc\n"
    assert "no speculation" in plain.err
    assert "accepted (" in drafted.err


def test_a_terminal_session(terminal: Any) -> None:
    screen = terminal("chat", replies=["first answer", "second\x1b[2J"])
    screen.wait_for(READY)
    screen.press("one\r")
    screen.wait_for("first answer")
    screen.wait_for("seed")
    screen.wait_for(READY)
    screen.press("two\r")
    assert "second\\x1b[2J" in screen.wait_for("reused")
    screen.wait_for(READY)
    screen.press("\x04")
    assert screen.finish() == 0
    assert "Traceback" not in screen.screen


def test_k9_ctrl_c_stops_the_answer_and_the_session_goes_on(terminal: Any) -> None:
    screen = terminal("chat", "--show-prompt", replies=["ab" * 400, "more"], delay=0.02)
    screen.wait_for(READY)
    screen.press("one\r")
    screen.wait_for("abababab")
    screen.press("\x03")
    screen.wait_for("seed")
    screen.wait_for(READY)
    screen.press("continue\r")
    after = screen.wait_for("more")
    # The interrupted answer is a finished turn for the model.
    assert "<eos>user: continue" in after.replace("\r\n", "")
    screen.wait_for(READY)
    screen.press("/exit\r")
    assert screen.finish() == 0


def test_a_second_ctrl_c_leaves(terminal: Any) -> None:
    screen = terminal("chat", replies=["ab" * 400], delay=0.02)
    screen.wait_for(READY)
    screen.press("one\r")
    screen.wait_for("abababab")
    screen.press("\x03")
    screen.wait_for("seed")
    screen.wait_for(READY)
    screen.press("\x03")
    assert screen.finish() == 130
    assert "Traceback" not in screen.screen


def test_ctrl_c_empties_the_line_then_warns_then_leaves(terminal: Any) -> None:
    screen = terminal("chat")
    screen.wait_for(READY)
    screen.press("some words")
    screen.wait_for("words")
    screen.press("\x03")
    screen.press("\x03")
    screen.wait_for("Ctrl-C again or Ctrl-D leaves")
    screen.wait_for(READY)
    screen.press("\x03")
    assert screen.finish() == 130
    assert "hello" not in screen.screen


def test_several_lines_on_a_terminal(terminal: Any) -> None:
    screen = terminal("chat", "--show-prompt")
    screen.wait_for(READY)
    screen.press('"""first\r')
    screen.wait_for(READY)
    screen.press('second"""\r')
    assert "user: first\r\nsecond\r\n<answer>" in screen.wait_for("hello")
    screen.wait_for(READY)
    screen.press("\x04")
    assert screen.finish() == 0
