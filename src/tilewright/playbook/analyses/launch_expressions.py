"""Writes an expression of a kernel as the launch of its task computes it.

rows = x.shape[0]
for item in range(…, (rows + TILE - 1) // TILE, …)      →      (M + config.TILE - 1) // config.TILE
"""

from __future__ import annotations

import libcst as cst

from tilewright.playbook.analyses import task_code
from tilewright.playbook.analyses.dataflow import names_assigned, names_read, parameters, reaching
from tilewright.playbook.analyses.extents import extent_of
from tilewright.playbook.analyses.tile_shapes import tile_call
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Expression, Source, argument, elements, number


def in_launch(source: Source, kernel: str, node: Expression) -> str:
    """Returns the text of an expression of the kernel in the launch's names. The text is in brackets where a product
    or a quotient needs them. Raises `NotApplicable` if the launch does not know a part of it."""
    match node:
        case cst.Integer():
            return node.value
        case cst.Name(value=name) if _is_parameter(source, kernel, node):
            given = given_at_launch(source, kernel, name)
            if given is not None:
                return _bracketed(source, given)
        case cst.Name(value=name):
            defined = reaching(source, name, node)
            if defined is not None and defined.value is not None:
                return in_launch(source, kernel, defined.value)
        case cst.Subscript(
            value=cst.Attribute(value=array, attr=cst.Name(value="shape")),
            slice=[cst.SubscriptElement(slice=cst.Index(value=axis))],
        ):
            if extent := _extent(source, kernel, array, number(axis)):
                return extent
        case cst.BinaryOperation(operator=cst.Add() | cst.Subtract() | cst.Multiply() | cst.FloorDivide()):
            sides = (in_launch(source, kernel, side) for side in (node.left, node.right))
            sign = {cst.Add: "+", cst.Subtract: "-", cst.Multiply: "*", cst.FloorDivide: "//"}[type(node.operator)]
            return f"({f' {sign} '.join(sides)})"
        case cst.Call() if tile_call(source, node) == "cdiv" and len(node.args) == 2:
            whole, part = (in_launch(source, kernel, each.value) for each in node.args)
            return f"-(-{whole} // {part})"
        case cst.Call() if tile_call(source, node) == "num_tiles":
            place, sizes = number(argument(node, "axis", 1)), elements(argument(node, "shape", 2)) or []
            extent = _extent(source, kernel, argument(node, "array", 0), place)
            if extent and isinstance(place, int) and place < len(sizes):
                return f"-(-{extent} // {in_launch(source, kernel, sizes[place])})"
    raise NotApplicable(f"{source.name}: the launch does not know '{source.code(node)}' of {kernel}")


def given_at_launch(source: Source, kernel: str, name: str) -> Expression | None:
    """Returns the argument for a parameter of the kernel, as an expression that has its value where the launch is made;
    None if unknown: a variable with the arguments may hold what a name was before."""
    launch, given = task_code.launch_of(source), task_code.argument_of(source, kernel, name)
    stale = given is not None and isinstance(launch.args, cst.Name) and names_read(given) & reassigned(launch)
    return None if stale else given


def reassigned(launch: task_code.LaunchCode) -> set[str]:
    """Returns the names that have several values in a launch function."""
    own = set(parameters(launch.function))
    return {name for name, count in names_assigned(launch.function.body).items() if count > 1 or name in own}


def _extent(source: Source, kernel: str, array: Expression | None, axis: object) -> str | None:
    """Returns the extent of an axis of an array parameter as the launch writes it; None if it does not know it."""
    if not isinstance(array, cst.Name) or not _is_parameter(source, kernel, array):
        return None
    extent = extent_of(source, kernel, array.value, axis) if isinstance(axis, int) and axis >= 0 else None
    return None if extent is None else _bracketed(source, cst.parse_expression(extent))


def _is_parameter(source: Source, kernel: str, node: cst.Name) -> bool:
    """Returns whether a name still has the value that the launch passes."""
    defined = reaching(source, node.value, node)
    return defined is not None and defined.node is source.functions[kernel]


def _bracketed(source: Source, node: Expression) -> str:
    text = source.code(node)
    return text if isinstance(node, (cst.Name, cst.Integer, cst.Attribute, cst.Call)) else f"({text})"
