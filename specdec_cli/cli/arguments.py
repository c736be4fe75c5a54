"""Between option groups and the command line that they came from."""

from dataclasses import fields
from enum import Enum
from typing import Any, get_args, get_type_hints

import typer
from typer.models import OptionInfo


def as_arguments(*groups: Any) -> list[str]:
    """Arguments that set the options of these groups (see flatten.py) to the values they have here.

    What is None, an empty list or a flag that is off is left to the default.
    """
    arguments: list[str] = []
    for group in groups:
        for name, flag in _flags(type(group)).items():
            value = getattr(group, name)
            if value is True:
                arguments.append(flag)
            elif isinstance(value, list | tuple):
                arguments += [f"{flag}={item}" for item in value]
            elif value is not None and value is not False:
                arguments.append(f"{flag}={value.value if isinstance(value, Enum) else value}")
    return arguments


def given_flags(context: typer.Context) -> dict[str, str]:
    """The options that stand on the command line: name of the parameter -> its long flag."""
    given = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            long = [flag for flag in parameter.opts if flag.startswith("--")]
            given[parameter.name or ""] = long[0] if long else parameter.opts[0]
    return given


def _flags(group: type[Any]) -> dict[str, str]:
    """The long flag of each field."""
    hints = get_type_hints(group, include_extras=True)
    flags = {}
    for field in fields(group):
        infos = [info for info in get_args(hints[field.name]) if isinstance(info, OptionInfo)]
        # Inside Annotated the first flag takes the place of the default.
        declared = [name for info in infos for name in (info.default, *(info.param_decls or ()))]
        names = [name for name in declared if isinstance(name, str) and name.startswith("--")]
        if names:
            flags[field.name] = names[0].split("/")[0]
    return flags
