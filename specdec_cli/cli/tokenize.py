"""`specdec tokenize`: the token ids of texts."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from specdec_cli.cli.fetching import fetch_model, read_tokenizer
from specdec_cli.cli.options import DebugOption, ModelOption, option
from specdec_cli.cli.plain import print_json
from specdec_cli.cli.prompt_input import check_text, read_stdin
from specdec_cli.errors import SpecdecError, UsageError


def tokenize(
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", show_default=False, help="The text; - reads stdin.")
    ] = None,
    jsonl: Annotated[
        Path | None,
        option(
            "--jsonl",
            metavar="FILE",
            help='Tokenize the "text" of each line of a JSON Lines file; - is stdin.',
        ),
    ] = None,
    special: Annotated[
        bool, option("--special", help="Let the texts of control tokens in TEXT become these tokens.")
    ] = False,
    bos: Annotated[bool, option("--bos", help="Begin with the BOS token, if the model wants one.")] = False,
    model: ModelOption = None,
    debug: DebugOption = False,  # noqa: ARG001
) -> None:
    """Print the token ids of a text as {"ids": [...]}, one line per text."""
    if (text is None) == (jsonl is None):
        raise UsageError(
            "give a text, or texts with --jsonl FILE" if text is None else "give a text or --jsonl, not both"
        )
    with ExitStack() as stack:
        # Opened before the model is looked for: a mistyped name must not cost a download.
        lines = stack.enter_context(_open(jsonl)) if jsonl is not None else None
        tokenizer = read_tokenizer(fetch_model(model))
        texts = _texts(lines, str(jsonl)) if lines is not None else iter([_text(text or "")])
        for item in texts:
            print_json({"ids": tokenizer.encode(item, parse_special=special, add_bos=bos)})


def _text(argument: str) -> str:
    return read_stdin() if argument == "-" else check_text(argument, "the text")


def _open(path: Path) -> BinaryIO:
    if str(path) == "-":
        return sys.stdin.buffer
    try:
        return path.open("rb")
    except OSError as error:
        raise SpecdecError(f"{path}: {error.strerror or error}") from error


def _texts(lines: BinaryIO, name: str) -> Iterator[str]:
    """The `text` of each line that is not blank. Raises SpecdecError naming file and line."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SpecdecError(f"{name}:{number}: not valid JSON: {error}") from error
        text = value.get("text") if isinstance(value, dict) else None
        if not isinstance(text, str):
            raise SpecdecError(f'{name}:{number}: no "text" that is a string')
        yield text
