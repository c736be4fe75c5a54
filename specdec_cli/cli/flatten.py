"""Options in groups: a command takes dataclasses, Typer sees their fields as options of the command."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from typing import Any, TypeVar, get_args, get_type_hints

from typer.models import ParameterInfo

R = TypeVar("R")


def with_option_groups(function: Callable[..., R]) -> Callable[..., R]:
    """Replace every parameter of `function` whose type is a dataclass by the fields of that dataclass.

    A field is declared as a parameter would be: `temp: Annotated[float, typer.Option("--temp")] = 0.8`.
    Field names must differ over the groups of one command. The wrapper builds the dataclasses, then calls
    `function`.
    """
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if is_dataclass(parameter.annotation) and isinstance(parameter.annotation, type):
            groups[parameter.name] = parameter.annotation
            parameters += _parameters(parameter.annotation)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(function)
    def wrapper(**values: Any) -> R:
        # All groups before any of them enters `values`: a group may have the name of another one's field.
        built = {
            name: group(**{f.name: values.pop(f.name) for f in fields(group)})
            for name, group in groups.items()
        }
        return function(**values, **built)

    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def _parameters(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default(f, hints[f.name]),
            annotation=hints[f.name],
        )
        for f in fields(group)
    ]


def _default(f: Field[Any], hint: Any) -> Any:
    infos = [a for a in get_args(hint) if isinstance(a, ParameterInfo)]
    if any(info.default_factory is not None for info in infos):
        return inspect.Parameter.empty  # Typer takes the default from the factory
    if f.default is not MISSING:
        return f.default
    return f.default_factory() if f.default_factory is not MISSING else inspect.Parameter.empty
