"""Entry point of `specdec`: the table of commands, and the one place where errors become exit codes."""

import errno
import io
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TextIO

import typer

from quant.errors import QuantError
from specdec_cli.cli.escaping import escape_controls
from specdec_cli.cli.lazy import LazyCommand, LazyGroup
from specdec_cli.errors import SpecdecError

_EPILOG = (
    "Every option can also be set in the environment: --top-k as SPECDEC_TOP_K. "
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted."
)

_LONGEST_ERROR = 1000


def _command(name: str, summary: str) -> LazyCommand:
    return LazyCommand(f"specdec_cli.cli.{name}", name, summary)


class SpecdecGroup(LazyGroup):
    """The commands of `specdec`."""

    table: Mapping[str, LazyCommand] = {
        "run": _command("run", "Answer one prompt."),
        "chat": _command("chat", "Talk with a model over several turns."),
        "models": LazyCommand("specdec_cli.cli.models", "app", "List, fetch, inspect and pair models."),
        "tokenize": _command("tokenize", "Print the token ids of a text."),
        "score": _command("score", "Perplexity and log-probabilities of a text."),
        "bench": _command("bench", "Compare strategies on real prompts, or measure a model."),
        "verify": _command("verify", "Check that speculation does not change the output."),
        "doctor": _command("doctor", "Show what this machine offers and what is missing."),
        "quantize": _command("quantize", "Write a model as another quantization type."),
    }

    def invoke(self, ctx: Any) -> Any:
        """Run the command. An interrupted one leaves the shell's prompt a line of its own, after the ^C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                sys.stderr.write("\n")
            raise


@dataclass(slots=True)
class Invocation:
    """What options tell the error handler; the root object of the command's context."""

    debug: bool = False


app = typer.Typer(
    cls=SpecdecGroup,
    name="specdec",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"specdec {version('specdec-cli')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Run quantized language models locally, with speculative decoding that never changes the output."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    _tolerate_narrow_encodings()
    invocation = Invocation(debug=_truthy(os.environ.get("SPECDEC_DEBUG", "")))
    try:
        result = typer.main.get_command(app).main(
            args=list(sys.argv[1:] if argv is None else argv),
            prog_name="specdec",
            standalone_mode=False,
            obj=invocation,
        )
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except SystemExit as error:  # click turns a closed output pipe into this
        return error.code if isinstance(error.code, int) else 1
    except Exception as error:
        if invocation.debug:
            raise
        return _report(error)
    return result if isinstance(result, int) else 0


def _tolerate_narrow_encodings() -> None:
    """Let stdout write a replacement for characters that its encoding lacks, instead of failing.

    Only where nobody chose an error handler, as PYTHONIOENCODING=cp1252:backslashreplace does.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def _truthy(text: str) -> bool:
    return text.lower() in ("1", "true", "t", "yes", "y", "on")


def _report(error: Exception) -> int:
    """Print one line for `error` on stderr and return the exit code."""
    if isinstance(error, BrokenPipeError):
        _abandon(sys.stdout, sys.stderr)
        return 1
    message, code = _describe(error)
    if message:
        try:
            print(f"error: {message}", file=sys.stderr, flush=True)  # noqa: T201
        except OSError:  # nobody reads stderr either
            _abandon(sys.stdout, sys.stderr)
    return code


def _abandon(*streams: TextIO) -> None:
    """Point streams to nowhere, so that the interpreter's flush at exit has nothing to fail on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        try:
            os.dup2(nowhere, stream.fileno())
        except (OSError, ValueError):  # closed, or a test's replacement
            continue
    os.close(nowhere)


def _describe(error: Exception) -> tuple[str, int]:
    """One line of text and the exit code for an error."""
    if isinstance(error, SpecdecError):
        return _one_line(str(error)), error.exit_code
    if isinstance(error, QuantError):
        return _one_line(str(error)), 1
    if isinstance(error, MemoryError):
        return "not enough memory", 1
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EIO) and not error.filename:
            _abandon(sys.stdout)
        reason = error.strerror or str(error)
        return _one_line(f"{error.filename}: {reason}" if error.filename else reason), 1
    return _describe_click(error) or (
        _one_line(f"internal error: {type(error).__name__}: {error} (--debug shows the traceback)"),
        1,
    )


def _describe_click(error: Any) -> tuple[str, int] | None:
    """Usage errors of the option parser, recognised by their shape: Typer carries its own copy of click."""
    if not hasattr(error, "format_message") or not hasattr(error, "exit_code"):
        return None
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return "", int(error.exit_code)
    message = _one_line(error.format_message()).rstrip(".")
    context = getattr(error, "ctx", None)
    hint = f" (see {context.command_path} --help)" if context is not None else ""
    return message + _variable_of(error) + hint, int(error.exit_code)


def _variable_of(error: Any) -> str:
    """Name the environment variable that a wrong value came from."""
    param, context = getattr(error, "param", None), getattr(error, "ctx", None)
    if param is None or context is None:
        return ""
    source = context.get_parameter_source(param.name)
    if source is None or source.name != "ENVIRONMENT":
        return ""
    names = [param.envvar] if isinstance(param.envvar, str) else param.envvar or []
    return "".join(f", from {name}" for name in names if os.environ.get(name))


def _one_line(text: str) -> str:
    line = " ".join(text.split()) or "unknown error"
    if len(line) > _LONGEST_ERROR:  # it quotes something endless, such as a file name of 5000 characters
        line = line[:_LONGEST_ERROR] + "..."
    return escape_controls(line) if sys.stderr.isatty() else line


if __name__ == "__main__":
    sys.exit(main())
