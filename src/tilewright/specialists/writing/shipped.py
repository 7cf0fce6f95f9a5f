"""Changes the configuration that a written task ships."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence

from tilewright.records import Value


def with_shipped(text: str, changes: Mapping[str, Value]) -> str:
    """Returns the text of a task file that ships these values. Its space lists them, too."""
    from tilewright.playbook.analyses.configuration_sites import written_in_space
    from tilewright.source.syntax import Source

    return written_in_space(Source("the written task", text), changes) if changes else text


def with_tiles(text: str, chosen: Callable[[Sequence[int]], int]) -> str:
    """Returns the text of a task file that ships one of the listed values for each tile size.

    chosen: a function that returns the value to ship from a list of values.
    """
    (space,) = (each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Call) and _is_space(each))
    listed = {each.arg: each.value for each in space.keywords}["constants"]
    return with_shipped(text, {name: chosen(values) for name, values in ast.literal_eval(listed).items()})


def _is_space(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "Space"
