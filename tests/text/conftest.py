"""Tiny vocabularies as metadata dictionaries, and tokenizers of the real model files."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specdec_cli.text.bpe import BYTE_TO_CHAR
from specdec_cli.text.template_process import RENDERER
from specdec_cli.text.tokenizer import Tokenizer

CHATML_MARKS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def byte_level_metadata(
    *,
    merges: Iterable[str] = (),
    control: Iterable[str] = CHATML_MARKS,
    user_defined: Iterable[str] = (),
    pre: str | None = "gpt-2",
    **more: Any,
) -> dict[str, Any]:
    """Byte-level vocabulary: ids 0..255 are the bytes, then the merged tokens, then the special ones.

    `more` are further keys below tokenizer.ggml, for example eos_token_id=3.
    """
    merges = list(merges)
    normal = [*BYTE_TO_CHAR, *dict.fromkeys(merge.replace(" ", "", 1) for merge in merges)]
    tokens = [*normal, *control, *user_defined]
    types = [NORMAL] * len(normal) + [CONTROL] * len([*control]) + [USER_DEFINED] * len([*user_defined])
    values = {"model": "gpt2", "tokens": tokens, "token_type": types, "merges": merges, **more}
    if pre is not None:
        values["pre"] = pre
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def spm_metadata(
    pieces: Iterable[str | tuple[str, float]] = (),
    *,
    control: Iterable[str] = (),
    user_defined: Iterable[str] = (),
    with_bytes: bool = True,
    **more: Any,
) -> dict[str, Any]:
    """SentencePiece vocabulary: <unk> <s> </s>, the byte tokens, the pieces, then the special ones.

    A piece without score gets a lower one than the piece before it.
    """
    entries: list[tuple[str, float, int]] = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL)]
    entries.append(("</s>", 0.0, CONTROL))
    entries += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)] if with_bytes else []
    for rank, piece in enumerate(pieces):
        text, score = piece if isinstance(piece, tuple) else (piece, -float(rank))
        entries.append((text, score, NORMAL))
    entries += [(text, 0.0, CONTROL) for text in control]
    entries += [(text, 0.0, USER_DEFINED) for text in user_defined]
    texts, scores, types = map(list, zip(*entries, strict=True))
    values = {"model": "llama", "tokens": texts, "scores": scores, "token_type": types, **more}
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


@pytest.fixture
def byte_level() -> Callable[..., dict[str, Any]]:
    """Factory: see byte_level_metadata."""
    return byte_level_metadata


@pytest.fixture
def spm() -> Callable[..., dict[str, Any]]:
    """Factory: see spm_metadata."""
    return spm_metadata


@pytest.fixture
def texts_of() -> Callable[..., list[str]]:
    """The vocabulary entries that a text becomes."""

    def convert(tokenizer: Tokenizer, text: str, **options: bool) -> list[str]:
        return [tokenizer.token_text(i) for i in tokenizer.encode(text, **options)]

    return convert


_REAL: dict[str, tuple[Tokenizer, str | None]] = {}


@pytest.fixture
def real_tokenizer(model_path: Callable[[str], Path]) -> Callable[[str], tuple[Tokenizer, str | None]]:
    """Tokenizer and chat template of a real model file, by alias; each is read once."""

    def load(alias: str) -> tuple[Tokenizer, str | None]:
        from quant.gguf_file import GgufFile

        if alias not in _REAL:
            with GgufFile.open(model_path(alias)) as file:
                template = file.metadata.get("tokenizer.chat_template")
                assert template is None or isinstance(template, str)
                _REAL[alias] = (Tokenizer.from_gguf(file.metadata), template)
        return _REAL[alias]

    return load


@pytest.fixture(scope="session", autouse=True)
def _stop_renderer() -> Iterator[None]:
    yield
    RENDERER.stop()
