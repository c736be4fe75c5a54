"""Cut vocabularies: which tokens stay, ids that move, merges that go, files that hang together."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quant.errors import QuantError
from quant.gguf_checks import validate_tokenizer_metadata
from quant.gguf_file import GgufFile
from quant.gguf_writer import TypedValue
from quant.recipe import EMBEDDING, HEAD, Recipe, default_head, fitting, write_quantized
from quant.reference import dequantize
from quant.requantize import quantize
from quant.types import BY_NAME, F32
from quant.vocabulary import SOURCE_IDS, cut_vocabulary

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
# Byte-level BPE: two bytes, tokens made of them, specials at the end.
TOKENS = ["a", "b", "ab", "aba", "abab", "ba", "bb", "<pad>", "<|end|>", "<tool>"]
KINDS = [NORMAL] * 7 + [UNUSED, CONTROL, USER]
MERGES = ["a b", "ab a", "ab ab", "b a", "b b"]


def bpe(**changes: TypedValue) -> dict[str, TypedValue]:
    entries = {
        "general.architecture": TypedValue("STRING", "llama"),
        "llama.vocab_size": TypedValue("UINT32", len(TOKENS)),
        "tokenizer.ggml.model": TypedValue("STRING", "gpt2"),
        "tokenizer.ggml.tokens": TypedValue("ARRAY[STRING]", TOKENS),
        "tokenizer.ggml.token_type": TypedValue("ARRAY[INT32]", KINDS),
        "tokenizer.ggml.merges": TypedValue("ARRAY[STRING]", MERGES),
        "tokenizer.ggml.eos_token_id": TypedValue("UINT32", 8),
        "tokenizer.ggml.padding_token_id": TypedValue("UINT32", 77),  # beyond: some converters write that
    }
    return entries | {key.replace("__", "."): value for key, value in changes.items()}


def values(metadata: dict[str, TypedValue]) -> dict[str, Any]:
    return {key: entry.value for key, entry in metadata.items()}


def test_lowest_ids_and_special_tokens_stay() -> None:
    cut = cut_vocabulary(bpe(), 6)
    assert cut.ids.tolist() == [0, 1, 2, 3, 8, 9]
    found = values(cut.metadata)
    assert found["tokenizer.ggml.tokens"] == ["a", "b", "ab", "aba", "<|end|>", "<tool>"]
    assert found["tokenizer.ggml.token_type"] == [NORMAL] * 4 + [CONTROL, USER]
    assert found["tokenizer.ggml.merges"] == ["a b", "ab a"]
    assert found["tokenizer.ggml.eos_token_id"] == 4
    assert "tokenizer.ggml.padding_token_id" not in found
    assert found["llama.vocab_size"] == 6
    assert found[SOURCE_IDS] == [0, 1, 2, 3, 8, 9]
    validate_tokenizer_metadata(found)


def test_whole_vocabulary_changes_no_token() -> None:
    before, found = values(bpe()), values(cut_vocabulary(bpe(), len(TOKENS)).metadata)
    for key in ("tokens", "token_type", "merges", "eos_token_id"):
        assert found[f"tokenizer.ggml.{key}"] == before[f"tokenizer.ggml.{key}"]


def test_ids_that_the_metadata_name_stay() -> None:
    cut = cut_vocabulary(bpe(tokenizer__ggml__bos_token_id=TypedValue("UINT32", 6)), 5)
    assert cut.ids.tolist() == [0, 1, 6, 8, 9]
    assert cut.metadata["tokenizer.ggml.bos_token_id"].value == 2


def test_a_space_within_a_merge_token_is_not_a_separator() -> None:
    """The first character of a merge is never its separator."""
    tokens = [" ", "a", " a", "z"]
    entries = bpe(
        tokenizer__ggml__tokens=TypedValue("ARRAY[STRING]", tokens),
        tokenizer__ggml__token_type=TypedValue("ARRAY[INT32]", [NORMAL] * 4),
        tokenizer__ggml__merges=TypedValue("ARRAY[STRING]", ["  a"]),
        tokenizer__ggml__eos_token_id=TypedValue("UINT32", 3),
    )
    assert cut_vocabulary(entries, 4).metadata["tokenizer.ggml.merges"].value == ["  a"]


def test_sentencepiece_keeps_bytes_and_latin_letters() -> None:
    tokens = ["<unk>", "<s>", "<0x41>", "th", "the", "▁the", "語", "e", "t", "▁", "é"]
    entries = bpe(
        tokenizer__ggml__model=TypedValue("STRING", "llama"),
        tokenizer__ggml__tokens=TypedValue("ARRAY[STRING]", tokens),
        tokenizer__ggml__token_type=TypedValue("ARRAY[INT32]", [UNKNOWN, CONTROL, BYTE] + [NORMAL] * 8),
        tokenizer__ggml__scores=TypedValue("ARRAY[FLOAT32]", [float(-i) for i in range(11)]),
        tokenizer__ggml__eos_token_id=TypedValue("UINT32", 1),
    )
    del entries["tokenizer.ggml.merges"]
    cut = cut_vocabulary(entries, 8)
    assert [tokens[i] for i in cut.ids] == ["<unk>", "<s>", "<0x41>", "th", "e", "t", "▁", "é"]
    assert cut.metadata["tokenizer.ggml.scores"].value == [float(-i) for i in cut.ids]


@pytest.mark.parametrize("size", [3, 11])
def test_sizes_out_of_range_say_what_is_possible(size: int) -> None:
    with pytest.raises(
        QuantError, match=rf"^a vocabulary of {size} tokens: it has 10, of which 4 are needed$"
    ):
        cut_vocabulary(bpe(), size)


@pytest.mark.parametrize("model", ["t5", None])
def test_unknown_tokenizers_are_refused(model: str | None) -> None:
    entries = bpe()
    if model is None:
        del entries["tokenizer.ggml.model"]
    else:
        entries["tokenizer.ggml.model"] = TypedValue("STRING", model)
    with pytest.raises(QuantError, match=rf"tokenizer of type {model!r} cannot be cut"):
        cut_vocabulary(entries, 6)


def tensors(*, tied: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {EMBEDDING: (10, 256), "blk.0.ffn_up.weight": (64, 256), "blk.0.ffn_down.weight": (256, 64)}
    shapes |= {} if tied else {HEAD: (10, 256), "output.bias": (10,)}
    shapes |= {"output_norm.weight": (256,)}
    return {
        name: quantize(rng.standard_normal(shape).astype(np.float32), F32, name=name)
        for name, shape in shapes.items()
    }


def write(path: Path, recipe: Recipe, *, tied: bool = False) -> GgufFile:
    metadata = bpe() | {"split.count": TypedValue("UINT16", 2), "split.no": TypedValue("UINT16", 0)}
    write_quantized(path, metadata, tensors(tied=tied), recipe)
    return GgufFile.open(path)


def test_types_of_a_written_file(tmp_path: Path) -> None:
    with write(tmp_path / "out.gguf", Recipe(BY_NAME["Q4_K"], default_head(BY_NAME["Q4_K"]))) as file:
        types = {name: tensor.qtype.name for name, tensor in file.tensors.items()}
        assert types == {
            EMBEDDING: "Q4_K",
            "blk.0.ffn_up.weight": "Q4_K",
            "blk.0.ffn_down.weight": "Q5_0",  # rows of 64 values
            HEAD: "Q6_K",
            "output.bias": "F32",
            "output_norm.weight": "F32",
        }
        assert (file.metadata["general.file_type"], file.metadata["general.quantization_version"]) == (15, 2)
        assert not any(key.startswith("split.") for key in file.metadata)


def test_a_tied_table_has_the_type_of_the_head(tmp_path: Path) -> None:
    with write(tmp_path / "out.gguf", Recipe(BY_NAME["Q4_0"], BY_NAME["Q8_0"]), tied=True) as file:
        assert file.tensors[EMBEDDING].qtype.name == "Q8_0"
        assert file.tensors["blk.0.ffn_up.weight"].qtype.name == "Q4_0"


def test_rows_of_a_cut_vocabulary_are_those_of_its_tokens(tmp_path: Path) -> None:
    rows = np.array([0, 1, 2, 3, 8, 9])
    with write(tmp_path / "out.gguf", Recipe(F32, F32, rows)) as file:
        source = tensors()
        for name in (EMBEDDING, HEAD, "output.bias"):
            assert (dequantize(file.tensors[name]) == dequantize(source[name])[rows]).all()
        assert file.tensors["blk.0.ffn_up.weight"].shape == (64, 256)


@pytest.mark.parametrize(
    ("wanted", "width", "expected"),
    [
        ("Q4_K", 512, "Q4_K"),
        ("Q4_K", 96, "Q5_0"),
        ("Q6_K", 96, "Q8_0"),
        ("Q4_0", 48, "F16"),
        ("Q4_K", 48, "F16"),
        ("F32", 7, "F32"),
    ],
)
def test_types_that_fit_the_rows(wanted: str, width: int, expected: str) -> None:
    assert fitting(BY_NAME[wanted], width).name == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Q4_0", "Q6_K"), ("Q5_0", "Q6_K"), ("Q6_K", "Q6_K"), ("Q8_0", "Q8_0"), ("F16", "F16")],
)
def test_default_head(name: str, expected: str) -> None:
    assert default_head(BY_NAME[name]).name == expected
