"""Promise 1 on the torch executor: a row's logits are the same bits however they are computed."""

import numpy as np
import pytest

from specdec_cli.protocols import chain_rows
from specdec_cli.runtime.torch_probe import Tilings

pytestmark = pytest.mark.torch
ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma3"]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request, tiny_model):
    return tiny_model(request.param)


@pytest.fixture(scope="module")
def plain(model, lm):
    """Logits of every position, computed one row at a time."""
    return lm.logits(model, lm.ids, 1)


@pytest.mark.parametrize("chunk", [2, 3, 5, 8, 16, 64, 150])
def test_prefill_in_chunks(model, plain, lm, chunk):
    assert np.array_equal(lm.logits(model, lm.ids, chunk), plain)


def test_any_number_of_rows(model, plain, lm):
    sequence = model.create_sequence()
    lm.feed(model, sequence, lm.ids[:50], 50)
    for n in range(2, 34):
        rows = model.forward(chain_rows(sequence, 50, lm.ids[50 : 50 + n], n))
        assert np.array_equal(rows, plain[50 : 50 + n]), n
    model.free_sequence(sequence)


def test_d8_blocks_across_page_and_window_edges(model, plain, lm):
    """Verify blocks of 2 to 8 rows that cross position 64 (a page) and 70 (gemma's window here)."""
    sequence = model.create_sequence()
    for start in range(58, 75):
        model.truncate(sequence, 0)
        lm.feed(model, sequence, lm.ids[:start], start)
        for n in range(2, 9):
            rows = model.forward(chain_rows(sequence, start, lm.ids[start : start + n], n))
            assert np.array_equal(rows, plain[start : start + n]), (start, n)
    model.free_sequence(sequence)


def test_only_some_rows_have_outputs(model, plain, lm):
    sequence = model.create_sequence()
    rows = chain_rows(sequence, 0, lm.ids[:30], 30)
    for wanted in ([29], [0, 13], list(range(1, 30, 2)), []):
        chosen = np.asarray(wanted, np.int32)
        part = type(rows)(rows.token_ids, rows.positions, rows.sequences, rows.parents, chosen)
        logits = model.forward(part)
        assert logits.shape == (len(wanted), model.n_vocab)
        assert np.array_equal(logits, plain[wanted])
    model.free_sequence(sequence)


def test_in_a_batch_with_other_sequences(model, plain, lm):
    first, second, third = (model.create_sequence() for _ in range(3))
    lm.feed(model, first, lm.ids[:66], 66)
    lm.feed(model, second, lm.ids[100:130], 30)
    alone = lm.logits(model, lm.ids[100:140], 40)[30:37]
    batch = lm.join(
        chain_rows(third, 0, lm.ids[20:25], 5),
        chain_rows(first, 66, lm.ids[66:70], 4),
        chain_rows(second, 30, lm.ids[130:137], 7),
    )
    logits = model.forward(batch)
    assert np.array_equal(logits[5:9], plain[66:70])
    assert np.array_equal(logits[9:], alone)
    assert np.array_equal(logits[:5], lm.logits(model, lm.ids[20:25], 1))
    for sequence in (first, second, third):
        model.free_sequence(sequence)


def test_branches_of_a_draft_tree_and_a_committed_branch(model, plain, lm):
    sequence = model.create_sequence()
    lm.feed(model, sequence, lm.ids[:62], 62)
    a, b, c, d = lm.ids[62:66]
    wrong = [3, 4, 5, 6, 7]
    #  wrong[0] - wrong[1]
    #  a - b - c - d
    #    \ wrong[2] - wrong[3]
    nodes = [
        (wrong[0], -1),
        (a, -1),
        (wrong[1], 0),
        (wrong[2], 1),
        (b, 1),
        (wrong[3], 3),
        (c, 4),
        (d, 6),
        (wrong[4], 6),
    ]
    branch = lm.logits(model, [*lm.ids[:62], a, wrong[2], wrong[3]], 1)
    other = lm.logits(model, [*lm.ids[:62], wrong[0], wrong[1]], 1)
    logits = model.forward(lm.tree(sequence, 62, nodes))
    assert np.array_equal(logits[[1, 4, 6, 7]], plain[62:66])
    assert np.array_equal(logits[[3, 5]], branch[63:])
    assert np.array_equal(logits[[0, 2]], other[62:])
    model.commit(sequence, [1, 4, 6])
    assert model.length(sequence) == 65
    rest = model.forward(chain_rows(sequence, 65, lm.ids[65:80], 15))
    assert np.array_equal(rest, plain[65:80])
    model.free_sequence(sequence)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 100])
