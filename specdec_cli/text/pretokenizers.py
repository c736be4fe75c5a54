"""How byte-level BPE cuts a text into words before merging, by the name in `tokenizer.ggml.pre`.

Each rule is a list of patterns: the first one cuts the text into its matches and what lies between them, the
next one cuts each of the pieces further. The patterns are those that the models' authors publish in their
tokenizer.json, as llama.cpp applies them (src/llama-vocab.cpp, whose ids are the reference), in Oniguruma
syntax: the regular expressions of the tokenizers library.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from specdec_cli.errors import ModelError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SYMBOLS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_CJK = r"[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+"

_LLAMA3 = rf"(?:{_CONTRACTIONS})|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"(?:{_CONTRACTIONS})|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_QWEN35 = (
    rf"(?:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)

# Words that change from upper to lower case. llama.cpp knows only the case of ASCII letters here; every other
# letter counts as both.
_UPPER, _LOWER = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"
_CASED_1 = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_CASED_2 = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_TEKKEN = rf"{_CASED_1}|{_CASED_2}|\p{{N}}|{_SYMBOLS_SLASH}|{_SPACES}"
_GPT4O = (
    rf"{_CASED_1}(?:{_CONTRACTIONS})?|{_CASED_2}(?:{_CONTRACTIONS})?"
    rf"|\p{{N}}{{1,3}}|{_SYMBOLS_SLASH}|{_SPACES}"
)

# Cased letters as DeepSeek LLM's tokenizer.json lists them (hexadecimal code points; not all of today's
# Unicode).
_DEEPSEEK_LETTERS = """
41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376-377 37B-37D 37F 386 388-38A 38C
38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B
1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4
1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113
2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183-2184 2C00-2C7B
2C7E-2CE4 2CEB-2CEE 2CF2-2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06
FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF
1E900-1E943
"""
_JAIS2 = (
    rf"(?:{_CONTRACTIONS})|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|\s*[\r\n]+"
    + "".join(rf"|\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4))
    + r"|\s{1,2}(?!\S)|\s"
)
_EXAONE_MOE = (
    rf"(?:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_MARKED = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_YOUTU = rf"{_MARKED}(?:{_CONTRACTIONS})?|\p{{N}}|{_SYMBOLS_SLASH}|{_SPACES}"
_YOUTU_SCRIPTS = (
    r"[\uAC00-\uD7A3\u3131-\u318E]+|[\uFF01\u2026\u201C\u201D\u2018\u2019\u2014\uFF1A\uFF1B\uFF0C"
    r"\u3001-\u303F\uFE30-\uFE4F]+|[\u3105-\u312F]+|[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+"
)
_DEEPSEEK_CJK = r"[\u0800-\u9FA5\uAC00-\uD7FF]+"


def _character_class(ranges: str) -> str:
    """Inside of a bracket expression, from hexadecimal code points and ranges."""
    return "".join("-".join(chr(int(point, 16)) for point in span.split("-")) for span in ranges.split())


_PUNCTUATION_FIRST = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_DEEPSEEK3 = (
    rf"{_PUNCTUATION_FIRST}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)

_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_character_class(_DEEPSEEK_LETTERS)}]+",
    r"\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3001\u3002]+",
    r"\s+\z",
    _DEEPSEEK_CJK,
    r"\p{N}+",
)
_BLOOM = r" ?[^(\s|.,!?\u2026\u3002\uFF0C\u3001\u0964\u06D4\u060C)]+"
_BAILING = rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}|{_SYMBOLS}|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED_CODER = rf"(?:{_CONTRACTIONS})|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"

# What Unicode 16 added. The regular expressions of the tokenizers library know these characters; llama.cpp's
# tables (15.1) do not, so they must count as unassigned.
_UNICODE_16 = """
897 1B4E-1B4F 1B7F 1C89-1C8A 2427-2429 31E4-31E5 A7CB-A7CD A7DA-A7DC 105C0-105FF 10D40-10D8F 10EC2-10EC4
10EFC 11380-113FF 116D0-116FF 11BC0-11BFF 13460-143FF 16100-1613F 16D40-16D7F 18CFF 1CC00-1CEBF 1E5D0-1E5FF
1F8B2-1F8BB 1F8C0-1F8C1 1FA89 1FA8F 1FABE 1FAC6 1FADC 1FADF 1FAE9 1FBCB-1FBEF
"""
_UNASSIGNED = "\u0378"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """The rule of one `tokenizer.ggml.pre`."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token needs no merging
    add_bos: bool = False  # default where the file has no add_bos_token

    def splitter(self) -> Callable[[str], list[str]]:
        """Compile to a function that cuts a text into words; the words joined are the text."""
        from tokenizers import Regex
        from tokenizers.pre_tokenizers import Sequence, Split

        steps = Sequence([Split(Regex(pattern), "isolated") for pattern in self.patterns])
        newer = re.compile(f"[{_character_class(_UNICODE_16)}]")

        def split(text: str) -> list[str]:
            if newer.search(text) is None:
                return [word for word, _ in steps.pre_tokenize_str(text)]
            masked = newer.sub(_UNASSIGNED, text)
            return [text[start:end] for _, (start, end) in steps.pre_tokenize_str(masked)]

        return split


