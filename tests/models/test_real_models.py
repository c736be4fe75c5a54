"""Real model files on the torch executor: accuracy against float32 references, and bits."""

import json
from pathlib import Path

import numpy as np
import pytest

from specdec_cli.loader import LoadOptions, load_model
from specdec_cli.protocols import chain_rows

REFERENCE = Path(__file__).resolve().parents[3] / "shared" / "reference"
ALIASES = ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"]
pytestmark = [pytest.mark.real, pytest.mark.torch]


def passages(alias):
    path = REFERENCE / f"fp32-{alias}.json"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return json.loads(path.read_text())


@pytest.fixture(scope="module", params=ALIASES)
def loaded(request, model_path):
    """(alias, model); one model is in memory at a time."""
    model = load_model(model_path(request.param), LoadOptions(executor="torch", threads=2)).model
    return request.param, model


def test_log_probabilities_equal_the_float32_reference(loaded):
    alias, model = loaded
    for name, passage in passages(alias).items():
        ids = passage["ids"]
        sequence = model.create_sequence()
        logits = model.forward(chain_rows(sequence, 0, ids, len(ids))).astype(np.float64)
        model.free_sequence(sequence)
        peak = logits.max(-1, keepdims=True)
        logprobs = logits - peak - np.log(np.exp(logits - peak).sum(-1, keepdims=True))
        got = logprobs[np.arange(len(ids) - 1), ids[1:]]
        difference = np.abs(got - passage["token_logprobs"])
        assert difference.mean() < 0.002, name
        assert (logits.argmax(-1) == passage["argmax"]).mean() > 0.995, name


def test_rows_have_the_same_bits_alone_in_chunks_and_at_once(loaded):
    """Positions 500 to 523 lie across a page edge and, for gemma3, across the window of 512 tokens."""
    _, model = loaded
    ids = np.random.default_rng(3).integers(1000, 40000, 524).tolist()
    sequence = model.create_sequence()
    for start in range(0, 500, 250):
        model.forward(chain_rows(sequence, start, ids[start : start + 250], 0))
        model.commit(sequence, range(250))
    alone = []
    for position in range(500, 524):
        alone.append(model.forward(chain_rows(sequence, position, [ids[position]], 1))[0])
        model.commit(sequence, [0])
    for chunk in (3, 5, 8, 24):
        model.truncate(sequence, 500)
        for start in range(500, 524, chunk):
            part = ids[start : start + chunk]
            logits = model.forward(chain_rows(sequence, start, part, len(part)))
            assert np.array_equal(logits, alone[start - 500 : start - 500 + chunk]), (chunk, start)
            model.commit(sequence, range(len(part)))
    whole = model.create_sequence()
    assert np.array_equal(model.forward(chain_rows(whole, 0, ids, 24)), alone)
    model.free_sequence(sequence)
    model.free_sequence(whole)