def test_after_truncation_of_what_was_wrong(model, plain, lm, length):
    sequence = model.create_sequence()
    lm.feed(model, sequence, lm.ids[:length] + [9] * (120 - length), 7)
    model.truncate(sequence, length)
    assert np.array_equal(lm.feed(model, sequence, lm.ids[length:], 6), plain[length:])
    model.free_sequence(sequence)


@pytest.mark.parametrize("length", [1, 40, 64, 100])
def test_after_a_fork(model, plain, lm, length):
    source = model.create_sequence()
    lm.feed(model, source, lm.ids[:110], 110)
    fork = model.fork_sequence(source, length)
    lm.feed(model, fork, [9] * 5, 5)  # must not show in the source
    assert np.array_equal(lm.feed(model, source, lm.ids[110:], 9), plain[110:])
    model.truncate(fork, length)
    assert np.array_equal(lm.feed(model, fork, lm.ids[length:], 9), plain[length:])
    model.free_sequence(source)
    model.free_sequence(fork)


def test_after_rejected_rows(model, plain, lm):
    sequence = model.create_sequence()
    for position, token in enumerate(lm.ids[:80]):
        logits = model.forward(chain_rows(sequence, position, [token, 5, 6, 7], 4))
        assert np.array_equal(logits[0], plain[position])
        model.commit(sequence, [0])
    model.free_sequence(sequence)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_one_thread_and_two(tiny_model, lm, architecture):
    one = lm.logits(tiny_model(architecture, threads=1), lm.ids, 50)
    two = lm.logits(tiny_model(architecture, threads=2), lm.ids, 50)
    assert np.array_equal(one, two)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scattered_pages(tiny_model, lm, architecture):
    """Pages that do not follow each other in memory are gathered; the bits stay."""
    model = tiny_model(architecture)
    plain = lm.logits(model, lm.ids, 1)
    blocks = [model.create_sequence() for _ in range(4)]
    for sequence in blocks:
        lm.feed(model, sequence, lm.ids[:10], 10)
    model.free_sequence(blocks[0])
    model.free_sequence(blocks[2])
    assert np.array_equal(lm.logits(model, lm.ids, 13), plain)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_row_by_row_where_the_self_check_fails(tiny_model, lm, architecture):
    """The fallback is invariant too, and close to the usual tiles."""
    slow = tiny_model(architecture, tilings=Tilings())
    ids = lm.ids[:75]
    plain = lm.logits(slow, ids, 1)
    for chunk in (2, 5, 16, 75):
        assert np.array_equal(lm.logits(slow, ids, chunk), plain)
    np.testing.assert_allclose(lm.logits(tiny_model(architecture), ids, 75), plain, atol=1e-4)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_memory_budget_changes_no_bit(tiny_model, lm, architecture):
    whole = tiny_model(architecture)
    none = tiny_model(architecture, memory_budget=0)
    half = tiny_model(architecture, memory_budget=whole.kept_bytes // 2)
    assert none.kept_bytes == 0
    assert 0 < half.kept_bytes <= whole.kept_bytes // 2
    plain = lm.logits(whole, lm.ids[:40], 40)
    assert np.array_equal(lm.logits(none, lm.ids[:40], 40), plain)
    assert np.array_equal(lm.logits(half, lm.ids[:40], 40), plain)
