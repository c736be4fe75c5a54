"""Models by name for commands: fetched when they are not on this machine, or only their tokenizers read."""

import sys
from typing import TYPE_CHECKING

from specdec_cli.errors import ModelError
from specdec_cli.registry import ResolvedModel, load_catalog, progress_for, resolve_model

if TYPE_CHECKING:
    from specdec_cli.text.tokenizer import Tokenizer


def fetch_model(name: str | None) -> ResolvedModel:
    """Find a model, by default the catalogue's default, and download it with a progress report if need be."""
    wanted = load_catalog().default if name is None else name
    return resolve_model(wanted, pull=True, progress=progress_for(sys.stderr))


def read_tokenizer(model: ResolvedModel) -> "Tokenizer":
    """Build the tokenizer of a model file without loading its weights. Raises ModelError or QuantError."""
    from quant.gguf_file import GgufFile
    from specdec_cli.text.tokenizer import Tokenizer

    with GgufFile.open(model.path) as file:
        try:
            return Tokenizer.from_gguf(file.metadata)
        except ModelError as error:
            raise ModelError(f"{model.path}: {error}") from error


def load_tokenizer(name: str) -> "Tokenizer":
    """Build the tokenizer of a model that is on this machine."""
    return read_tokenizer(resolve_model(name, pull=False))