# Values of tokenizer.ggml.pre, by rule.
_RULES: dict[str, PreTokenizer] = {
    name: rule
    for names, rule in (
        (
            "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum modern-bert "
            "jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe",
            PreTokenizer((_GPT2,)),
        ),
        (
            "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
            PreTokenizer((r"\p{N}", _GPT2)),
        ),
        (
            "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
            PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
        ),
        ("dbrx smaug-bpe chatglm-bpe", PreTokenizer((_LLAMA3,))),
        ("glm4 glm5", PreTokenizer((_LLAMA3,), ignore_merges=True)),
        (
            "qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan grok-2 solar-open kormo f2llmv2",
            PreTokenizer((_QWEN2,)),
        ),
        ("qwen35", PreTokenizer((_QWEN35,))),
        (
            "minicpm5",
            PreTokenizer((r"\p{N}{1,3}", _QWEN2.replace(r"|\p{N}|", r"|\p{N}+|")), ignore_merges=True),
        ),
        ("laguna", PreTokenizer((r"[^\n]+|\n+", _QWEN2))),
        ("ufakzeka", PreTokenizer((rf"{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}",))),
        ("jais-2", PreTokenizer((_JAIS2,))),
        ("exaone-moe", PreTokenizer((_EXAONE_MOE,))),
        ("youtu", PreTokenizer((_YOUTU_SCRIPTS, _YOUTU), ignore_merges=True)),
        ("superbpe", PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))"))),
        ("gpt-4o llama4 kanana2 minimax-m2 talkie", PreTokenizer((_GPT4O,))),
        ("tekken", PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True)),
        ("deepseek-llm", PreTokenizer(_DEEPSEEK_LLM)),
        (
            "deepseek-coder",
            PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")),
        ),
        (
            "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
            PreTokenizer((r"\p{N}{1,3}", _CJK, _DEEPSEEK3)),
        ),
        ("falcon", PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, r"[0-9][0-9][0-9]"))),
        ("poro-chat bloom gpt3-finnish", PreTokenizer((_BLOOM,))),
        ("viking", PreTokenizer((_BLOOM, r"\p{N}"))),
        ("bailingmoe bailingmoe2 llada-moe", PreTokenizer((_BAILING,))),
        ("seed-coder", PreTokenizer((_SEED_CODER,))),
        ("default", PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))),
    )
    for name in names.split()
}


def find_pretokenizer(name: str) -> PreTokenizer:
    """The rule for a value of `tokenizer.ggml.pre`; an empty name is llama.cpp's default rule.

    Raises ModelError for a name whose rule is not known: another rule would give fluent nonsense.
    """
    try:
        return _RULES[name or "default"]
    except KeyError:
        raise ModelError(f"pre-tokenizer {name!r} (tokenizer.ggml.pre) is not supported") from None
