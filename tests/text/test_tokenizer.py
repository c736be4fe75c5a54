"""Special tokens in text, BOS, and the way back, on tiny vocabularies."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.text.detokenizer import Detokenizer
from specdec_cli.text.partition import SpecialSplitter
from specdec_cli.text.tokenizer import Tokenizer

Metadata = dict[str, Any]
TextsOf = Callable[..., list[str]]


def test_control_tokens_only_on_demand_user_defined_always(
    byte_level: Callable[..., Metadata], texts_of: TextsOf
) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(control=["<c>"], user_defined=["<u>"]))
    assert texts_of(tokenizer, "a<c><u>") == ["a", "<", "c", ">", "<u>"]
    assert texts_of(tokenizer, "a<c><u>", parse_special=True) == ["a", "<c>", "<u>"]


def test_longest_special_token_first_even_if_another_begins_earlier() -> None:
    splitter = SpecialSplitter([("ab", 1), ("bcd", 2), ("abcd", 3)])
    assert splitter.split("xabcdx") == ["x", 3, "x"]
    assert SpecialSplitter([("ab", 1), ("bcd", 2)]).split("abcd") == ["a", 2]
    assert SpecialSplitter([("aa", 1)]).split("aaaaa") == [1, 1, "a"]
    assert SpecialSplitter([]).split("") == []


def test_length_counts_bytes() -> None:
    assert SpecialSplitter([("abc", 1), ("c日", 2)]).split("abc日") == ["ab", 2]


def test_tokens_of_phi_3_swallow_white_space_behind_them(
    spm: Callable[..., Metadata], texts_of: TextsOf
) -> None:
    metadata = spm(["▁", "a"], control=["<|user|>", "<|endoftext|>"], add_space_prefix=False)
    text = "<|user|> \n a<|endoftext|> a"
    plain = Tokenizer.from_gguf(metadata)
    assert texts_of(plain, text, parse_special=True)[:3] == ["<|user|>", "▁", "<0x0A>"]
    phi = Tokenizer.from_gguf({**metadata, "general.name": "Phi-3 mini"})
    assert texts_of(phi, text, parse_special=True) == ["<|user|>", "a", "<|endoftext|>", "▁", "a"]


def test_a_swallowing_token_made_of_white_space() -> None:
    assert SpecialSplitter([("  ", 1)], frozenset({1})).split("     a") == [1, "a"]


@settings(deadline=None)
@given(st.text(max_size=40))
def test_byte_level_round_trip(text: str) -> None:
    tokenizer = _tokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def _tokenizer(cache: list[Tokenizer] = []) -> Tokenizer:  # noqa: B006 - built once for all examples
    if not cache:
        from specdec_cli.text.bpe import BYTE_TO_CHAR

        merges = ["a b", "Ġ a", "ab c", "Ã ©"]
        tokens = [*BYTE_TO_CHAR, *(merge.replace(" ", "") for merge in merges)]
        metadata = {"model": "gpt2", "pre": "qwen2", "tokens": tokens, "merges": merges}
        cache.append(Tokenizer.from_gguf({f"tokenizer.ggml.{k}": v for k, v in metadata.items()}))
    return cache[0]


@settings(deadline=None)
@given(st.text(max_size=40))
def test_streamed_text_equals_decoded_text(text: str) -> None:
    tokenizer = _tokenizer()
    ids = tokenizer.encode(text)
    detokenizer = Detokenizer(tokenizer.token_bytes)
    assert "".join(map(detokenizer.push, ids)) + detokenizer.flush() == tokenizer.decode(ids)


@pytest.mark.parametrize("text", ["a\ud800b", "\udcff", "x\udce9"])
def test_what_is_no_unicode_becomes_replacement_characters(text: str) -> None:
    tokenizer = _tokenizer()
    decoded = tokenizer.decode(tokenizer.encode(text))
    assert "\ufffd" in decoded
    assert decoded.replace("\ufffd", "") == text.encode("ascii", "ignore").decode()


def test_control_tokens_show_on_demand(byte_level: Callable[..., Metadata]) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(control=["<c>"]))
    ids = tokenizer.encode("a<c>b", parse_special=True)
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, special=True) == "a<c>b"


def test_long_word_is_not_quadratic() -> None:
    """A megabyte of one letter; a quadratic loop would take hours."""
    metadata = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "aa", "aaaa"], "merges": ["a a", "aa aa"]}
    tokenizer = Tokenizer.from_gguf({f"tokenizer.ggml.{k}": v for k, v in metadata.items()})
    assert len(tokenizer.encode("a" * 200_000)) == 50_000
