"""The loader: from a file to a model that runs."""

import sys

import numpy as np
import pytest

from specdec_cli.errors import ModelError, UsageError
from specdec_cli.loader import LoadOptions, choose_executor, load_model
from specdec_cli.protocols import chain_rows
from specdec_cli.runtime.device import usable_cores

TORCH = LoadOptions(executor="torch")


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
def test_loads_every_architecture(tiny_gguf, architecture):
    notices: list[str] = []
    loaded = load_model(tiny_gguf(architecture), TORCH, on_notice=notices.append)
    assert loaded.config.architecture == architecture
    assert loaded.executor == "torch"
    assert loaded.model.n_ctx == 512
    assert loaded.model.n_vocab == loaded.tokenizer.n_vocab == 265
    assert loaded.chat_template is not None
    assert len(loaded.fingerprint) >= 32
    assert notices == []
    ids = loaded.tokenizer.encode("the thing")
    sequence = loaded.model.create_sequence()
    logits = loaded.model.forward(chain_rows(sequence, 0, ids, 1))
    assert logits.shape == (1, 265)
    assert logits.std() > 0.1


def test_context_size_is_the_smaller_of_4096_and_the_models(tiny_gguf):
    assert load_model(tiny_gguf(n_ctx=8192), TORCH).model.n_ctx == 4096
    assert load_model(tiny_gguf(n_ctx=100), TORCH).model.n_ctx == 100


def test_a_context_beyond_the_models_is_given_with_a_notice(tiny_gguf):
    notices: list[str] = []
    options = LoadOptions(executor="torch", n_ctx=600)
    assert load_model(tiny_gguf(), options, on_notice=notices.append).model.n_ctx == 600
    assert len(notices) == 1
    assert "600" in notices[0]
    assert "512" in notices[0]


def test_progress_reaches_its_total(tiny_gguf):
    seen: list[tuple[int, int]] = []
    load_model(tiny_gguf(), TORCH, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (LoadOptions(executor="torch", n_ctx=0), "context size is 0"),
        (
            LoadOptions(executor="torch", kv_type="q8_0"),
            "KV type q8_0 is not available on the torch executor",
        ),
        (LoadOptions(executor="torch", isa="avx2"), "ISA avx2: choosing kernels is an option of the native"),
        (LoadOptions(executor="torch", threads=0), "threads is 0; it must be at least 1"),
    ],
)
def test_options_that_cannot_be_met_are_refused_by_name(tiny_gguf, options, message):
    with pytest.raises(UsageError, match=message):
        load_model(tiny_gguf(), options)


def test_m4_more_threads_than_cores_are_clamped_with_a_notice(tiny_gguf):
    notices: list[str] = []
    loaded = load_model(tiny_gguf(), LoadOptions(executor="torch", threads=4096), on_notice=notices.append)
    assert loaded.model.threads == usable_cores()
    assert len(notices) == 1
    assert notices[0].startswith("4096 threads were asked for")


def test_i13_unsupported_architecture_is_named(gguf_builder):
    path = gguf_builder.write({"general.name": "x"}, arch="dream")
    with pytest.raises(ModelError, match=r'unsupported architecture "dream"') as caught:
        load_model(path, TORCH)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_broken_tokenizer_names_the_key(tiny_gguf):
    path = tiny_gguf(metadata={"tokenizer.ggml.eos_token_id": 9999})
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.eos_token_id"):
        load_model(path, TORCH)


def test_more_tokens_than_embedding_rows_is_an_error(tiny_gguf):
    path = tiny_gguf(
        metadata={
            "tokenizer.ggml.tokens": [f"t{i}" for i in range(300)],
            "tokenizer.ggml.token_type": None,
            "tokenizer.ggml.merges": ["t 1"],
        }
    )
    with pytest.raises(ModelError, match="tokenizer has 300 entries, the model 265"):
        load_model(path, TORCH)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
def test_the_native_executor_is_the_default_and_close_to_torch(tiny_gguf, architecture):
    pytest.importorskip("quant._native")
    path = tiny_gguf(architecture)
    logits = {}
    for options in (None, TORCH):
        loaded = load_model(path, options)
        ids = loaded.tokenizer.encode("the thing that is in the barn")
        sequence = loaded.model.create_sequence()
        logits[loaded.executor] = loaded.model.forward(chain_rows(sequence, 0, ids, len(ids)))
    assert logits.keys() == {"native", "torch"}
    # KV in f16 and, for quantized weights, int8 activations set them apart.
    assert np.abs(logits["native"] - logits["torch"]).mean() < 0.02


def test_options_of_the_other_executor_are_refused(tiny_gguf):
    pytest.importorskip("quant._native")
    with pytest.raises(UsageError, match="a memory budget for weights is an option of the torch executor"):
        load_model(tiny_gguf(), LoadOptions(memory_budget=10))


def test_without_the_native_executor_torch_is_used_with_one_notice(monkeypatch):
    monkeypatch.setitem(sys.modules, "specdec_cli.runtime.native_ops", None)
    notices: list[str] = []
    assert choose_executor("native", notices.append) == "torch"
    assert len(notices) == 1
    assert notices[0].startswith("the native executor is not available")


def test_without_torch_the_torch_executor_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"specdec-cli\[torch\]"):
        choose_executor("torch", lambda _: None)
    monkeypatch.setitem(sys.modules, "specdec_cli.runtime.native_ops", None)
    with pytest.raises(UsageError, match="PyTorch is not installed"):
        choose_executor("native", lambda _: None)
