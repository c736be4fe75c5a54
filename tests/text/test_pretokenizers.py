"""How texts are cut into words, by the name in tokenizer.ggml.pre. The expected cuts are llama.cpp's."""

import pytest

from specdec_cli.errors import ModelError
from specdec_cli.text.pretokenizers import _RULES, find_pretokenizer

CASES = [
    ("gpt-2", "It's 1234  ok!?\n\n x", ["It", "'s", " 1234", " ", " ok", "!?", "\n\n", " x"]),
    ("gpt-2", "IT'S   \n", ["IT", "'", "S", "   \n"]),
    ("smollm", "a 1234 b", ["a", " ", "1", "2", "3", "4", " b"]),
    ("qwen2", "It'S 12\n\n  x\t!\n", ["It", "'S", " ", "1", "2", "\n\n", " ", " x", "\t", "!\n"]),
    ("qwen2", "(foo) _bar\r\n", ["(foo", ")", " _", "bar", "\r\n"]),
    ("llama-bpe", "pi=31415, e", ["pi", "=", "314", "15", ",", " e"]),
    ("deepseek-coder", "ab 12, 中文x", ["ab", " ", "1", "2", ",", " ", "中文", "x"]),
    ("deepseek-llm", "Ab 12  中文\n\ny ", ["Ab", " ", "12", "  ", "中文", "\n", "\n", "y", " "]),
    ("deepseek-v3", "x 1234 _ab中文", ["x", " ", "123", "4", " _", "ab", "中文"]),
    ("gpt-4o", "HTMLParser iPhone's a/b/\n", ["HTMLParser", " i", "Phone's", " a", "/b", "/\n"]),
    ("tekken", "DON'Ts 12", ["DON", "'Ts", " ", "1", "2"]),
    ("falcon", "a+b 12345", ["a", "+", "b", " ", "123", "45"]),
    ("bloom", "a, b. c", ["a", ",", " b", ".", " c"]),
    ("default", "ab $5 1234", ["ab", " ", "$", "5", " ", "123", "4"]),
    ("qwen35", "हिन्दी x", ["हिन्दी", " x"]),
    ("seed-coder", "a!\nb", ["a", "!", "\n", "b"]),
]


@pytest.mark.parametrize(("name", "text", "words"), CASES)
def test_words(name: str, text: str, words: list[str]) -> None:
    assert find_pretokenizer(name).splitter()(text) == words


@pytest.mark.parametrize("name", sorted(_RULES))
def test_nothing_is_lost(name: str) -> None:
    text = "Naïve 日本語 12345\r\n\t_x'S ~~ ٣ ²\u3000é\u0301 𓀀\U00013460 🙂  \n\n end "
    assert "".join(find_pretokenizer(name).splitter()(text)) == text


def test_characters_of_unicode_16_count_as_unassigned() -> None:
    """U+13C05 is a letter since Unicode 16; llama.cpp does not know it, so it joins the symbol."""
    assert find_pretokenizer("qwen2").splitter()("\U00013c05@a") == ["\U00013c05@", "a"]


def test_missing_name_is_llama_cpps_default_rule() -> None:
    assert find_pretokenizer("") == find_pretokenizer("default")


def test_unknown_name_is_named() -> None:
    with pytest.raises(ModelError, match="pre-tokenizer 'brand-new'"):
        find_pretokenizer("brand-new")
