"""Which tokens end a generation and which are control tokens, where the file's own types do not tell.

Conversions disagree about both, so well-known texts count beside the ids of the metadata. The lists are those
of llama.cpp (src/llama-vocab.cpp), whose ids and stops people compare with.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from specdec_cli.text.metadata import get_token_id

_END_TEXTS = frozenset(
    {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
        "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
        "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
        "<｜end▁of▁sentence｜>", "[e~[", "<|eot|>", "<|ifm|im_end|>",
    }
)  # fmt: skip

# Fill-in-the-middle: padding, repository name and file separator also end a generation.
_FIM_TEXTS = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>", "<|plamo:file_separator|>"),
}

# Only control tokens: they mark the holes but do not end anything.
_FIM_MARKS = frozenset(
    {
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
        "<|code_prefix|>", "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>",
        "▁<SUF>", "<|code_suffix|>", "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>",
        "<MID>", "▁<MID>", "<|code_middle|>",
    }
)  # fmt: skip

# Channel markers of gpt-oss belong to the text that is shown.
_SHOWN_TEXTS = frozenset({"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"})


def forced_kinds(ids: Mapping[str, int]) -> dict[int, str]:
    """Kinds of well-known tokens by id; they override the file's types.

    A token whose text ends turns or marks a hole is a control token, whatever the file says.
    """
    fim_texts = {text for group in _FIM_TEXTS.values() for text in group}
    forced = {ids[text]: "control" for text in _END_TEXTS | _FIM_MARKS | fim_texts if text in ids}
    forced |= {ids[text]: "user_defined" for text in _SHOWN_TEXTS if text in ids}
    if _end_is_inside(ids):
        forced[ids["<|end|>"]] = "user_defined"
    if _s_is_ordinary(ids):
        forced[ids["</s>"]] = "normal"
    return forced


def end_of_generation(
    metadata: Mapping[str, Any], texts: Sequence[str], special_ids: Sequence[int], *, eos_id: int | None
) -> frozenset[int]:
    """All ids that end a generation: eos, eot and eom of the metadata, and tokens of well-known texts."""
    n_vocab = len(texts)
    special = {texts[i]: i for i in special_ids}
    found = {special[text] for text in _END_TEXTS if text in special}
    if _end_is_inside(special):
        found.discard(special["<|end|>"])
    for name, candidates in _FIM_TEXTS.items():
        token_id = get_token_id(metadata, name, n_vocab)
        by_text = [special[text] for text in candidates if text in special]
        found.update(by_text if token_id is None else [token_id])
    named = [eos_id, *(get_token_id(metadata, name, n_vocab) for name in ("eot", "eom"))]
    return frozenset(found.union(i for i in named if i is not None))


def _end_is_inside(ids: Mapping[str, int]) -> bool:
    """With these companions `<|end|>` closes a channel, not the answer (gpt-oss, Solar)."""
    harmony = "<|return|>" in ids and "<|call|>" in ids
    solar = "<|flush|>" in ids and ("<|calls|>" in ids or "<|call|>" in ids)
    return "<|end|>" in ids and (harmony or solar)


def _s_is_ordinary(ids: Mapping[str, int]) -> bool:
    """Beside this token `</s>` is only the HTML tag (Gemma 4)."""
    return "</s>" in ids and "<|tool_response>" in ids
