"""The tokens of a model: texts, kinds, scores, and the special ones. Read from GGUF metadata.

Key names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Which tokens count as special where the
file does not say so follows llama.cpp, because its ids are the reference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdec_cli.errors import ModelError
from specdec_cli.text.metadata import get_bool, get_integers, get_numbers, get_str, get_strings, get_token_id
from specdec_cli.text.special_tokens import end_of_generation, forced_kinds

# Values of tokenizer.ggml.token_type.
_KIND_OF_TYPE = {
    0: "undefined",
    1: "normal",
    2: "unknown",
    3: "control",
    4: "user_defined",
    5: "unused",
    6: "byte",
}
_SPECIAL_KINDS = ("control", "unknown", "user_defined")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Everything about tokens that does not depend on the algorithm that produces them."""

    model: str  # tokenizer.ggml.model: "gpt2" or "llama"
    texts: list[str]  # [n_vocab] entries as they are in the file
    kinds: list[str]  # [n_vocab] normal, control, user_defined, byte, unused, unknown, undefined
    scores: list[float]  # [n_vocab], or empty when the file has none
    ids: dict[str, int]  # text -> id of the tokens that ordinary text may become (no control, no unknown)
    special_ids: tuple[int, ...]  # control, unknown and user-defined tokens
    strip_after: frozenset[int]  # special tokens that swallow the white space behind them
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    add_bos: bool  # effective: a prompt begins with bos_id
    add_space_prefix: bool
    eog_ids: frozenset[int]

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""
        return len(self.texts)


def read_vocabulary(metadata: Mapping[str, Any], *, add_bos_default: bool, spm: bool) -> Vocabulary:
    """Read and check the vocabulary of a model file.

    `add_bos_default` and `spm` (SentencePiece type) come from the tokenizer's kind. Raises ModelError naming
    the key that is missing, has another type or length, or is out of range.
    """
    texts = get_strings(metadata, "tokens")
    if not texts:
        raise ModelError("the model file has no tokenizer.ggml.tokens: it holds no tokenizer")
    if "" in texts:
        # llama.cpp gives nameless tokens this name; they must not match the empty string anywhere.
        texts = [text or f"[EMPTY_{i}]" for i, text in enumerate(texts)]
    n_vocab = len(texts)
    all_ids = dict(zip(texts, range(n_vocab), strict=True))  # of equal texts the last one counts
    kinds = _read_kinds(metadata, n_vocab)
    for token_id, kind in forced_kinds(all_ids).items():
        kinds[token_id] = kind
    bos_id = get_token_id(metadata, "bos", n_vocab, default=1 if spm else None)
    eos_id = get_token_id(metadata, "eos", n_vocab, default=2 if spm else None)
    unk_id = get_token_id(metadata, "unknown", n_vocab)
    if unk_id is None and "unknown" in kinds:
        unk_id = kinds.index("unknown")
    wants_bos = get_bool(metadata, "tokenizer.ggml.add_bos_token", default=add_bos_default)
    special_ids = tuple(i for i, kind in enumerate(kinds) if kind in _SPECIAL_KINDS)
    ids = all_ids
    for token_id in special_ids:
        if kinds[token_id] != "user_defined" and ids.get(texts[token_id]) == token_id:
            del ids[texts[token_id]]
    return Vocabulary(
        model=get_str(metadata, "tokenizer.ggml.model"),
        texts=texts,
        kinds=kinds,
        scores=get_numbers(metadata, "scores", n_vocab) or [],
        ids=ids,
        special_ids=special_ids,
        strip_after=_strip_after(metadata, texts, special_ids),
        bos_id=bos_id,
        eos_id=eos_id,
        unk_id=unk_id,
        add_bos=wants_bos and bos_id is not None,
        add_space_prefix=get_bool(metadata, "tokenizer.ggml.add_space_prefix", default=spm),
        eog_ids=end_of_generation(metadata, texts, special_ids, eos_id=eos_id),
    )


def _read_kinds(metadata: Mapping[str, Any], n_vocab: int) -> list[str]:
    types = get_integers(metadata, "token_type", n_vocab)
    if types is None:
        return ["normal"] * n_vocab
    return [_KIND_OF_TYPE.get(value, "undefined") for value in types]


def _strip_after(
    metadata: Mapping[str, Any], texts: Sequence[str], special_ids: Sequence[int]
) -> frozenset[int]:
    """Phi-3 models have tokens that swallow white space; no metadata says so, so the name must."""
    name = get_str(metadata, "general.name", "").lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    return frozenset(i for i in special_ids if texts[i] not in ("<unk>", "<s>", "<|endoftext|>"))
