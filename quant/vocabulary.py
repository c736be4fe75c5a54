"""Cut a model's vocabulary: which tokens stay, and tokenizer metadata that is consistent without the others.

Ids are given out by frequency of use (the order of BPE merges), so the lowest ones are kept. Special tokens
often have the highest ids and are needed by every chat template, so they stay and move down: ids of a cut
model are not those of the full one beyond the first special token that moved.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import QuantError
from .gguf_writer import TypedValue

SOURCE_IDS = "specdec.vocabulary.source_ids"  # written by us: id in the full vocabulary of each kept token

_PREFIX = "tokenizer.ggml."
_TOKENS, _MERGES, _MODEL, _TYPES = (_PREFIX + name for name in ("tokens", "merges", "model", "token_type"))
_PER_TOKEN = (_TOKENS, _TYPES, _PREFIX + "scores")
_NORMAL, _UNUSED = 1, 5
_LATIN_END = 0x250  # first code point after the Latin blocks
_SPACE = "▁"  # SentencePiece's


@dataclass(frozen=True, slots=True)
class CutVocabulary:
    """`ids` [n], ascending, are the kept ids of the full vocabulary; `metadata` the whole file's, adapted."""

    ids: npt.NDArray[np.int64]
    metadata: dict[str, TypedValue]


def cut_vocabulary(metadata: Mapping[str, TypedValue], size: int) -> CutVocabulary:
    """Keep `size` tokens: those that cannot be missed, and of the others the ones with the lowest ids.

    Cannot be missed: control, user-defined, byte and unknown tokens, ids that the metadata name, and single
    characters from which everything else is put together (SentencePiece type: the Latin ones). Merges stay
    where all three tokens do. Token texts are those of the file; metadata must have been checked
    (`gguf_checks.validate_tokenizer_metadata`).

    Raises QuantError for a kind of tokenizer that is not known, or a size out of range.
    """
    model = metadata[_MODEL].value if _MODEL in metadata else None
    if model not in ("gpt2", "llama"):
        raise QuantError(
            f"the vocabulary of a tokenizer of type {model!r} cannot be cut; only gpt2 and llama can"
        )
    tokens: list[str] = metadata[_TOKENS].value
    required = _required(metadata, tokens, sentencepiece=model == "llama")
    if not len(required) <= size <= len(tokens):
        message = f"a vocabulary of {size} tokens: it has {len(tokens)}, of which {len(required)} are needed"
        raise QuantError(message)
    rest = np.setdiff1d(np.arange(len(tokens)), required)
    ids = np.sort(np.concatenate([required, rest[: size - len(required)]]))
    return CutVocabulary(ids, _adapted(metadata, tokens, ids))


def _required(
    metadata: Mapping[str, TypedValue], tokens: list[str], *, sentencepiece: bool
) -> npt.NDArray[np.int64]:
    needed = {value for _, value in _named_ids(metadata) if value < len(tokens)}
    if _TYPES in metadata:
        kinds = np.asarray(metadata[_TYPES].value)
        needed.update(np.flatnonzero((kinds != _NORMAL) & (kinds != _UNUSED)).tolist())
    for token_id, text in enumerate(tokens):
        if len(text) == 1 and (not sentencepiece or ord(text) < _LATIN_END or text == _SPACE):
            needed.add(token_id)
    return np.array(sorted(needed), np.int64)


def _named_ids(metadata: Mapping[str, TypedValue]) -> list[tuple[str, int]]:
    """Keys that hold a token id, and the id."""
    keys = [key for key in metadata if key.startswith(_PREFIX) and key.endswith("_token_id")]
    return [(key, metadata[key].value) for key in keys if isinstance(metadata[key].value, int)]


def _adapted(
    metadata: Mapping[str, TypedValue], tokens: list[str], ids: npt.NDArray[np.int64]
) -> dict[str, TypedValue]:
    out = dict(metadata)
    kept = ids.tolist()
    for key in _PER_TOKEN:
        if key in out:
            values: list[Any] = out[key].value
            out[key] = TypedValue(out[key].type, [values[i] for i in kept])
    new_id = {old: new for new, old in enumerate(kept)}
    for key, old in _named_ids(metadata):
        if old in new_id:
            out[key] = TypedValue(out[key].type, new_id[old])
        else:  # beyond the vocabulary: converters of old wrote that for tokens that do not exist
            del out[key]
    if _MERGES in out:
        out[_MERGES] = TypedValue(
            out[_MERGES].type, _kept_merges(out[_MERGES].value, {tokens[i] for i in kept})
        )
    for key in [key for key in out if key.endswith(".vocab_size")]:
        out[key] = TypedValue(out[key].type, len(kept))
    out[SOURCE_IDS] = TypedValue("ARRAY[INT32]", kept)
    return out


def _kept_merges(merges: list[str], texts: set[str]) -> list[str]:
    """Merges whose parts and result are kept; the separator is the first space after the first character."""
    kept = []
    for merge in merges:
        at = merge.index(" ", 1)
        left, right = merge[:at], merge[at + 1 :]
        if left in texts and right in texts and left + right in texts:
            kept.append(merge)
    return kept
