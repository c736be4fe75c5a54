"""Tokenizer metadata: cases I6 (types and lengths of arrays) and I9 (ids and merges)."""

from typing import Any

import pytest

from quant.errors import QuantError
from quant.gguf_checks import validate_tokenizer_metadata
from quant.gguf_file import GgufFile

TOKENS = "tokenizer.ggml.tokens"
SCORES = "tokenizer.ggml.scores"
TYPES = "tokenizer.ggml.token_type"
MERGES = "tokenizer.ggml.merges"
VALID: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    TOKENS: ["<s>", "</s>", "a", "b", "ab"],
    SCORES: [0.0, 0.0, -1.0, -2.0, -3.0],
    TYPES: [3, 3, 1, 1, 1],
    MERGES: ["a b"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 4,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.chat_template": "{{ messages }}",
}


def complaint(gguf_builder: Any, changes: dict[str, Any]) -> str | None:
    """What is said about VALID with changes (None removes a key), written to a file and read back."""
    metadata = {key: value for key, value in (VALID | changes).items() if value is not None}
    raw = gguf_builder.raw
    data = raw.header(kv_count=len(metadata)) + b"".join(raw.entry(*item) for item in metadata.items())
    with GgufFile.open(gguf_builder.write_bytes(data)) as file:
        try:
            validate_tokenizer_metadata(file.metadata)
        except QuantError as error:
            return str(error)
    return None


def test_a_valid_tokenizer_passes(gguf_builder: Any) -> None:
    assert complaint(gguf_builder, {}) is None
    assert complaint(gguf_builder, {SCORES: None, TYPES: None, MERGES: None}) is None
    assert validate_tokenizer_metadata(VALID) is None


@pytest.mark.parametrize("key", [SCORES, TYPES])
@pytest.mark.parametrize("element_type", ["UINT8", "INT8", "UINT16", "BOOL", "UINT64", "INT64"])
def test_i6_wrong_element_type(gguf_builder: Any, key: str, element_type: str) -> None:
    message = complaint(gguf_builder, {key: gguf_builder.Typed([1, 1, 1, 1, 1], element_type)})
    assert message == f"{key} is ARRAY[{element_type}], not ARRAY[{'FLOAT32' if key == SCORES else 'INT32'}]"


@pytest.mark.parametrize("key", [SCORES, TYPES])
@pytest.mark.parametrize("length", [0, 4, 6, 1000])
def test_i6_wrong_length(gguf_builder: Any, key: str, length: int) -> None:
    values = gguf_builder.Typed([1] * length, "FLOAT32" if key == SCORES else "INT32")
    assert complaint(gguf_builder, {key: values}) == f"{key} has {length} entries, {TOKENS} has 5"


@pytest.mark.parametrize("key", [TOKENS, SCORES, TYPES, MERGES])
def test_i6_scalars_instead_of_arrays(gguf_builder: Any, key: str) -> None:
    message = complaint(gguf_builder, {key: "text"})
    assert message is not None
    assert message.startswith(f"{key} is STRING, not ARRAY[")


def test_i6_tokens(gguf_builder: Any) -> None:
    assert complaint(gguf_builder, {TOKENS: None}) == f"{TOKENS} is missing"
    assert complaint(gguf_builder, {TOKENS: []}) == f"{TOKENS} is empty"
    assert (
        complaint(gguf_builder, {TOKENS: [1, 2, 3, 4, 5]}) == f"{TOKENS} is ARRAY[INT32], not ARRAY[STRING]"
    )


@pytest.mark.parametrize("name", ["bos", "eos", "unknown", "eot", "eom", "fim_pre", "middle"])
@pytest.mark.parametrize("value", [-1, 5, 1 << 31])
def test_i9_ids_outside_of_the_vocabulary(gguf_builder: Any, name: str, value: int) -> None:
    key = f"tokenizer.ggml.{name}_token_id"
    typed = gguf_builder.Typed(value, "INT64")
    assert complaint(gguf_builder, {key: typed}) == f"{key} is {value}, outside of the 5 tokens"


@pytest.mark.parametrize("value", ["1", 1.0, True, [1]])
def test_i9_ids_that_are_no_integers(gguf_builder: Any, value: Any) -> None:
    key = "tokenizer.ggml.eos_token_id"
    message = complaint(gguf_builder, {key: value})
    assert message == f"{key} is {type(value).__name__}, not an integer"


def test_i9_padding_id_is_not_used_and_may_be_anything(gguf_builder: Any) -> None:
    assert complaint(gguf_builder, {"tokenizer.ggml.padding_token_id": (1 << 32) - 1}) is None


@pytest.mark.parametrize("merge", ["ab", "", " ", " b", "a ", "a"])
def test_i9_merges_without_separator(gguf_builder: Any, merge: str) -> None:
    message = complaint(gguf_builder, {MERGES: ["a b", merge]})
    assert message == f"{MERGES}: entry 1, {merge!r}, is not two texts with a space between"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("tokenizer.ggml.model", 5, "UINT32, not text"),
        ("tokenizer.ggml.pre", ["x"], "ARRAY[STRING], not text"),
        ("tokenizer.chat_template", False, "BOOL, not text"),
        ("tokenizer.ggml.add_bos_token", 1, "UINT32, not bool"),
    ],
)
def test_types_of_scalars(gguf_builder: Any, key: str, value: Any, expected: str) -> None:
    assert complaint(gguf_builder, {key: value}) == f"{key} is {expected}"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({TYPES: "text"}, f"{TYPES} is str, not ARRAY[INT32]"),
        ({TYPES: [1, 1, 1, 1, True]}, f"{TYPES} holds bool, not ARRAY[INT32]"),
        ({SCORES: [1, 1, 1, 1, 1]}, f"{SCORES} holds int, not ARRAY[FLOAT32]"),
        ({TOKENS: ["a", b"b"]}, f"{TOKENS} holds bytes, not ARRAY[STRING]"),
        ({"tokenizer.ggml.pre": 1}, "tokenizer.ggml.pre is int, not text"),
    ],
)
def test_plain_mappings_are_checked_by_python_type(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(QuantError) as caught:
        validate_tokenizer_metadata(VALID | changes)
    assert str(caught.value) == expected
