"""The prompt of `run` and other texts that come from arguments, files and stdin."""

import sys
from pathlib import Path
from typing import BinaryIO

from specdec_cli.cli.options import PromptOptions
from specdec_cli.errors import SpecdecError, UsageError

_MAX_BYTES = 64 << 20  # far more than any context holds; a mistaken 2 GB file must not fill the memory


def read_prompt(options: PromptOptions) -> str:
    """Return the prompt: an instruction, a text, or an instruction, an empty line and a text.

    The instruction is the positional argument or --prompt. The text is FILE of --file, or stdin where `-`
    asks for it or nothing else is given and stdin is not a terminal. Raises UsageError when there is none or
    two of a kind.
    """
    instruction, wants_stdin = _instruction(options)
    file = options.file
    if file is not None and str(file) == "-":
        if wants_stdin:
            raise UsageError("- is given twice")
        file, wants_stdin = None, True
    if file is not None and wants_stdin:
        raise UsageError("the prompt is given twice: --file and - (stdin)")
    if instruction is None and file is None and not wants_stdin:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("no prompt: give it as an argument, with -f FILE, or on stdin")
        wants_stdin = True
    parts = [] if instruction is None else [check_text(instruction, "the prompt")]
    if file is not None:
        parts.append(read_text_file(file))
    elif wants_stdin:
        parts.append(read_stdin())
    if not any(parts):
        raise UsageError("the prompt is empty")
    return "\n\n".join(parts)


def _instruction(options: PromptOptions) -> tuple[str | None, bool]:
    """The prompt of the command line itself, and whether `-` asks for stdin."""
    words = list(options.words or [])
    texts = [word for word in words if word != "-"]
    if len(words) - len(texts) > 1:
        raise UsageError("- is given twice")
    if len(texts) > 1:
        raise UsageError(f"the prompt is one argument, put it in quotes: {texts[1]!r} is a second one")
    if texts and options.prompt is not None:
        raise UsageError("the prompt is given twice: as an argument and with --prompt")
    return (texts[0] if texts else options.prompt), len(words) > len(texts)


def read_text_file(path: Path) -> str:
    """Read a UTF-8 text file, without one final newline. Raises SpecdecError that names the file."""
    try:
        with path.open("rb") as file:
            return _read(file, str(path))
    except OSError as error:
        raise SpecdecError(f"{path}: {error.strerror or error}") from error


def read_stdin() -> str:
    """Read all of stdin as UTF-8 text, without one final newline."""
    if sys.stdin is None:
        raise UsageError("stdin is closed")
    return _read(sys.stdin.buffer, "stdin")


def check_text(text: str, name: str) -> str:
    """Return a command line argument. Raises UsageError when it was not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name} is not valid UTF-8") from None
    return text


def _read(file: BinaryIO, name: str) -> str:
    data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise SpecdecError(f"{name}: larger than {_MAX_BYTES >> 20} MiB, not a prompt")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecdecError(
            f"{name}: not UTF-8 text (byte 0x{data[error.start]:02x} at offset {error.start})"
        ) from None
    if "\0" in text:
        raise SpecdecError(f"{name}: not a text (NUL byte at offset {data.index(0)})")
    return text.removesuffix("\n")
