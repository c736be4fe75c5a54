"""Command groups that import a command's module when the command is used, and help text in plain sections.

`specdec --help` needs names and one-line summaries only. Both stand in a table, so that no command's module
(and nothing that it imports) is loaded to print them.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Where a command lives: `module` has the function (or the Typer app of a group) called `attribute`."""

    module: str
    attribute: str
    summary: str


class SectionedCommand(TyperCommand):
    """A command whose help lists options in sections (their help panels), as plain text."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section for each help panel, in order of appearance."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                default = "Options"
                if param.param_type_name == "argument":
                    default, record = "Arguments", (param.metavar or record[0], record[1])
                title = getattr(param, "rich_help_panel", None) or default
                sections.setdefault(title, []).append(record)
        general = sections.pop("Options", None)
        if general:
            sections["Options"] = general
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class LazyGroup(TyperGroup):
    """A group over a table of LazyCommand. Subclasses set `table`."""

    table: Mapping[str, LazyCommand] = {}

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Import and return a command, or None when there is no such name."""
        entry = self.table.get(cmd_name)
        return None if entry is None else _load(cmd_name, entry)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As click does, but with a suggestion for a mistyped name that needs no import."""
        if args and args[0] not in self.table and not args[0].startswith("-"):
            close = get_close_matches(args[0], self.table)
            ctx.fail(f"no command {args[0]!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the table: importing every command for its help line is what this class avoids."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.table.items()])


def _load(name: str, entry: LazyCommand) -> Any:
    target = getattr(importlib.import_module(entry.module), entry.attribute)
    if isinstance(target, typer.Typer):
        target.rich_markup_mode = None
        group = typer.main.get_command(target)
        group.name = name
        return group
    return as_command(name, target)


def as_command(name: str, function: Callable[..., Any]) -> Any:
    """Build a plain-help command from a function with Typer annotations."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, cls=SectionedCommand, context_settings={"max_content_width": 110})(function)
    return typer.main.get_command(app)
