"""The emitter: where a generation ends and what of its text is shown."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.decoding.emitter import Emitter

EOG = 99


class Pieces:
    """Text of token i is pieces[i]."""

    def __init__(self, pieces: list[str], rest: str = "") -> None:
        self._pieces = pieces
        self._rest = rest

    def push(self, token_id: int) -> str:
        return self._pieces[token_id]

    def flush(self) -> str:
        return self._rest


def play(pieces, *, limit=1000, stop=(), rest="", ids=None):
    """Feed token after token; (streamed pieces, emitter)."""
    emitter = Emitter(Pieces(pieces, rest), limit=limit, eog_ids=frozenset({EOG}), stop=stop)
    streamed = []
    for token_id in range(len(pieces)) if ids is None else ids:
        emission = emitter.push(token_id)
        streamed.append(emission.text)
        assert emission.finish_reason == emitter.finish_reason
        if emission.finish_reason:
            break
    streamed.append(emitter.finish("length"))
    assert "".join(streamed) == emitter.text
    return streamed, emitter


def test_b1_stops_inside_a_block_and_counts_up_to_the_stop():
    _, emitter = play(["a", "b", "STOP", "x", "y", "z"], limit=5, stop=["STOP"])
    assert (emitter.text, emitter.finish_reason, len(emitter.token_ids)) == ("ab", "stop", 3)


def test_b1_end_token():
    _, emitter = play(["a", "b", "c"], limit=5, ids=[0, 1, EOG, 2])
    assert (emitter.text, emitter.finish_reason, emitter.token_ids) == ("ab", "stop", [0, 1, EOG])


def test_b2_an_end_token_beyond_the_limit_does_not_count():
    _, emitter = play(["a", "b"], limit=2, ids=[0, 1, EOG])
    assert (emitter.finish_reason, len(emitter.token_ids)) == ("length", 2)


def test_an_end_token_exactly_at_the_limit_is_a_stop():
    _, emitter = play(["a"], limit=2, ids=[0, EOG])
    assert (emitter.finish_reason, len(emitter.token_ids)) == ("stop", 2)


@pytest.mark.parametrize(
    "pieces", [[" user is a"], [" user", " is", " a"], list(" user is a"), [" us", "er i", "s a"]]
)
def test_b3_earliest_stop_wins(pieces):
    """The stop that is complete first in the text wins, not the first of the list; the same for every cut."""
    _, emitter = play(pieces, stop=["a", "is", ","])
    assert emitter.text == " user "
    assert emitter.finish_reason == "stop"


def test_of_stops_that_end_together_the_longest_counts():
    assert play(["xabcd"], stop=["cd", "abcd", "d"])[1].text == "x"


def test_a_stop_inside_the_beginning_of_another_one_is_found():
    assert play(list("xabcde"), stop=["abcdef", "bcd"])[1].text == "xa"


def test_b4_a_stop_early_in_a_long_token_text_is_found():
    assert play(["x", "STOP" + "y" * 500, "z"], stop=["STOP"])[1].text == "x"


def test_b5_no_beginning_of_a_stop_is_shown():
    streamed, emitter = play(list("ABCDEFGHIJKL"), stop=["DEFGHIJ"])
    assert streamed == ["A", "B", "C", "", "", "", "", "", "", "", ""]
    assert (emitter.text, len(emitter.token_ids)) == ("ABC", 10)


def test_held_back_text_is_shown_when_it_is_no_stop():
    streamed, _ = play(["AB", "DEFG", "x", "DEF"], stop=["DEFGHIJ"])
    assert streamed == ["AB", "", "DEFGx", "", "DEF"]


def test_only_what_may_become_a_stop_is_held_back():
    streamed, _ = play(["aab", "aa", "ab!"], stop=["aaab!"])
    assert streamed == ["aab", "", "", ""]
    streamed, _ = play(["aab", "aa", "ac"], stop=["aaab!"])
    assert streamed == ["aab", "", "aaac", ""]


def test_stop_across_many_tokens():
    assert play(["Hello", "\n", "\n", "User", ":", " hi"], stop=["\n\nUser:"])[1].text == "Hello"


def test_an_unfinished_character_is_flushed():
    streamed, emitter = play(["a", ""], rest="\ufffd")
    assert streamed[-1] == "\ufffd"
    assert emitter.text == "a\ufffd"


def test_cancelled_keeps_its_own_reason_only_when_nothing_ended_it_before():
    emitter = Emitter(Pieces(["a"]), limit=5)
    emitter.push(0)
    emitter.finish("cancelled")
    assert emitter.finish_reason == "cancelled"
    emitter = Emitter(Pieces(["a"]), limit=1)
    emitter.push(0)
    emitter.finish("cancelled")
    assert emitter.finish_reason == "length"


def earliest(text: str, stops: list[str]) -> str:
    """The obvious way: the shortest prefix that contains a stop, cut at the longest stop that ends it."""
    for end in range(1, len(text) + 1):
        ending = [len(s) for s in stops if text[:end].endswith(s)]
        if ending:
            return text[: end - max(ending)]
    return text


@given(
    text=st.text("ab", max_size=30),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
    cuts=st.lists(st.integers(0, 30), max_size=10),
)
def test_streamed_text_equals_the_obvious_way_for_any_division_into_tokens(text, stops, cuts):
    edges = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    pieces = [text[a:b] for a, b in pairwise(edges)] or [""]
    streamed, emitter = play(pieces, stop=stops)
    assert emitter.text == earliest(text, stops)
    for shown in range(len(streamed)):  # nothing is ever shown that has to be taken back
        assert emitter.text.startswith("".join(streamed[:shown]))
