"""`specdec run` on a terminal."""

from typing import Any


def shown(text: str) -> str:
    """Text as a terminal gets it: the line discipline adds carriage returns."""
    return text.replace("\n", "\r\n")


def test_k4_control_characters_are_escaped(terminal: Any) -> None:
    reply = "a\x1b[2Jb\x1b]52;c;aGk=\x07c\rd\x9be"
    screen = terminal("run", "--no-stats", "hi", replies=[reply])
    assert screen.finish() == 0
    assert screen.screen == shown("a\\x1b[2Jb\\x1b]52;c;aGk=\\x07c\\x0dd\\x9be\n")


def test_k4_json_on_a_terminal_is_json_without_control_characters(terminal: Any) -> None:
    screen = terminal("run", "--json", "--no-stats", "hi", replies=["\x1b[2J\x9b\x7f"])
    assert screen.finish() == 0
    assert '"text": "\\u001b[2J\\u009b\\u007f"' in screen.screen
    assert not {"\x1b", "\x9b", "\x7f"} & set(screen.screen)


def test_control_characters_of_the_prompt_are_escaped_too(terminal: Any) -> None:
    screen = terminal("run", "--no-stats", "--show-prompt", "x\x1b[2Jy", replies=["ok"])
    screen.finish()
    assert "x\\x1b[2Jy" in screen.screen


def test_the_summary_is_dim_and_on_its_own_line(terminal: Any) -> None:
    screen = terminal("run", "-s", "7", "hi")
    assert screen.finish() == 0
    first, second = screen.screen.split("\r\n")[:2]
    assert first == "hello"
    assert second.startswith("\x1b[2mprompt 10 tokens")
    assert second.endswith("| no speculation | seed 7\x1b[0m")


def test_no_color_is_respected(terminal: Any) -> None:
    screen = terminal("run", "hi", NO_COLOR="1")
    assert screen.finish() == 0
    assert "\x1b" not in screen.screen


def test_show_draft_colours_accepted_tokens(terminal: Any) -> None:
    screen = terminal("run", "--show-draft", "--no-stats", "hi", replies=["abcdefghij"], draft=True)
    assert screen.finish() == 0
    assert "\x1b[32m" in screen.screen
    assert screen.screen.replace("\x1b[32m", "").replace("\x1b[0m", "") == shown("abcdefghij\n")
    assert screen.screen.rindex("\x1b[0m") > screen.screen.rindex("\x1b[32m")


def test_ctrl_c_ends_the_answer_with_its_figures(terminal: Any) -> None:
    screen = terminal("run", "hi", replies=["ab" * 500], delay=0.02)
    screen.wait_for("abab")
    screen.press("\x03")
    assert screen.finish() == 130
    assert "decoded" in screen.screen
    assert "Traceback" not in screen.screen
    assert len(screen.screen) < 900


def test_a_long_prompt_shows_its_progress_and_takes_it_away(terminal: Any) -> None:
    screen = terminal("run", "--no-stats", "-c", "4096", "word " * 300, delay=0.05)
    assert screen.finish() == 0
    assert "prompt 512/1508 tokens (33 %), " in screen.screen
    assert screen.screen.endswith("\r\x1b[Khello\r\n")


def test_a_terminal_without_a_prompt_says_what_to_do(terminal: Any) -> None:
    screen = terminal("run")
    assert screen.finish() == 2
    assert screen.screen == shown("error: no prompt: give it as an argument, with -f FILE, or on stdin\n")
