"""The classes of commands and their groups. They keep typer from loading pydantic, which takes a tenth of a second.

Newer versions of typer convert every value with pydantic, even defaults and plain text. These classes use such values
unchanged, and leave other values to typer. Versions of typer without pydantic behave as before.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

from typer import BadParameter
from typer.core import TyperCommand, TyperGroup

from tilewright.cli import terminal


class Command(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _take_plain_values(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with terminal.own_output():  # rich styles the help
            super().format_help(ctx, formatter)


class Group(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _take_plain_values(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with terminal.own_output():  # rich styles the help
            super().format_help(ctx, formatter)


def _take_plain_values(parameters: Iterable[Any]) -> None:
    for parameter in parameters:
        if hasattr(parameter, "get_runtime_param") and getattr(parameter, "_runtime_param", _Plain) is None:
            parameter._runtime_param = _Plain()


class _Plain:
    """A converter for the values of one parameter, in place of typer's own converter."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        kind, parser = param.type_descriptor.annotation, param.type_descriptor.parameter_info.parser
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if parser is not None:
            return parser(value)
        if kind in (str, int, float) and type(value) is kind:
            return value
        if kind == list[str] and isinstance(value, (list, tuple)):
            return list(value)
        if float in (kind, *get_args(kind)) and str(value).strip().lstrip("+-").lower() == "nan":
            raise BadParameter("nan is not a number", ctx=ctx, param=param)
        values = value if isinstance(value, (list, tuple)) else (value,)
        if Path in (kind, *get_args(kind)) and any(each == "" for each in values):  # Path("") is the working directory
            raise BadParameter("the path is empty; was a variable for it not set?", ctx=ctx, param=param)
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)
