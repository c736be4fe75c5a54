"""K4: what a model writes cannot steer a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.cli.escaping import TerminalEscaper, escape_controls


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("\x1b]52;c;aGk=\x07", r"\x1b]52;c;aGk=\x07"),
        ("a\x07b", r"a\x07b"),
        ("progress\rdone", r"progress\x0ddone"),
        ("\x9b2J \x9d52", r"\x9b2J \x9d52"),
        ("\x7f\x00\x08", r"\x7f\x00\x08"),
        ("tab\tline\n", "tab\tline\n"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        ("end\r", r"end\x0d"),
        ("é 漢 \U0001f600 \N{ZERO WIDTH JOINER}\xa0", "é 漢 \U0001f600 \N{ZERO WIDTH JOINER}\xa0"),
    ],
)
def test_k4_control_characters_become_visible(text: str, shown: str) -> None:
    assert escape_controls(text) == shown


def test_k4_a_sequence_split_over_pieces() -> None:
    escaper = TerminalEscaper()
    assert [escaper.push(piece) for piece in ("\x1b", "[2", "J")] == [r"\x1b", "[2", "J"]


def test_a_line_end_split_over_pieces_stays_a_line_end() -> None:
    escaper = TerminalEscaper()
    assert [escaper.push(piece) for piece in ("a\r", "\nb\r", "", "c")] == ["a", "\nb", "", r"\x0dc"]
    assert escaper.flush() == ""


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8"), max_size=5), max_size=8))
def test_pieces_give_what_the_whole_gives_and_nothing_dangerous(pieces: list[str]) -> None:
    escaper = TerminalEscaper()
    shown = "".join([escaper.push(piece) for piece in pieces]) + escaper.flush()
    assert shown == escape_controls("".join(pieces))
    assert not [c for c in shown if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0]
