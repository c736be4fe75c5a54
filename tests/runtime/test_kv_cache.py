"""Pages: lengths, sharing, copy on write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.errors import ContextError
from specdec_cli.runtime.kv_cache import PAGE_TOKENS, PageTable


def test_pages_are_taken_as_tokens_arrive_and_given_back():
    table = PageTable(1000)
    a = table.create()
    assert table.extend(a, 1) == []
    assert table.pages(a) == [0]
    table.extend(a, PAGE_TOKENS)
    assert table.pages(a) == [0, 1]
    table.truncate(a, PAGE_TOKENS)
    assert table.pages(a) == [0]
    b = table.create()
    table.extend(b, 1)
    assert table.pages(b) == [1]
    table.free(a)
    table.free(b)
    assert table.pages_in_use == 0
    assert table.num_pages == 2


def test_fork_shares_pages_and_the_first_writer_copies():
    table = PageTable(1000)
    a = table.create()
    table.extend(a, PAGE_TOKENS + 10)
    b = table.fork(a, PAGE_TOKENS + 5)
    assert table.pages(b) == table.pages(a) == [0, 1]
    assert table.extend(b, 1) == [(1, 2)]
    assert table.pages(b) == [0, 2]
    assert table.extend(a, 1) == []  # now its own again
    assert table.pages(a) == [0, 1]


def test_a_full_shared_page_is_not_copied():
    table = PageTable(1000)
    a = table.create()
    table.extend(a, PAGE_TOKENS)
    b = table.fork(a, PAGE_TOKENS)
    assert table.extend(b, 1) == []
    assert table.pages(b) == [0, 1]


def test_fork_survives_its_source():
    table = PageTable(1000)
    a = table.create()
    table.extend(a, 70)
    b = table.fork(a, 70)
    table.free(a)
    assert table.pages(b) == [0, 1]
    assert table.extend(b, 1) == []


def test_d1_the_context_limit_is_an_error_of_its_own():
    table = PageTable(64)
    a = table.create()
    table.extend(a, 60)
    table.require_room(a, 4)
    with pytest.raises(ContextError, match="65 tokens do not fit into 64"):
        table.require_room(a, 5)
    with pytest.raises(ContextError):
        table.extend(a, 5)
    assert table.length(a) == 60


@pytest.mark.parametrize(
    "action",
    [
        lambda table: table.length(7),
        lambda table: table.free(7),
        lambda table: table.truncate(0, 11),
        lambda table: table.truncate(0, -1),
        lambda table: table.fork(0, 11),
    ],
)
def test_misuse_is_refused(action):
    table = PageTable(64)
    table.extend(table.create(), 10)
    with pytest.raises(ValueError, match=r"handle 7|cannot (truncate|fork)"):
        action(table)
    assert table.length(0) == 10


@given(st.data())
def test_no_writable_page_is_ever_shared(data):
    """Whatever happens, a sequence that was just extended owns its last page, and page counts add up."""
    table = PageTable(400)
    live = [table.create()]
    for _ in range(data.draw(st.integers(1, 30))):
        sequence = data.draw(st.sampled_from(live))
        action = data.draw(st.sampled_from(["extend", "truncate", "fork", "free"]))
        length = table.length(sequence)
        if action == "extend":
            count = data.draw(st.integers(1, 150))
            if length + count <= 400:
                table.extend(sequence, count)
                last = table.pages(sequence)[length // PAGE_TOKENS :]
                others = [p for s in live if s != sequence for p in table.pages(s)]
                assert not set(last) & set(others)
        elif action == "truncate":
            table.truncate(sequence, data.draw(st.integers(0, length)))
        elif action == "fork":
            live.append(table.fork(sequence, data.draw(st.integers(0, length))))
        elif len(live) > 1:
            table.free(sequence)
            live.remove(sequence)
        assert table.pages_in_use == len({p for s in live for p in table.pages(s)})
        for s in live:
            assert len(table.pages(s)) == -(-table.length(s) // PAGE_TOKENS)
