"""Typed reading of tokenizer metadata: each value of the untrusted file with its type and its complaint."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_cli.errors import ModelError

_PREFIX = "tokenizer.ggml."


def get_str(metadata: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """A string. Raises ModelError when it has another type, or is missing and has no default."""
    value = metadata.get(key, default)
    if value is None:
        raise ModelError(f"the model file has no {key}: it holds no tokenizer")
    if not isinstance(value, str):
        raise ModelError(f"{key} must be a string, not {type(value).__name__}")
    return value


def get_bool(metadata: Mapping[str, Any], key: str, *, default: bool) -> bool:
    """A truth value. Raises ModelError when it has another type."""
    value = metadata.get(key, default)
    if not isinstance(value, bool):
        raise ModelError(f"{key} must be true or false, not {_show(value)}")
    return value


def get_token_id(
    metadata: Mapping[str, Any], name: str, n_vocab: int, *, default: int | None = None
) -> int | None:
    """The id under `tokenizer.ggml.NAME_token_id`, or `default` if that exists in the vocabulary.

    Raises ModelError when the id is no integer of 0..n_vocab-1.
    """
    key = f"{_PREFIX}{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return default if default is not None and default < n_vocab else None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelError(f"{key} must be an integer, not {_show(value)}")
    if not 0 <= value < n_vocab:
        raise ModelError(f"{key} is {value}, but the vocabulary has the ids 0 to {n_vocab - 1}")
    return value


def get_strings(metadata: Mapping[str, Any], name: str) -> list[str] | None:
    """The strings under `tokenizer.ggml.NAME`, None when missing. Raises ModelError on other types."""
    key = f"{_PREFIX}{name}"
    values = _get_array(metadata, key)
    if values is None:
        return None
    if set(map(type, values)) - {str}:
        raise ModelError(f"{key} must be an array of strings")
    return values


def get_integers(metadata: Mapping[str, Any], name: str, length: int) -> list[int] | None:
    """The integers under `tokenizer.ggml.NAME`, None when missing.

    Raises ModelError on another element type or another length than `length`.
    """
    key = f"{_PREFIX}{name}"
    values = _get_array(metadata, key)
    if values is None:
        return None
    _check_length(key, len(values), length)
    if set(map(type, values)) - {int}:
        raise ModelError(f"{key} must be an array of integers")
    return values


def get_numbers(metadata: Mapping[str, Any], name: str, length: int) -> list[float] | None:
    """The finite numbers under `tokenizer.ggml.NAME`, None when missing.

    Raises ModelError on another element type, another length than `length`, or NaN.
    """
    key = f"{_PREFIX}{name}"
    values = _get_array(metadata, key)
    if values is None:
        return None
    _check_length(key, len(values), length)
    if set(map(type, values)) - {float, int}:
        raise ModelError(f"{key} must be an array of numbers")
    if any(map(math.isnan, values)):
        raise ModelError(f"{key} holds a value that is not a number (NaN)")
    return values


def _get_array(metadata: Mapping[str, Any], key: str) -> list[Any] | None:
    """A list, from a list or a numpy array."""
    value = metadata.get(key)
    if value is None:
        return None
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ModelError(f"{key} must be an array, not {_show(value)}")
    return value if isinstance(value, list) else list(value)


def _check_length(key: str, actual: int, expected: int) -> None:
    if actual != expected:
        raise ModelError(f"{key} has {actual} entries for {expected} tokens")


def _show(value: object) -> str:
    """A value of any type, short enough for an error line."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
