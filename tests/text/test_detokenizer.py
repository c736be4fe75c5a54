"""Streaming text out of bytes: complete characters only, nothing lost, nothing invented."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.text.detokenizer import Detokenizer

SMILE = "🙂".encode()


def stream(*pieces: bytes, strip_leading_space: bool = False) -> list[str]:
    """What leaves with each token, and at the end."""
    detokenizer = Detokenizer(pieces.__getitem__, strip_leading_space=strip_leading_space)
    return [*(detokenizer.push(i) for i in range(len(pieces))), detokenizer.flush()]


def test_k1_character_of_two_tokens_leaves_with_the_second() -> None:
    assert stream(SMILE[:2], SMILE[2:]) == ["", "🙂", ""]


def test_k1_character_of_four_tokens_leaves_with_the_last() -> None:
    assert stream(b"a", *(SMILE[i : i + 1] for i in range(4)), b"b") == ["a", "", "", "", "🙂", "b", ""]


def test_k1_character_across_a_block_edge_with_text_around() -> None:
    assert stream(b"say " + SMILE[:3], SMILE[3:] + b"!") == ["say ", "🙂!", ""]


def test_k2_ends_inside_a_character() -> None:
    assert stream(b"ok", SMILE[:3]) == ["ok", "", "\ufffd"]


def test_k2_stray_continuation_byte() -> None:
    assert stream(b"a", b"\x82", b"b") == ["a", "\ufffd", "b", ""]


def test_k2_broken_off_by_ordinary_text() -> None:
    assert stream(SMILE[:2], b"x") == ["", "\ufffdx", ""]


def test_control_token_inside_a_character_changes_nothing() -> None:
    assert stream(SMILE[:2], b"", SMILE[2:]) == ["", "", "🙂", ""]


def test_flush_starts_afresh() -> None:
    detokenizer = Detokenizer({0: SMILE[:1], 1: b"a"}.__getitem__)
    assert [detokenizer.push(0), detokenizer.flush(), detokenizer.push(1), detokenizer.flush()] == [
        "",
        "\ufffd",
        "a",
        "",
    ]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [((b" Hi", b" you"), "Hi you"), ((b"  Hi",), " Hi"), ((b"", b" Hi"), " Hi"), ((b"Hi",), "Hi")],
)
def test_leading_space_goes_from_the_first_token_only(pieces: tuple[bytes, ...], expected: str) -> None:
    assert "".join(stream(*pieces, strip_leading_space=True)) == expected


UTF8_SHARDS = st.lists(
    st.one_of(
        st.binary(max_size=4),
        st.text(max_size=3).map(lambda text: text.encode("utf-8", "replace")),
        st.text(min_size=1, max_size=2).map(lambda text: text.encode("utf-8", "replace")[:-1]),
        st.sampled_from([b"\xf0\x9f", b"\x99\x82", b"\xed\xa0\x80", b"\xc0\xaf", b"\xe2\x82", b"\xf4\x90"]),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(UTF8_SHARDS)
def test_k2_stream_equals_decoding_the_whole(pieces: list[bytes]) -> None:
    assert "".join(stream(*pieces)) == b"".join(pieces).decode("utf-8", "replace")


@settings(deadline=None)
@given(UTF8_SHARDS)
def test_k1_no_replacement_while_a_character_may_still_complete(pieces: list[bytes]) -> None:
    """What has left at any time is a beginning of the whole text of any continuation that is valid."""
    detokenizer = Detokenizer(pieces.__getitem__)
    sent, data = "", b""
    for i, piece in enumerate(pieces):
        sent += detokenizer.push(i)
        data += piece
        assert data.decode("utf-8", "replace").startswith(sent)
        assert len(data.decode("utf-8", "replace")) - len(sent) <= 1
