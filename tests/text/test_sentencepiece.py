"""SentencePiece-type BPE on tiny vocabularies."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from specdec_cli.errors import ModelError
from specdec_cli.text.bpe import merge_pairs
from specdec_cli.text.sentencepiece import PairFilter
from specdec_cli.text.tokenizer import Tokenizer

Metadata = dict[str, Any]
TextsOf = Callable[..., list[str]]


def test_highest_score_merges_first(spm: Callable[..., Metadata], texts_of: TextsOf) -> None:
    letters = [("a", -9.0), ("b", -9.0), ("c", -9.0)]
    left = Tokenizer.from_gguf(spm([*letters, ("ab", -1.0), ("bc", -2.0)], add_space_prefix=False))
    right = Tokenizer.from_gguf(spm([*letters, ("ab", -2.0), ("bc", -1.0)], add_space_prefix=False))
    assert texts_of(left, "abc") == ["ab", "c"]
    assert texts_of(right, "abc") == ["a", "bc"]


def test_of_equal_scores_the_leftmost_merges_first(spm: Callable[..., Metadata], texts_of: TextsOf) -> None:
    """A table of merges with one rank per pair could not say this: bc, then ab would give other tokens."""
    pieces = [(text, -1.0) for text in ("a", "b", "c", "d", "bc", "ab", "cd")]
    tokenizer = Tokenizer.from_gguf(spm(pieces, add_space_prefix=False))
    assert texts_of(tokenizer, "abcd") == ["ab", "cd"]
    assert texts_of(tokenizer, "bcd") == ["bc", "d"]


def test_merge_of_characters_that_are_no_tokens(spm: Callable[..., Metadata], texts_of: TextsOf) -> None:
    tokenizer = Tokenizer.from_gguf(spm(["éa", "▁"], add_space_prefix=False))
    assert texts_of(tokenizer, "éa") == ["éa"]
    assert texts_of(tokenizer, "é") == ["<0xC3>", "<0xA9>"]


def test_space_prefix_and_its_removal(spm: Callable[..., Metadata], texts_of: TextsOf) -> None:
    metadata = spm(["▁hi", "h", "i", "▁", "hi", "▁h"], control=["<x>"])
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.add_space_prefix
    assert texts_of(tokenizer, "hi") == ["▁hi"]
    assert texts_of(tokenizer, "hi<x>hi", parse_special=True) == ["▁hi", "<x>", "▁hi"]
    assert tokenizer.decode(tokenizer.encode("hi hi")) == "hi hi"
    without = Tokenizer.from_gguf({**metadata, "tokenizer.ggml.add_space_prefix": False})
    assert texts_of(without, "hi") == ["hi"]
    assert without.decode(without.encode(" hi")) == " hi"


def test_empty_text_has_no_space_prefix(spm: Callable[..., Metadata]) -> None:
    assert Tokenizer.from_gguf(spm(["▁"])).encode("") == []


def test_byte_fallback_round_trip(spm: Callable[..., Metadata]) -> None:
    tokenizer = Tokenizer.from_gguf(spm(["▁", "a"], add_space_prefix=False))
    text = "a🙂\x00\n日 \u0301"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_unknown_token_where_bytes_are_missing(spm: Callable[..., Metadata], texts_of: TextsOf) -> None:
    tokenizer = Tokenizer.from_gguf(spm(["▁", "a"], with_bytes=False, add_space_prefix=False))
    assert texts_of(tokenizer, "aé") == ["a", "<unk>", "<unk>"]


def test_neither_bytes_nor_unknown_is_an_error() -> None:
    metadata = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a", "b", "c"]}
    with pytest.raises(ModelError, match="neither a token for byte 0x00 nor an unknown token"):
        Tokenizer.from_gguf(metadata)


def test_without_scores_all_merges_are_equal(spm: Callable[..., Metadata], texts_of: TextsOf) -> None:
    metadata = spm(["a", "b", "ab", "abab"], add_space_prefix=False)
    del metadata["tokenizer.ggml.scores"]
    assert texts_of(Tokenizer.from_gguf(metadata), "ababab") == ["abab", "ab"]


def test_ordinary_merging_never_ends_in_a_control_token(
    spm: Callable[..., Metadata], texts_of: TextsOf
) -> None:
    """The pieces `<s` and `>` are tokens, and so is what they would join to."""
    tokenizer = Tokenizer.from_gguf(spm(["<", "s", ">", "<s"], add_space_prefix=False))
    assert texts_of(tokenizer, "<s>") == ["<s", ">"]
    assert texts_of(tokenizer, "<s>", parse_special=True) == ["<s>"]


def test_pieces_between_cuts_merge_as_the_whole_text(spm: Callable[..., Metadata]) -> None:
    """Cutting where no token can lie across, and the cache, change nothing."""
    generator = random.Random(3)
    pieces = {"".join(generator.choices("abcdé▁\n", k=generator.randrange(1, 5))) for _ in range(120)}
    scored = [(text, float(-generator.randrange(30))) for text in sorted(pieces)]
    tokenizer = Tokenizer.from_gguf(spm(scored, add_space_prefix=False))
    score = {tokenizer.token_text(i): tokenizer.vocabulary.scores[i] for i in range(tokenizer.n_vocab)}

    def rank(left: str, right: str) -> float | None:
        return -score[left + right] if left + right in score else None

    for _ in range(400):
        text = "".join(generator.choices("abcdé \n✓", k=generator.randrange(60)))
        expected: list[str] = []
        for part in merge_pairs(text.replace(" ", "▁"), rank):
            expected += [part] if part in score else [f"<0x{byte:02X}>" for byte in part.encode()]
        assert [tokenizer.token_text(i) for i in tokenizer.encode(text)] == expected


def test_filter_never_cuts_inside_a_token() -> None:
    texts = {"ab": 0, "bcd": 1, "日本": 2, "x": 3}
    split = PairFilter(texts).split
    assert split("abcd") == ["abcd"]
    assert split("日本ab") == ["日本", "ab"]
    assert split("xx") == ["x", "x"]
    assert split("") == []
    assert PairFilter({}).split("ab") == ["a", "b"]
