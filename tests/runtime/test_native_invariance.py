"""Row invariance of the native executor: bit equality of logits, whatever the way they are computed."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from specdec_cli.protocols import LanguageModel, chain_rows
from specdec_cli.runtime.native_ops import NativeModel, _native

ISAS = _native.available_isas()
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
KV_TYPES = ("f16", "q8_0", "f32")
LONG = {"n_ctx": 1024, "isa": ISAS[-1]}


@pytest.fixture(scope="module")
def native(tiny_plan: Callable[..., Any]) -> Callable[..., NativeModel]:
    """Factory (architecture, **NativeModel options) -> model; equal arguments give the same model."""

    @cache
    def make(architecture: str, sizes: tuple[tuple[str, Any], ...] = (), **options: Any) -> NativeModel:
        return NativeModel(tiny_plan(architecture, **dict(sizes)), **{"n_ctx": 256, "threads": 1, **options})

    return make


def assert_same_bits(a: np.ndarray, b: np.ndarray) -> None:
    assert a.shape == b.shape
    assert np.array_equal(a.view(np.int32), b.view(np.int32))


def one_by_one(model: LanguageModel, ids: list[int]) -> np.ndarray:
    sequence = model.create_sequence()
    rows = []
    for position, token in enumerate(ids):
        rows.append(model.forward(chain_rows(sequence, position, [token], 1))[0].copy())
        model.commit(sequence, [0])
    model.free_sequence(sequence)
    return np.stack(rows)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_chunks_of_any_size(native, lm, architecture, isa):
    model = native(architecture, isa=isa)
    expected = one_by_one(model, lm.ids)
    for chunk in (2, 3, 5, 8, 16, 33, len(lm.ids)):
        assert_same_bits(lm.logits(model, lm.ids, chunk), expected)


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kv_types(native, lm, architecture, kv_type):
    model = native(architecture, kv_type=kv_type)
    expected = one_by_one(model, lm.ids)
    for chunk in (5, 33, len(lm.ids)):
        assert_same_bits(lm.logits(model, lm.ids, chunk), expected)


@pytest.mark.parametrize("file_type", ["Q8_0", "Q4_0", "F16", "BF16"])
def test_weight_types(native, lm, file_type):
    sizes = (("file_type", file_type), ("n_embd", 64), ("n_head", 4), ("head_dim", 16))
    model = native("llama", sizes=sizes, threads=2)
    expected = one_by_one(model, lm.ids)
    for chunk in (2, 3, 5, 8, 16, 33, len(lm.ids)):
        assert_same_bits(lm.logits(model, lm.ids, chunk), expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_threads(native, lm, architecture):
    one, two = native(architecture), native(architecture, threads=2)
    expected = one_by_one(one, lm.ids)
    assert_same_bits(one_by_one(two, lm.ids), expected)
    for chunk in (5, 16, len(lm.ids)):
        assert_same_bits(lm.logits(two, lm.ids, chunk), expected)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("threads", [1, 2])
def test_several_groups_of_chunks_and_several_passes(native, lm, architecture, threads):
    ids = (lm.ids * 5)[:700]
    model = native(architecture, threads=threads, **LONG)
    expected = lm.logits(model, ids, len(ids))  # 700 rows: more than one pass takes
    sequence = model.create_sequence()
    head = lm.feed(model, sequence, ids[:600], 37)
    assert_same_bits(head, expected[:600])
    for position in range(600, 640):
        row = model.forward(chain_rows(sequence, position, ids[position : position + 1], 1))
        assert_same_bits(row, expected[position : position + 1])
        model.commit(sequence, [0])
    verify = model.forward(chain_rows(sequence, 640, ids[640:656], 16))
    assert_same_bits(verify, expected[640:656])
    model.free_sequence(sequence)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_batch_with_other_sequences(native, lm, architecture):
    model = native(architecture, threads=2)
    expected = lm.logits(model, lm.ids, len(lm.ids))
    lengths = (3, 64, 100, 127)
    sequences = [model.create_sequence() for _ in lengths]
    for sequence, length in zip(sequences, lengths, strict=True):
        lm.feed(model, sequence, lm.ids[:length], 50)
    parts = [
        chain_rows(sequence, length, lm.ids[length : length + 4], 4)
        for sequence, length in zip(sequences, lengths, strict=True)
    ]
    together = model.forward(lm.join(*parts))
    for index, length in enumerate(lengths):
        assert_same_bits(together[4 * index : 4 * index + 4], expected[length : length + 4])
    for sequence in sequences:
        model.free_sequence(sequence)


def test_rows_of_sequences_may_alternate(native, lm):
    model = native("qwen2", threads=2)
    expected = lm.logits(model, lm.ids, len(lm.ids))
    first, second = model.create_sequence(), model.create_sequence()
    lm.feed(model, first, lm.ids[:10], 10)
    joined = lm.join(chain_rows(first, 10, lm.ids[10:13], 3), chain_rows(second, 0, lm.ids[:3], 3))
    order = np.asarray([0, 3, 1, 4, 2, 5])
    new_index = {int(old): new for new, old in enumerate(order)} | {-1: -1}
    alternating = type(joined)(
        token_ids=joined.token_ids[order],
        positions=joined.positions[order],
        sequences=joined.sequences[order],
        parents=np.asarray([new_index[int(joined.parents[old])] for old in order], np.int32),
        outputs=np.arange(6, dtype=np.int32),
    )
    logits = model.forward(alternating)
    assert_same_bits(logits[::2], expected[10:13])
    assert_same_bits(logits[1::2], expected[:3])
    model.commit(first, [0, 2, 4])
    model.commit(second, [1, 3])
    assert (model.length(first), model.length(second)) == (13, 2)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("start", [3, 61, 64, 126])
def test_tree_branches_equal_chains(native, lm, architecture, kv_type, start):
    model = native(architecture, kv_type=kv_type)
    sequence = model.create_sequence()
    lm.feed(model, sequence, lm.ids[:start], 64)
    nodes = [(40, -1), (41, 0), (42, 0), (43, 1), (44, 2), (45, 3), (46, -1), (47, 6)]
    tree = model.forward(lm.tree(sequence, start, nodes)).copy()
    for path in ([0, 1, 3, 5], [0, 2, 4], [6, 7]):
        chain = lm.ids[:start] + [nodes[i][0] for i in path]
        assert_same_bits(tree[path], lm.logits(model, chain, len(chain))[start:])
    model.forward(lm.tree(sequence, start, nodes))
    model.commit(sequence, [0, 2, 4])
    assert model.length(sequence) == start + 3
    after = [*lm.ids[:start], 40, 42, 44, 50, 51]
    continued = model.forward(chain_rows(sequence, start + 3, [50, 51], 2))
    assert_same_bits(continued, lm.logits(model, after, len(after))[start + 3 :])
    model.free_sequence(sequence)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 100])
def test_after_truncate_and_fork(native, lm, length):
    model = native("gemma3", threads=2)
    expected = lm.logits(model, lm.ids, len(lm.ids))
    sequence = model.create_sequence()
    lm.feed(model, sequence, lm.ids[:120], 40)
    fork = model.fork_sequence(sequence, length)
    lm.feed(model, fork, [7, 8, 9], 3)  # writes into a shared page: the other must not notice
    assert_same_bits(lm.feed(model, sequence, lm.ids[120:], 6), expected[120:])
    model.truncate(sequence, length)
    assert_same_bits(lm.feed(model, sequence, lm.ids[length:], 9), expected[length:])
    model.truncate(fork, length)
    assert_same_bits(lm.feed(model, fork, lm.ids[length:], 5), expected[length:])
    model.free_sequence(sequence)
    again = model.fork_sequence(fork, length)
    model.free_sequence(fork)
    assert_same_bits(lm.feed(model, again, lm.ids[length:], 30), expected[length:])
    model.free_sequence(again)


def test_rejected_drafts_leave_no_trace(native, lm):
    model = native("llama")
    expected = lm.logits(model, lm.ids, len(lm.ids))
    sequence = model.create_sequence()
    position = 0
    generator = np.random.default_rng(3)
    while position < 140:
        good = int(generator.integers(1, 6))
        bad = int(generator.integers(0, 5))
        draft = lm.ids[position : position + good] + [9] * bad
        logits = model.forward(chain_rows(sequence, position, draft, len(draft)))
        assert_same_bits(logits[:good], expected[position : position + good])
        model.commit(sequence, range(good))
        position += good
    model.free_sequence(sequence)


def test_another_float_mode_of_the_host_does_not_matter(native, lm):
    torch = pytest.importorskip("torch")
    model = native("llama")
    expected = lm.logits(model, lm.ids, len(lm.ids))
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush denormals")
    try:
        assert_same_bits(lm.logits(model, lm.ids, 7), expected)
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.torch
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_equals_the_torch_executor_with_float_weights(native, tiny_model, lm, architecture):
    expected = lm.logits(tiny_model(architecture), lm.ids, len(lm.ids))
    actual = lm.logits(native(architecture, kv_type="f32"), lm.ids, len(lm.ids))
    assert np.abs(actual - expected).max() < 2e-4
    half = lm.logits(native(architecture, kv_type="f16"), lm.ids, len(lm.ids))
    assert np.abs(half - expected).max() < 0.05


@pytest.mark.torch
@pytest.mark.parametrize("file_type", ["Q8_0", "Q4_0"])
def test_close_to_the_torch_executor_with_quantized_weights(native, tiny_plan, lm, file_type):
    """Int8 activations with a scale per 32 are off by about a part in 250 of each block's largest value."""
    from specdec_cli.runtime.torch_model import TorchModel

    sizes = {"file_type": file_type, "n_embd": 64, "n_head": 4, "head_dim": 16}
    oracle = TorchModel(tiny_plan("llama", **sizes), n_ctx=256, threads=1)
    expected = lm.logits(oracle, lm.ids, len(lm.ids))
    actual = lm.logits(native("llama", sizes=tuple(sizes.items())), lm.ids, len(lm.ids))
    assert np.abs(actual - expected).mean() < 0.06 * expected.std()
