"""Gives the axes of a launch's grid and their product names, so that a launch can start fewer blocks than items.

The kernel can then be passed these numbers, and the patch reads as a person would have written it.
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_assigned
from tilewright.playbook.analyses.task_code import LaunchCode, fresh_name, inserted, launch_of, numbered, with_grid
from tilewright.playbook.base import KernelFacts, NotApplicable
from tilewright.source.syntax import Source, dotted, elements, number


@dataclass(frozen=True)
class Grid:
    """The axes of a launch in ``source``, as host expressions that are short enough to repeat."""

    source: Source
    axes: tuple[str, ...]
    items: str
    """Their product."""


def flat_grid(source: Source) -> Grid:
    """The launch with its number of items at hand; a local variable holds what is longer than a name.

    Raises `NotApplicable` where the number of axes cannot be read from the text.
    """
    launch = launch_of(source)
    written = _axes(source, launch)
    in_function = isinstance(launch.function, cst.FunctionDef)
    if isinstance(launch.grid, cst.Name):
        axes = tuple(f"{launch.grid.value}[{place}]" for place in range(len(written)))
    elif in_function and len(written) > 1 and not all(_is_short(one) for one in written):
        source, name = _with_local(source, "grid", source.code(launch.grid))
        axes = tuple(f"{name}[{place}]" for place in range(len(written)))
    else:
        axes = tuple(source.code(one) if _is_short(one) else f"({source.code(one)})" for one in written)
    counted = [axis for axis, one in zip(axes, written, strict=True) if number(one) != 1] or axes[:1]
    items = " * ".join(counted)
    if in_function and not items.isidentifier():
        alone = items.removeprefix("(").removesuffix(")") if len(counted) == 1 else items
        source, items = _with_local(source, "items", alone)
    axes = tuple("1" if number(one) == 1 else axis for axis, one in zip(axes, written, strict=True))
    return Grid(source, axes if len(counted) > 1 else tuple(items if a in counted else a for a in axes), items)


def starts(facts: KernelFacts, source: Source) -> str:
    """The kernel of ``source`` that the launch in it starts; "" where the task launches another one."""
    try:
        kernel = launch_of(source).kernel
    except NotApplicable:
        return ""
    launched = facts.launch(facts.workloads[0]).kernel
    function = getattr(launched, "_pyfunc", launched)
    return kernel if kernel in source.kernels and getattr(function, "__name__", kernel) == kernel else ""


def fresh_in(source: Source, function: str, name: str) -> str:
    """``name``, or with a number behind it where the function or the file's top level has such a name."""
    return numbered(
        name, {one.value for one in source.every(cst.Name, source.functions[function])} | _top_level(source)
    )


def _top_level(source: Source) -> set[str]:
    """The names that the file itself binds."""
    bound = set(source.functions)
    for one in source.module.body:
        if isinstance(one, cst.ClassDef):
            bound.add(one.name.value)
        elif not isinstance(one, cst.FunctionDef):
            bound |= set(names_assigned(one))
            for alias in source.every(cst.ImportAlias, one):
                bound.add(dotted(alias.asname.name if alias.asname is not None else alias.name).split(".")[0])
    return bound


def _axes(source: Source, launch: LaunchCode) -> list[cst.BaseExpression]:
    grid: cst.BaseExpression = launch.grid
    if isinstance(grid, cst.Name) and isinstance(launch.function, cst.FunctionDef):
        assigned = [
            one.value
            for one in source.every(cst.Assign, launch.function)
            if any(dotted(target.target) == grid.value for target in one.targets)
        ]
        if len(assigned) != 1:
            raise NotApplicable(f"{source.name}: '{grid.value}' is assigned {len(assigned)} times in the launch")
        grid = assigned[0]
    axes = elements(grid)
    if not axes:
        raise NotApplicable(f"{source.name}: the grid is not written as a tuple of its axes")
    return axes


def _is_short(node: cst.BaseExpression) -> bool:
    return isinstance(node, (cst.Name, cst.Integer))


def _with_local(source: Source, name: str, expression: str) -> tuple[Source, str]:
    """The launch function with a variable set just before the launch."""
    name = fresh_name(source, name)
    source = before_launch(source, f"{name} = {expression}")
    if name == "grid":  # the launch takes the variable instead of what it holds
        source = with_grid(source, name)
    return source, name


def before_launch(source: Source, statement: str) -> Source:
    """The launch function with a statement just before the launch."""
    lines = (one for one in source.parents(launch_of(source).call) if isinstance(one, cst.SimpleStatementLine))
    return source.changed(inserted(statement, next(lines)))
