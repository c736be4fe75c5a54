"""Merging of pairs, and byte-level BPE on tiny vocabularies, against the tokenizers library's own BPE."""

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.errors import ModelError
from specdec_cli.text import bpe
from specdec_cli.text.bpe import BYTE_TO_CHAR, CHAR_TO_BYTE, byte_level_bytes, merge_pairs
from specdec_cli.text.tokenizer import Tokenizer

Metadata = dict[str, Any]


def ranks_of(*pairs: str) -> Callable[[str, str], int | None]:
    ranks = {pair: rank for rank, pair in enumerate(pairs)}
    return lambda left, right: ranks.get(f"{left} {right}")


def test_lowest_rank_first() -> None:
    assert merge_pairs("abc", ranks_of("b c", "a b")) == ["a", "bc"]
    assert merge_pairs("abc", ranks_of("a b", "b c")) == ["ab", "c"]


def test_equal_ranks_leftmost_first() -> None:
    assert merge_pairs("aaa", ranks_of("a a")) == ["aa", "a"]
    assert merge_pairs("aaaaa", lambda a, b: 0 if a + b in ("aa", "aaaa") else None) == ["aaaa", "a"]


def test_merges_cascade_through_neighbours() -> None:
    assert merge_pairs("xabcdx", ranks_of("b c", "a bc", "abc d")) == ["x", "abcd", "x"]


@pytest.mark.parametrize("text", ["", "a", "ab"])
def test_nothing_to_merge(text: str) -> None:
    assert merge_pairs(text, lambda _a, _b: None) == list(text)


def naive(symbols: str, rank: Callable[[str, str], float | None]) -> list[str]:
    """The definition, one merge at a time."""
    parts = list(symbols)
    while True:
        found = [(rank(a, b), i) for i, (a, b) in enumerate(pairwise(parts))]
        ranked = [(value, i) for value, i in found if value is not None]
        if not ranked:
            return parts
        _, i = min(ranked)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


@settings(deadline=None)
@given(
    st.text("abc", max_size=24), st.dictionaries(st.text("abc", min_size=2, max_size=5), st.integers(0, 6))
)
def test_queue_equals_the_definition(text: str, score_of: dict[str, int]) -> None:
    def rank(left: str, right: str) -> float | None:
        return score_of.get(left + right)

    assert merge_pairs(text, rank) == naive(text, rank)


def test_byte_alphabet_is_a_bijection() -> None:
    assert len(CHAR_TO_BYTE) == 256
    assert BYTE_TO_CHAR[0x20] == "Ġ"
    assert BYTE_TO_CHAR[0x0A] == "Ċ"
    assert byte_level_bytes("".join(BYTE_TO_CHAR)) == bytes(range(256))


def test_entry_outside_the_byte_alphabet_stands_for_itself() -> None:
    assert byte_level_bytes("a b→Ġ") == "a b→ ".encode()


def train_merges(corpus: str, count: int) -> list[str]:
    """A few merges as BPE training would find them, most frequent pair first."""
    words = [[BYTE_TO_CHAR[b] for b in (" " + word).encode()] for word in corpus.split()]
    merges: list[str] = []
    for _ in range(count):
        pairs: dict[tuple[str, str], int] = {}
        for word in words:
            for pair in pairwise(word):
                pairs[pair] = pairs.get(pair, 0) + 1
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(" ".join(best))
        for word in words:
            i = 0
            while i + 1 < len(word):
                if (word[i], word[i + 1]) == best:
                    word[i : i + 2] = [word[i] + word[i + 1]]
                i += 1
    return merges


CORPUS = "the theatre then other bother mother cafés naïve 日本語 日本 the them these 🙂🙂 there aaaa aaa"


def test_ids_equal_the_tokenizers_library(byte_level: Callable[..., Metadata]) -> None:
    import tokenizers
    from tokenizers import models, pre_tokenizers

    metadata = byte_level(merges=train_merges(CORPUS, 45))
    ours = Tokenizer.from_gguf(metadata)
    vocab = {text: i for i, text in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    library = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    generator = random.Random(1)
    for _ in range(300):
        text = "".join(
            generator.choice([*CORPUS, " ", "\n", "the", "1", "'s"]) for _ in range(generator.randrange(40))
        )
        assert ours.encode(text) == library.encode(text).ids
        assert ours.decode(ours.encode(text)) == text


def test_word_that_is_a_token_needs_no_merges_for_llama_bpe(
    byte_level: Callable[..., Metadata], texts_of: Callable[..., list[str]]
) -> None:
    """`whole` is a token that no merge leads to."""

    def build(pre: str) -> Tokenizer:
        metadata = byte_level(merges=["w h"], pre=pre)
        metadata["tokenizer.ggml.tokens"].append("whole")
        metadata["tokenizer.ggml.token_type"].append(1)
        return Tokenizer.from_gguf(metadata)

    assert texts_of(build("llama-bpe"), "whole") == ["whole"]
    assert texts_of(build("gpt-2"), "whole") == ["wh", "o", "l", "e"]


def test_merge_that_leads_out_of_the_vocabulary_falls_back_to_bytes(
    byte_level: Callable[..., Metadata], texts_of: Callable[..., list[str]]
) -> None:
    metadata = byte_level(merges=["a b"])
    metadata["tokenizer.ggml.merges"] = ["a b", "ab c"]  # abc is no token
    assert texts_of(Tokenizer.from_gguf(metadata), "abcab") == ["a", "b", "c", "ab"]


def test_of_equal_merges_the_first_counts(
    byte_level: Callable[..., Metadata], texts_of: Callable[..., list[str]]
) -> None:
    metadata = byte_level(merges=["a b", "b c", "a b"])
    assert texts_of(Tokenizer.from_gguf(metadata), "abc") == ["ab", "c"]


@pytest.mark.parametrize("merge", ["ab", "", " ", "a ", " ab"])
def test_i9_merge_without_separator(byte_level: Callable[..., Metadata], merge: str) -> None:
    metadata = byte_level(merges=["a b"])
    metadata["tokenizer.ggml.merges"].append(merge)
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.merges: entry 1 has no separator"):
        Tokenizer.from_gguf(metadata)


def test_cache_of_words_is_bounded(
    byte_level: Callable[..., Metadata], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bpe, "_CACHE_WORDS", 4)
    tokenizer = Tokenizer.from_gguf(byte_level(merges=["a b"]))
    text = " ".join(f"ab{i}" for i in range(20))
    assert tokenizer.encode(text) == tokenizer.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer._algorithm._cache._known) <= 4  # type: ignore[attr-defined]
