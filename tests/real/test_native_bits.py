"""Whole real models on the native executor: the same bits whatever the way the logits are computed."""

import numpy as np
import pytest

from quant.gguf_file import GgufFile
from specdec_cli.loader import build_plan
from specdec_cli.protocols import chain_rows
from specdec_cli.runtime.native_ops import NativeModel

ALIASES = ("smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
HEAD, TAIL = 500, 24  # the tail lies across a page edge and, for gemma3, across the window of 512 tokens
pytestmark = pytest.mark.real


def same_bits(a, b):
    return a.shape == b.shape and np.array_equal(a.view(np.int32), b.view(np.int32))


def feed(model, sequence, ids, chunk, outputs=0):
    parts = []
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        rows = chain_rows(sequence, model.length(sequence), part, min(outputs, len(part)))
        parts.append(model.forward(rows).copy())
        model.commit(sequence, range(len(part)))
    return np.concatenate(parts)


@pytest.fixture(scope="module", params=ALIASES)
def plan(request, model_path):
    with GgufFile.open(model_path(request.param)) as file:
        yield build_plan(file.metadata, file.tensors)[1]


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_rows_alone_in_chunks_at_once_and_among_others(plan, kv_type):
    model = NativeModel(plan, n_ctx=1024, threads=2, kv_type=kv_type)
    ids = np.random.default_rng(3).integers(1000, 40000, HEAD + TAIL).tolist()
    sequence = model.create_sequence()
    feed(model, sequence, ids[:HEAD], HEAD)
    alone = feed(model, sequence, ids[HEAD:], 1, 1)
    for chunk in (2, 3, 5, 8, 16, TAIL):
        model.truncate(sequence, HEAD)
        assert same_bits(feed(model, sequence, ids[HEAD:], chunk, chunk), alone), chunk
    whole = model.create_sequence()
    at_once = model.forward(chain_rows(whole, 0, ids, TAIL)).copy()
    assert same_bits(at_once, alone)
    pieces = model.create_sequence()
    feed(model, pieces, ids[:HEAD], 61)
    model.truncate(sequence, HEAD)
    parts = [chain_rows(handle, HEAD, ids[HEAD : HEAD + 5], 5) for handle in (sequence, pieces)]
    joined = type(parts[0])(
        token_ids=np.concatenate([part.token_ids for part in parts]),
        positions=np.concatenate([part.positions for part in parts]),
        sequences=np.concatenate([part.sequences for part in parts]),
        parents=np.concatenate([parts[0].parents, np.where(parts[1].parents < 0, -1, parts[1].parents + 5)]),
        outputs=np.arange(10, dtype=np.int32),
    )
    logits = model.forward(joined)
    assert same_bits(logits[:5], alone[:5])
    assert same_bits(logits[5:], alone[:5])


def test_threads(plan):
    ids = np.random.default_rng(4).integers(1000, 40000, 150).tolist()
    results = []
    for threads in (1, 2):
        model = NativeModel(plan, n_ctx=256, threads=threads)
        sequence = model.create_sequence()
        feed(model, sequence, ids[:140], 140)
        results.append(feed(model, sequence, ids[140:], 1, 1))
        model.truncate(sequence, 140)
        results.append(feed(model, sequence, ids[140:], 5, 5))
    assert all(same_bits(result, results[0]) for result in results[1:])
