"""Reading the vocabulary: defaults, special tokens, ends of generation, and what is wrong with a file."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from specdec_cli.errors import ModelError
from specdec_cli.text.tokenizer import Tokenizer

Metadata = dict[str, Any]


def ends(tokenizer: Tokenizer) -> set[str]:
    return {tokenizer.token_text(i) for i in tokenizer.eog_ids}


def test_b10_end_of_turn_and_end_of_text_both_end_a_generation(byte_level: Callable[..., Metadata]) -> None:
    """The file names <|endoftext|>, the template ends turns by <|im_end|>."""
    metadata = byte_level()
    metadata["tokenizer.ggml.eos_token_id"] = metadata["tokenizer.ggml.tokens"].index("<|endoftext|>")
    assert ends(Tokenizer.from_gguf(metadata)) == {"<|endoftext|>", "<|im_end|>"}


def test_b10_ids_of_the_metadata_count_whatever_their_texts(byte_level: Callable[..., Metadata]) -> None:
    metadata = byte_level(control=["<fin>", "<turn>", "<msg>", "<other>"])
    first = metadata["tokenizer.ggml.tokens"].index("<fin>")
    for offset, name in enumerate(("eos", "eot", "eom")):
        metadata[f"tokenizer.ggml.{name}_token_id"] = first + offset
    assert ends(Tokenizer.from_gguf(metadata)) == {"<fin>", "<turn>", "<msg>"}


@pytest.mark.parametrize("text", ["<end_of_turn>", "<|eot_id|>", "<|eom_id|>", "</s>", "<|file_sep|>"])
def test_b10_well_known_ends_are_control_tokens_even_if_the_file_denies_it(
    byte_level: Callable[..., Metadata], text: str
) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(control=[], user_defined=[text]))
    (end,) = tokenizer.eog_ids
    assert tokenizer.token_kind(end) == "control"
    assert tokenizer.token_bytes(end) == b""
    assert end not in tokenizer.encode(text)


def test_end_of_a_channel_does_not_end_the_answer(byte_level: Callable[..., Metadata]) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(control=["<|end|>", "<|return|>", "<|call|>", "<|channel|>"]))
    assert ends(tokenizer) == {"<|return|>", "<|call|>"}
    channel = tokenizer.texts.index("<|channel|>")
    assert tokenizer.token_bytes(channel) == b"<|channel|>"
    assert ends(Tokenizer.from_gguf(byte_level(control=["<|end|>"]))) == {"<|end|>"}


@pytest.mark.parametrize(("pre", "expected"), [("llama-bpe", True), ("tekken", True), ("qwen2", False)])
def test_bos_default_of_byte_level_vocabularies(
    byte_level: Callable[..., Metadata], pre: str, expected: bool
) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(pre=pre, bos_token_id=7))
    assert tokenizer.add_bos is expected
    assert tokenizer.encode("a", add_bos=True)[:-1] == ([7] if expected else [])


def test_bos_default_of_spm_vocabularies(spm: Callable[..., Metadata]) -> None:
    tokenizer = Tokenizer.from_gguf(spm())
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (1, 2, True)
    assert tokenizer.encode("", add_bos=True) == [1]


def test_setting_of_the_file_wins(spm: Callable[..., Metadata], byte_level: Callable[..., Metadata]) -> None:
    assert Tokenizer.from_gguf(spm(add_bos_token=False)).encode("", add_bos=True) == []
    wants = Tokenizer.from_gguf(byte_level(add_bos_token=True, bos_token_id=3))
    assert wants.encode("", add_bos=True) == [3]


def test_a_bos_that_is_not_there_is_not_added(byte_level: Callable[..., Metadata]) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(pre="llama-bpe"))
    assert tokenizer.bos_id is None
    assert not tokenizer.add_bos
    assert tokenizer.encode("", add_bos=True) == []


def test_j5_one_bos_when_the_text_brings_one(byte_level: Callable[..., Metadata]) -> None:
    metadata = byte_level(control=["<bos>"], add_bos_token=True, bos_token_id=256)
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.encode("<bos>a", parse_special=True, add_bos=True) == [256, tokenizer.texts.index("a")]
    assert tokenizer.encode("<bos><bos>", parse_special=True, add_bos=True) == [256]
    assert tokenizer.encode("a<bos>", parse_special=True, add_bos=True)[0] == 256


def test_kinds(spm: Callable[..., Metadata]) -> None:
    metadata = spm(["a", "b"], user_defined=["<tag>"])
    metadata["tokenizer.ggml.token_type"][-2] = 5
    tokenizer = Tokenizer.from_gguf(metadata)
    names = [tokenizer.token_kind(i) for i in (0, 1, 3, *range(tokenizer.n_vocab - 3, tokenizer.n_vocab))]
    assert names == ["unknown", "control", "byte", "normal", "unused", "user_defined"]
    assert [tokenizer.token_bytes(i) for i in (0, 1, 3)] == [b"", b"", b"\x00"]
    assert tokenizer.token_bytes(tokenizer.n_vocab - 2) == b""
    assert tokenizer.token_bytes(tokenizer.n_vocab - 1) == b"<tag>"


def test_arrays_may_be_numpy(spm: Callable[..., Metadata]) -> None:
    plain = spm(["a", "b", "ab"], add_space_prefix=False)
    arrays = {
        **plain,
        "tokenizer.ggml.scores": np.asarray(plain["tokenizer.ggml.scores"], np.float32),
        "tokenizer.ggml.token_type": np.asarray(plain["tokenizer.ggml.token_type"], np.int32),
    }
    assert Tokenizer.from_gguf(arrays).encode("abba") == Tokenizer.from_gguf(plain).encode("abba")


def test_nameless_tokens_match_nothing(byte_level: Callable[..., Metadata]) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(control=["", "<x>"]))
    assert tokenizer.token_text(256) == "[EMPTY_256]"
    assert tokenizer.encode("a<x>", parse_special=True) == [tokenizer.texts.index("a"), 257]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": None}, "no tokenizer.ggml.tokens"),
        ({"tokens": []}, "no tokenizer.ggml.tokens"),
        ({"tokens": "abc"}, "tokenizer.ggml.tokens must be an array"),
        ({"tokens": [1, 2]}, "tokenizer.ggml.tokens must be an array of strings"),
        ({"scores": [0.0]}, "tokenizer.ggml.scores has 1 entries for 259 tokens"),
        ({"scores": ["x"] * 259}, "tokenizer.ggml.scores must be an array of numbers"),
        ({"scores": [float("nan")] * 259}, "tokenizer.ggml.scores holds a value that is not a number"),
        ({"token_type": [1] * 260}, "tokenizer.ggml.token_type has 260 entries for 259 tokens"),
        ({"token_type": [1.0] * 259}, "tokenizer.ggml.token_type must be an array of integers"),
        (
            {"bos_token_id": 259},
            "tokenizer.ggml.bos_token_id is 259, but the vocabulary has the ids 0 to 258",
        ),
        ({"eos_token_id": -1}, "tokenizer.ggml.eos_token_id is -1"),
        ({"eot_token_id": 1 << 40}, "tokenizer.ggml.eot_token_id is 1099511627776"),
        ({"unknown_token_id": "0"}, "tokenizer.ggml.unknown_token_id must be an integer"),
        ({"bos_token_id": True}, "tokenizer.ggml.bos_token_id must be an integer"),
        ({"add_bos_token": 1}, "tokenizer.ggml.add_bos_token must be true or false"),
        ({"model": "rwkv"}, "tokenizer.ggml.model 'rwkv' is not supported"),
        ({"model": None}, "no tokenizer.ggml.model"),
        ({"model": 3}, "tokenizer.ggml.model must be a string"),
        ({"pre": "strange"}, "pre-tokenizer 'strange'"),
        ({"merges": None}, "no tokenizer.ggml.merges"),
        ({"merges": [1]}, "tokenizer.ggml.merges must be an array of strings"),
    ],
)
def test_i6_i9_what_is_wrong_is_named(
    byte_level: Callable[..., Metadata], change: Metadata, message: str
) -> None:
    metadata = byte_level() | {f"tokenizer.ggml.{key}": value for key, value in change.items()}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    with pytest.raises(ModelError) as caught:
        Tokenizer.from_gguf(metadata)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
