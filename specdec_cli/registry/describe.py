"""What a model file says about itself, without loading it. All of it is untrusted and may be missing."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quant.errors import QuantError
from quant.gguf_file import GgufFile
from specdec_cli.errors import SpecdecError

_TOKENIZER = "tokenizer.ggml."


@dataclass(frozen=True, slots=True)
class TypeShare:
    """All tensors of one quant type together."""

    name: str
    num_tensors: int
    num_parameters: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """The vocabulary as the file describes it."""

    model: str | None
    pre: str | None
    num_tokens: int | None
    bos_id: int | None
    bos_text: str | None
    eos_id: int | None
    eos_text: str | None


@dataclass(frozen=True, slots=True)
class Description:
    """Facts about a model file; None where it says nothing."""

    path: Path
    alias: str | None
    file_size: int  # bytes, all shards
    num_files: int
    gguf_version: int
    name: str | None
    architecture: str | None
    unsupported: str | None  # why this program cannot run it, or None
    num_parameters: int
    types: tuple[TypeShare, ...]  # largest first
    shape: Mapping[str, Any]  # context_length, embedding_length, block_count, ... as in the file
    tokenizer: TokenizerFacts
    chat_template: str | None
    license: str | None

    @property
    def bits_per_weight(self) -> float | None:
        """Mean storage of a parameter over all tensors."""
        total = sum(share.num_bytes for share in self.types)
        return 8 * total / self.num_parameters if self.num_parameters else None

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON document."""
        tokenizer = self.tokenizer
        return {
            "path": str(self.path),
            "alias": self.alias,
            "file_size": self.file_size,
            "num_files": self.num_files,
            "gguf_version": self.gguf_version,
            "name": self.name,
            "architecture": self.architecture,
            "supported": self.unsupported is None,
            "unsupported_reason": self.unsupported,
            "num_parameters": self.num_parameters,
            "bits_per_weight": self.bits_per_weight,
            "tensor_types": [
                {
                    "type": share.name,
                    "num_tensors": share.num_tensors,
                    "num_parameters": share.num_parameters,
                    "num_bytes": share.num_bytes,
                }
                for share in self.types
            ],
            **self.shape,
            "tokenizer": {
                "model": tokenizer.model,
                "pre": tokenizer.pre,
                "num_tokens": tokenizer.num_tokens,
                "bos_id": tokenizer.bos_id,
                "bos": tokenizer.bos_text,
                "eos_id": tokenizer.eos_id,
                "eos": tokenizer.eos_text,
            },
            "chat_template": self.chat_template,
            "license": self.license,
        }


_SHAPE_KEYS = (
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "block_count",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.sliding_window",
)


def _text(metadata: Mapping[str, Any], key: str) -> str | None:
    value = metadata.get(key)
    return value if isinstance(value, str) else None


def _integer(metadata: Mapping[str, Any], key: str) -> int | None:
    value = metadata.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _shares(file: GgufFile) -> tuple[TypeShare, ...]:
    totals: dict[str, tuple[int, int, int]] = {}
    for tensor in file.tensors.values():
        count, parameters, size = totals.get(tensor.qtype.name, (0, 0, 0))
        totals[tensor.qtype.name] = (count + 1, parameters + tensor.num_elements, size + tensor.data.nbytes)
    shares = (TypeShare(name, *numbers) for name, numbers in totals.items())
    return tuple(sorted(shares, key=lambda share: (-share.num_bytes, share.name)))


def _tokenizer(metadata: Mapping[str, Any]) -> TokenizerFacts:
    tokens = metadata.get(f"{_TOKENIZER}tokens")
    texts = tokens if isinstance(tokens, list) else []

    def special(name: str) -> tuple[int | None, str | None]:
        token_id = _integer(metadata, f"{_TOKENIZER}{name}_token_id")
        if token_id is None or not 0 <= token_id < len(texts):
            return token_id, None
        return token_id, str(texts[token_id])

    bos_id, bos_text = special("bos")
    eos_id, eos_text = special("eos")
    model, pre = _text(metadata, f"{_TOKENIZER}model"), _text(metadata, f"{_TOKENIZER}pre")
    return TokenizerFacts(model, pre, len(texts) or None, bos_id, bos_text, eos_id, eos_text)


def _unsupported(file: GgufFile) -> str | None:
    """Ask the readers of configuration and tokenizer whether they know what the file needs."""
    from specdec_cli.models.config import ModelConfig
    from specdec_cli.text.metadata import get_str
    from specdec_cli.text.pretokenizers import find_pretokenizer

    try:
        ModelConfig.from_metadata(file.metadata, file.tensors)
        model = get_str(file.metadata, f"{_TOKENIZER}model")
        if model == "gpt2":
            find_pretokenizer(get_str(file.metadata, f"{_TOKENIZER}pre", ""))
        elif model != "llama":
            return f"tokenizer.ggml.model {model!r} is not supported"
    except (SpecdecError, QuantError) as error:
        return str(error)
    return None


def describe(path: Path, alias: str | None = None) -> Description:
    """Read the facts of a GGUF file (the first shard of a split one). Raises QuantError when it is broken."""
    with GgufFile.open(path) as file:
        metadata = file.metadata
        architecture = _text(metadata, "general.architecture")
        shape = {
            key.replace(".", "_").removeprefix("attention_"): metadata.get(f"{architecture}.{key}")
            for key in _SHAPE_KEYS
        }
        return Description(
            path=path,
            alias=alias,
            file_size=file.file_size,
            num_files=len(file.paths),
            gguf_version=file.version,
            name=_text(metadata, "general.name"),
            architecture=architecture,
            unsupported=_unsupported(file),
            num_parameters=sum(tensor.num_elements for tensor in file.tensors.values()),
            types=_shares(file),
            shape=shape,
            tokenizer=_tokenizer(metadata),
            chat_template=_text(metadata, "tokenizer.chat_template"),
            license=_text(metadata, "general.license"),
        )
