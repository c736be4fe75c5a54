"""Logits of tiny random models of every architecture, against Transformers, through the real loading path."""

import warnings

import numpy as np
import pytest
import torch

from quant.gguf_file import GgufFile
from specdec_cli.loader import build_plan
from specdec_cli.protocols import chain_rows
from specdec_cli.runtime.torch_model import TorchModel

SMALL = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 76,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
HEADS = ("num_attention_heads", "num_key_value_heads")
GEMMA = {"num_hidden_layers": 7, "head_dim": 24, "sliding_window": 20, "query_pre_attn_scalar": 24}
GEMMA_ROPE = {
    "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
CASES = {
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-untied": ("llama", {"tie_word_embeddings": False}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1}),
    "llama-all-kv-heads": ("llama", {"num_key_value_heads": 6}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-wide-heads": ("llama", {"head_dim": 20}),
    "llama3-scaling": ("llama", {"rope_parameters": LLAMA3}),
    "llama-linear-scaling": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}},
    ),
    "llama-odd-sizes": (
        "llama",
        {"hidden_size": 45, "intermediate_size": 37, "head_dim": 14} | dict.fromkeys(HEADS, 3),
    ),
    "mistral": (
        "llama",
        {"family": "mistral", "sliding_window": 20, "metadata": {"attention.sliding_window": 20}},
    ),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-untied": ("qwen2", {"tie_word_embeddings": False}),
    "qwen3-tied": ("qwen3", {"tie_word_embeddings": True, "head_dim": 16}),
    "qwen3-untied": ("qwen3", {"tie_word_embeddings": False, "head_dim": 10}),
    "gemma3": ("gemma3", GEMMA | {"rope_parameters": GEMMA_ROPE}),
    "gemma3-linear-scaling": (
        "gemma3",
        GEMMA
        | {
            "rope_parameters": GEMMA_ROPE
            | {"full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0}}
        },
    ),
}  # fmt: skip


def load(path):
    with GgufFile.open(path) as file:
        config, plan = build_plan(file.metadata, file.tensors)
    return config, TorchModel(plan, n_ctx=256, threads=1)


def logits_of(model, ids):
    sequence = model.create_sequence()
    return model.forward(chain_rows(sequence, 0, ids, len(ids)))


def expected_logits(reference, ids):
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return reference(torch.tensor([ids])).logits[0].numpy()


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(transformers_pair, case):
    architecture, changes = CASES[case]
    reference, path = transformers_pair(architecture, **(SMALL | changes))
    _, model = load(path)
    ids = np.random.default_rng(1).integers(0, 101, 90).tolist()
    expected = expected_logits(reference, ids)
    assert expected.std() > 0.5  # the comparison means something
    np.testing.assert_allclose(logits_of(model, ids), expected, atol=1e-4)


@pytest.mark.torch
def test_gemma_window_is_seen_to_matter(transformers_pair):
    """The test above would not notice a missing window if the window did not change the logits."""
    reference, path = transformers_pair("gemma3", **(SMALL | GEMMA | {"rope_parameters": GEMMA_ROPE}))
    config, _ = load(path)
    assert [spec.window for spec in config.attention] == [20, 20, 20, 20, 20, None, 20]
    wide = {"gemma3.attention.sliding_window": 250}
    with GgufFile.open(path) as file:
        _, plan = build_plan({**file.metadata, **wide}, file.tensors)
    ids = np.random.default_rng(1).integers(0, 101, 90).tolist()
    difference = np.abs(
        logits_of(TorchModel(plan, n_ctx=256, threads=1), ids) - expected_logits(reference, ids)
    )
    assert difference[:20].max() < 1e-4
    assert difference[20:].max() > 1e-2


@pytest.mark.torch
def test_window_of_a_llama_type_model_applies_to_all_layers(transformers_pair):
    """Mistral's window: with one layer, what lies before it has no influence at all."""
    _, path = transformers_pair(
        "llama", metadata={"attention.sliding_window": 8}, **(SMALL | {"num_hidden_layers": 1})
    )
    config, model = load(path)
    assert [spec.window for spec in config.attention] == [8]
    ids = np.random.default_rng(1).integers(0, 101, 40).tolist()
    other = [*[(i + 1) % 101 for i in ids[:32]], *ids[32:]]
    assert np.array_equal(logits_of(model, ids)[-1], logits_of(model, other)[-1])
    assert not np.array_equal(logits_of(model, ids)[-2], logits_of(model, other)[-2])
