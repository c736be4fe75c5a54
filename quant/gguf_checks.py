"""Check the tokenizer metadata of a GGUF file: types, lengths and ranges, before anybody builds on it."""

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from .errors import QuantError
from .gguf_metadata import Metadata, MetadataValue, quoted

_PREFIX = "tokenizer.ggml."
TOKENS = _PREFIX + "tokens"

# Ids that end or begin texts or stand for unknown text; each must name an entry of the vocabulary.
_ID_KEYS = tuple(
    f"{_PREFIX}{name}_token_id"
    for name in ("bos", "eos", "unknown", "eot", "eom", "prefix", "suffix", "middle",
                 "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep")
)  # fmt: skip
# The converters of old wrote ids beyond the vocabulary for these, and nothing here uses them:
# padding, seperator (as the key is spelled), cls and mask.

_TEXT_KEYS = (_PREFIX + "model", _PREFIX + "pre", "tokenizer.chat_template")
_BOOL_KEYS = tuple(f"{_PREFIX}{name}" for name in ("add_bos_token", "add_eos_token", "add_space_prefix"))

# Arrays with one entry per token: key, Python type, names of the types in the file.
_PER_TOKEN = (
    (_PREFIX + "scores", float, ("FLOAT32", "FLOAT64")),
    (_PREFIX + "token_type", int, ("INT32", "UINT32")),
)


def validate_tokenizer_metadata(metadata: Mapping[str, MetadataValue]) -> None:
    """Check the types of the tokenizer's arrays, their lengths and the range of the special ids.

    A file's own element types are checked when `metadata` is a `Metadata` object; of any other mapping, the
    types of the Python values. Whether the tokenizer's kind is supported is not asked here.

    Raises QuantError that names the key.
    """
    _check_array(metadata, TOKENS, str, ("STRING",))
    num_tokens = len(_array(metadata, TOKENS))
    if not num_tokens:
        raise QuantError(f"{TOKENS} is empty")
    for key, item_type, names in _PER_TOKEN:
        if key in metadata:
            _check_array(metadata, key, item_type, names)
            if (length := len(_array(metadata, key))) != num_tokens:
                raise QuantError(f"{key} has {length} entries, {TOKENS} has {num_tokens}")
    _check_merges(metadata)
    for key in _ID_KEYS:
        if key in metadata:
            _check_id(key, metadata[key], num_tokens)
    for keys, kind in ((_TEXT_KEYS, str), (_BOOL_KEYS, bool)):
        for key in keys:
            if key in metadata and not isinstance(metadata[key], kind):
                raise QuantError(
                    f"{key} is {_type_name(metadata, key)}, not {'text' if kind is str else 'bool'}"
                )


def _array(metadata: Mapping[str, MetadataValue], key: str) -> list[Any]:
    value = metadata[key]
    return value if isinstance(value, list) else []


def _type_name(metadata: Mapping[str, MetadataValue], key: str) -> str:
    """Type of a value for a message: that of the file where known."""
    return metadata.type_name(key) if isinstance(metadata, Metadata) else type(metadata[key]).__name__


def _check_array(
    metadata: Mapping[str, MetadataValue], key: str, item_type: type, names: tuple[str, ...]
) -> None:
    """Check that a key is present and an array whose elements have one of the types `names`."""
    if key not in metadata:
        raise QuantError(f"{key} is missing")
    wanted = f"ARRAY[{names[0]}]"
    if isinstance(metadata, Metadata):
        if metadata.type_name(key) not in {f"ARRAY[{name}]" for name in names}:
            raise QuantError(f"{key} is {metadata.type_name(key)}, not {wanted}")
        return
    value = metadata[key]
    if not isinstance(value, list):
        raise QuantError(f"{key} is {type(value).__name__}, not {wanted}")
    wrong = next((item for item in value if type(item) is not item_type), None)
    if wrong is not None:
        raise QuantError(f"{key} holds {type(wrong).__name__}, not {wanted}")


def _check_merges(metadata: Mapping[str, MetadataValue]) -> None:
    """Check that each merge is two texts separated by a space (which may not be its first character)."""
    key = _PREFIX + "merges"
    if key not in metadata:
        return
    _check_array(metadata, key, str, ("STRING",))
    merges = _array(metadata, key)
    index = bad_merge(merges)
    if index is not None:
        raise QuantError(
            f"{key}: entry {index}, {quoted(merges[index])}, is not two texts with a space between"
        )


def bad_merge(merges: Sequence[str]) -> int | None:
    """Index of the first merge that is not two texts with a space between them; None when all are."""
    count = len(merges)
    spaces = np.fromiter(map(str.find, merges, repeat(" "), repeat(1)), np.int64, count)
    lengths = np.fromiter(map(len, merges), np.int64, count)
    bad = np.flatnonzero((spaces < 0) | (spaces >= lengths - 1))
    return int(bad[0]) if len(bad) else None


def _check_id(key: str, value: MetadataValue, num_tokens: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise QuantError(f"{key} is {type(value).__name__}, not an integer")
    if not 0 <= value < num_tokens:
        raise QuantError(f"{key} is {value}, outside of the {num_tokens} tokens")
