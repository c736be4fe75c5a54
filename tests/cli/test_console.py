"""Output streams: escaping, colour, status line, files."""

import io
from pathlib import Path

import pytest

from specdec_cli.cli.console import AnswerWriter, OutputFile, Reporter, use_color
from specdec_cli.cli.options import Color
from specdec_cli.errors import UsageError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def written(pieces: list[tuple[str, bool]], *, escape: bool = False, color: bool = False) -> str:
    stream = io.StringIO()
    writer = AnswerWriter(stream, escape=escape, color=color)
    for text, accepted in pieces:
        writer.write(text, accepted=accepted)
    writer.end()
    return stream.getvalue()


def test_text_ends_with_one_newline() -> None:
    assert written([("a", False), ("b", True)]) == "ab\n"
    assert written([("a\n", False)]) == "a\n"
    assert written([("", False)]) == ""


def test_k4_raw_in_a_pipe_escaped_on_a_terminal() -> None:
    pieces = [("\x1b", False), ("[2J\x9b", False), ("\r", False)]
    assert written(pieces) == "\x1b[2J\x9b\r\n"
    assert written(pieces, escape=True) == "\\x1b[2J\\x9b\\x0d\n"


def test_accepted_draft_tokens_are_coloured() -> None:
    pieces = [("a", False), ("b", True), ("", False), ("c", True), ("d", False), ("e", True)]
    assert written(pieces, color=True) == "a\x1b[32mbc\x1b[0md\x1b[32me\x1b[0m\n"


def test_a_writer_serves_several_answers() -> None:
    stream = io.StringIO()
    writer = AnswerWriter(stream, escape=False)
    for text in ("one", "", "two\n"):
        writer.write(text)
        writer.end()
    assert stream.getvalue() == "one\ntwo\n"


@pytest.mark.parametrize(
    ("stream", "choice", "environment", "expected"),
    [
        (Terminal(), Color.AUTO, {}, True),
        (Terminal(), Color.AUTO, {"NO_COLOR": "1"}, False),
        (Terminal(), Color.AUTO, {"NO_COLOR": ""}, True),
        (Terminal(), Color.AUTO, {"TERM": "dumb"}, False),
        (Terminal(), Color.ALWAYS, {"NO_COLOR": "1"}, True),
        (Terminal(), Color.NEVER, {}, False),
        (io.StringIO(), Color.AUTO, {}, False),
        (io.StringIO(), Color.ALWAYS, {}, True),
    ],
)
def test_when_to_colour(
    stream: io.StringIO,
    choice: Color,
    environment: dict[str, str],
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert use_color(stream, choice) is expected


def test_status_lines_only_on_a_terminal_and_never_left_behind() -> None:
    pipe = io.StringIO()
    reporter = Reporter(stream=pipe)
    reporter.status("half way")
    reporter.notice("hello\x1b")
    assert pipe.getvalue() == "note: hello\x1b\n"
    screen = Terminal()
    reporter = Reporter(stream=screen, color=Color.NEVER)
    reporter.status("half way " * 40)
    reporter.line("done\x1b")
    assert screen.getvalue().split("\r\x1b[K")[1:] == [("half way " * 40)[:79], "done\\x1b\n"]


def test_details_need_verbose() -> None:
    quiet, loud = io.StringIO(), io.StringIO()
    Reporter(stream=quiet).detail("x")
    Reporter(stream=loud, verbose=True).detail("x")
    assert (quiet.getvalue(), loud.getvalue()) == ("", "x\n")


def test_an_output_file_is_checked_at_once_and_emptied_late(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    with OutputFile(path) as file:
        assert path.read_text() == "old"
        file.open().write("né\r\n")
    assert path.read_bytes() == "né\r\n".encode()
    with pytest.raises(UsageError, match="is a directory"):
        OutputFile(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        OutputFile(tmp_path / "no" / "out.txt")
