"""ModelConfig from metadata: what is read, and what is refused by name."""

import numpy as np
import pytest

from quant.tensor import QuantTensor
from quant.types import BY_NAME
from specdec_cli.errors import ModelError
from specdec_cli.models.config import ModelConfig
from specdec_cli.runtime.ops import Activation


def f32(name: str, values: np.ndarray) -> QuantTensor:
    values = np.ascontiguousarray(values, np.float32)
    return QuantTensor(name, BY_NAME["F32"], values.shape, values.view(np.uint8).reshape(-1))


TENSORS = {"token_embd.weight": f32("token_embd.weight", np.zeros((100, 32)))}


def metadata(architecture="llama", **changes):
    base = {
        "block_count": 2,
        "context_length": 128,
        "embedding_length": 32,
        "feed_forward_length": 64,
        "attention.head_count": 4,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    entries = base | {key.replace("__", "."): value for key, value in changes.items()}
    return {"general.architecture": architecture} | {
        f"{architecture}.{key}": value for key, value in entries.items() if value is not None
    }


def read(architecture="llama", tensors=TENSORS, **changes):
    return ModelConfig.from_metadata(metadata(architecture, **changes), tensors)


def test_sizes_and_defaults():
    config = read()
    assert (config.n_vocab, config.n_ctx_train, config.n_embd, config.n_ff) == (100, 128, 32, 64)
    assert (config.n_head, config.n_head_kv, config.head_dim) == (4, 4, 8)
    assert config.activation is Activation.SILU
    assert config.embedding_scale is None
    (first, second) = config.attention
    assert (first.layer, second.layer) == (0, 1)
    assert first.scale == 8**-0.5
    assert first.window is None
    assert first.rope is not None
    np.testing.assert_allclose(first.rope.inv_freq, [1.0, 0.1, 0.01, 0.001])


def test_per_layer_lists_of_one_value_count_as_that_value():
    assert read(feed_forward_length=[64, 64]).n_ff == 64
    with pytest.raises(ModelError, match=r"llama\.feed_forward_length differs between layers"):
        read(feed_forward_length=[64, 32])


def test_frequency_factors_and_linear_scaling_are_folded_into_the_frequencies():
    factors = f32("rope_freqs.weight", np.array([1, 2, 4, 8]))
    config = read(
        tensors=TENSORS | {"rope_freqs.weight": factors},
        rope__scaling__type="linear",
        rope__scaling__factor=2.0,
    )
    rope = config.attention[0].rope
    assert rope is not None
    np.testing.assert_allclose(rope.inv_freq, [1 / 2, 0.1 / 4, 0.01 / 8, 0.001 / 16])


def test_partial_rotation():
    rope = read(rope__dimension_count=4).attention[0].rope
    assert rope is not None
    assert len(rope.inv_freq) == 2


def test_gemma3_local_and_global_layers():
    config = read(
        "gemma3",
        block_count=7,
        attention__sliding_window=16,
        attention__key_length=16,
        attention__value_length=16,
        rope__freq_base=1e6,
        rope__scaling__type="linear",
        rope__scaling__factor=8.0,
    )
    assert [spec.window for spec in config.attention] == [16, 16, 16, 16, 16, None, 16]
    local, whole = config.attention[0].rope, config.attention[5].rope
    assert local is not None
    assert whole is not None
    np.testing.assert_allclose(local.inv_freq[1], 10000 ** (-2 / 16))
    np.testing.assert_allclose(whole.inv_freq[1], 1e6 ** (-2 / 16) / 8)
    assert config.embedding_scale == float(np.float32(32**0.5))
    assert config.activation is Activation.GELU_TANH
    assert config.attention[0].scale == 16**-0.5


def test_gemma3_windows_may_be_listed():
    config = read("gemma3", attention__sliding_window=16, attention__sliding_window_pattern=[False, True])
    assert [spec.window for spec in config.attention] == [None, 16]
    with pytest.raises(ModelError, match="sliding_window_pattern does not have 2 entries"):
        read("gemma3", attention__sliding_window=16, attention__sliding_window_pattern=[True])


def test_gemma3_27b_scales_queries_by_its_nominal_head_size():
    config = read("gemma3", block_count=62, attention__key_length=16, attention__value_length=16)
    assert config.attention[0].scale == (32 / 4) ** -0.5


def test_a_window_as_long_as_the_context_is_no_window():
    assert read("qwen2", attention__sliding_window=128).attention[0].window is None


@pytest.mark.parametrize(
    ("architecture", "shown"),
    [
        ("dream", '"dream"'),  # diffusion models
        ("llada", '"llada"'),
        ("gpt99", '"gpt99"'),
        ("", '""'),
        (None, "is missing"),
        (7, "is missing"),
    ],
)
def test_i13_unsupported_architecture(architecture, shown):
    entries = metadata() | {"general.architecture": architecture}
    with pytest.raises(ModelError, match="unsupported architecture") as caught:
        ModelConfig.from_metadata(entries, TENSORS)
    assert shown in str(caught.value)
    assert "llama" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_count": None}, "llama.block_count is missing"),
        ({"block_count": 0}, "llama.block_count is 0"),
        ({"block_count": 2**40}, "llama.block_count is 1099511627776"),
        ({"block_count": "two"}, "llama.block_count is 'two'; an integer"),
        ({"block_count": True}, "llama.block_count is True; an integer"),
        ({"attention__layer_norm_rms_epsilon": 0.0}, "rms_epsilon is 0.0"),
        ({"attention__layer_norm_rms_epsilon": float("nan")}, "rms_epsilon is nan"),
        ({"attention__layer_norm_rms_epsilon": None}, "rms_epsilon is missing"),
        ({"rope__freq_base": "x"}, "llama.rope.freq_base is 'x'; a number"),
        ({"attention__head_count_kv": 3}, "4 attention heads cannot share 3"),
        ({"attention__head_count": 64}, "llama.attention.key_length is 0"),
        ({"attention__value_length": 4}, "value_length differs"),
        ({"rope__dimension_count": 7}, "dimension_count is 7"),
        ({"rope__dimension_count": 10}, "dimension_count is 10"),
        ({"rope__scaling__type": "yarn"}, 'unsupported RoPE scaling type "yarn"'),
        ({"rope__scaling__type": "longrope"}, 'unsupported RoPE scaling type "longrope"'),
        ({"rope__scaling__type": 3}, "rope.scaling.type is 3; a string"),
        ({"rope__scaling__factor": -1.0}, "rope.scaling.factor is -1.0"),
        ({"hidden_activation": "relu2"}, 'unsupported activation "relu2"'),
        ({"expert_count": 8}, "mixture of experts (llama.expert_count = 8) is not supported"),
        ({"logit_scale": 0.5}, "a logit scale"),
        ({"attention__causal": False}, "attention that is not causal"),
        ({"final_logit_softcapping": 30.0}, "a soft cap of the logits"),
    ],
)
def test_wrong_or_unsupported_metadata_is_named(changes, message):
    with pytest.raises(ModelError) as caught:
        read(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_window_is_refused_where_its_layers_are_not_known():
    with pytest.raises(ModelError, match=r"a sliding window \(qwen2\.attention\.sliding_window = 64\)"):
        read("qwen2", attention__sliding_window=64)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("rope_freqs.weight", np.ones(3), "is F32 of shape (3,); F32 of shape (4,) is needed"),
        ("rope_freqs.weight", np.array([1, 0, 1, 1]), "not finite and above zero"),
        ("rope_freqs.weight", np.array([1, np.nan, 1, 1]), "not finite and above zero"),
        ("rope_factors_long.weight", np.ones(4), "unsupported RoPE scaling"),
        ("token_embd.weight", np.ones(4), "token_embd.weight has shape (4,); a matrix is needed"),
    ],
)  # fmt: skip
def test_tensors_that_the_configuration_needs(name, values, message):
    with pytest.raises(ModelError) as caught:
        read(tensors=TENSORS | {name: f32(name, values)})
    assert message in str(caught.value)


def test_without_an_embedding_table():
    with pytest.raises(ModelError, match=r"tensor token_embd\.weight is missing"):
        read(tensors={})
