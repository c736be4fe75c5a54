"""How an option is declared: flags, help, section, and its environment variable."""

import os
from typing import Annotated, Any

import typer


def option(*flags: str, help: str, panel: str | None = None, **settings: Any) -> Any:  # noqa: A002
    """An option that can also come from the environment: `--top-k` from SPECDEC_TOP_K, aliases likewise."""
    return typer.Option(
        *flags,
        help=help,
        rich_help_panel=panel,
        envvar=_variables(flags),
        show_envvar=False,
        **settings,
    )


def repeatable(*flags: str, help: str, panel: str | None = None, **settings: Any) -> Any:  # noqa: A002
    """An option that may be given several times; its environment variable holds one value per line."""
    variables = _variables(flags)

    def from_environment() -> list[str]:
        return [line for name in variables for line in os.environ.get(name, "").split("\n") if line]

    return typer.Option(
        *flags,
        help=help,
        rich_help_panel=panel,
        default_factory=from_environment,
        show_default=False,
        **settings,
    )


def _variables(flags: tuple[str, ...]) -> list[str]:
    names = [flag.split("/")[0] for flag in flags]
    return ["SPECDEC_" + name[2:].upper().replace("-", "_") for name in names if name.startswith("--")]


def remember_debug(context: typer.Context, wanted: bool) -> bool:
    """Tell the error handler of main.py that a traceback is wanted."""
    invocation = context.find_root().obj
    if wanted and hasattr(invocation, "debug"):
        invocation.debug = True
    return wanted


DebugOption = Annotated[
    bool,
    option("--debug", help="Show the traceback of an error.", is_eager=True, callback=remember_debug),
]
