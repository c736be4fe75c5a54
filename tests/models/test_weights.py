"""The weight tree: tensors checked by name and shape, rows brought into one layout."""

import numpy as np
import pytest

from quant.gguf_file import GgufFile
from quant.reference import dequantize
from quant.tensor import QuantTensor
from specdec_cli.errors import ModelError
from specdec_cli.models.catalog import ARCHITECTURES
from specdec_cli.models.config import ModelConfig
from specdec_cli.models.weights import canonicalise


def open_model(path):
    with GgufFile.open(path) as file:
        metadata, tensors = file.metadata, dict(file.tensors)
    return ModelConfig.from_metadata(metadata, tensors), tensors


def tree(path, changes=None):
    config, tensors = open_model(path)
    tensors.update(changes or {})
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    return canonicalise(config, tensors, ARCHITECTURES[config.architecture][1])


def resized(path, name, shape):
    _, tensors = open_model(path)
    values = np.zeros(shape, np.float32)
    return {name: QuantTensor(name, tensors[name].qtype, shape, values.view(np.uint8).reshape(-1))}


def test_a_tied_head_is_the_embedding_table_itself(tiny_gguf):
    weights = tree(tiny_gguf(tied=True))
    assert weights.output.weight is weights.token_embd
    weights = tree(tiny_gguf(tied=False))
    assert weights.output.weight.name == "output.weight"


@pytest.mark.parametrize("file_type", ["F32", "Q8_0", "Q4_0"])
def test_llama_rows_are_permuted_to_split_halves_in_their_packed_form(tiny_gguf, file_type):
    path = tiny_gguf("llama", file_type=file_type)
    _, tensors = open_model(path)
    block = tree(path).blocks[1]
    for weight, heads in ((block.q.weight, 4), (block.k.weight, 2)):
        stored = dequantize(tensors[weight.name]).reshape(heads, 8, 2, 64)
        expected = np.concatenate([stored[:, :, 0], stored[:, :, 1]], axis=1).reshape(heads * 16, 64)
        assert np.array_equal(dequantize(weight), expected)
        assert weight.qtype.name == file_type
    assert block.v.weight is not None
    assert np.array_equal(dequantize(block.v.weight), dequantize(tensors["blk.1.attn_v.weight"]))


def test_elements_past_the_rotated_width_stay_in_place(tiny_gguf):
    path = tiny_gguf("llama", metadata={"llama.rope.dimension_count": 4})
    _, tensors = open_model(path)
    stored = dequantize(tensors["blk.0.attn_k.weight"]).reshape(2, 16, 64)
    order = [0, 2, 1, 3, *range(4, 16)]
    assert np.array_equal(dequantize(tree(path).blocks[0].k.weight), stored[:, order].reshape(32, 64))


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "gemma3"])
def test_other_architectures_use_the_files_own_rows(tiny_gguf, architecture):
    path = tiny_gguf(architecture)
    _, tensors = open_model(path)
    block = tree(path).blocks[0]
    assert np.array_equal(block.q.weight.data, tensors["blk.0.attn_q.weight"].data)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("llama", "blk.1.ffn_up.weight"),
        ("llama", "output_norm.weight"),
        ("qwen2", "blk.0.attn_k.bias"),
        ("qwen3", "blk.0.attn_q_norm.weight"),
        ("gemma3", "blk.1.post_ffw_norm.weight"),
    ],
)
def test_a_missing_tensor_is_named(tiny_gguf, architecture, name):
    with pytest.raises(ModelError, match=rf"^missing tensor {name}$"):
        tree(tiny_gguf(architecture), {name: None})


def test_several_missing_tensors_are_counted(tiny_gguf):
    names = {f"blk.1.{name}.weight": None for name in ("ffn_up", "ffn_gate", "ffn_down")}
    with pytest.raises(ModelError, match=r"^missing tensor blk\.1\.ffn_down\.weight and 2 more$"):
        tree(tiny_gguf(), names)


def test_an_unexpected_tensor_is_named(tiny_gguf):
    path = tiny_gguf("llama")
    extra = resized(path, "blk.0.attn_norm.weight", (16,))["blk.0.attn_norm.weight"]
    with pytest.raises(ModelError, match=r"^unexpected tensor blk\.0\.attn_q_norm\.weight$"):
        tree(path, {"blk.0.attn_q_norm.weight": extra})


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("blk.0.attn_k.weight", (64, 64), "has shape (64, 64); (32, 64) is needed"),
        ("blk.0.ffn_down.weight", (96, 64), "has shape (96, 64); (64, 96) is needed"),
        ("output_norm.weight", (65,), "has shape (65,); (64,) is needed"),
        ("output.weight", (264, 64), "has shape (264, 64); (265, 64) is needed"),
        ("blk.1.attn_norm.weight", (64, 1), "has shape (64, 1); (64,) is needed"),
    ],
)
def test_a_misshapen_tensor_is_named(tiny_gguf, name, shape, message):
    path = tiny_gguf()
    with pytest.raises(ModelError) as caught:
        tree(path, resized(path, name, shape))
    assert str(caught.value) == f"tensor {name} {message}"
