"""Writes an expression of a kernel as the launch of its task computes it.

rows = x.shape[0]
for item in range(…, (rows + TILE - 1) // TILE, …)      →      (M + config.TILE - 1) // config.TILE
"""

from __future__ import annotations

import libcst as cst

from tilewright.playbook.analyses import task_code
from tilewright.playbook.analyses.dataflow import names_assigned, names_read, parameters, reaching
from tilewright.playbook.analyses.tile_shapes import tile_call
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Expression, Source, argument, elements, number


def in_launch(source: Source, kernel: str, node: Expression) -> str:
    """Returns the text of an expression of the kernel in the launch's names. The text is in brackets where a product
    or a quotient needs them. Raises `NotApplicable` if the launch does not know a part of it."""
    match node:
        case cst.Integer():
            return node.value
        case cst.Name(value=name) if name in parameters(source.functions[kernel]) and _is_parameter(
            source, kernel, node
        ):
            given = given_at_launch(source, kernel, name)
            if given is not None:
                return _bracketed(source, given)
        case cst.Name(value=name):
            defined = reaching(source, name, node)
            if defined is not None and defined.value is not None:
                return in_launch(source, kernel, defined.value)
        case cst.Subscript(value=cst.Attribute(value=cst.Name(value=array) as owner, attr=cst.Name(value="shape"))) if (
            _is_parameter(source, kernel, owner)
        ):
            listed = [each.slice for each in node.slice]
            axis = number(listed[0].value) if len(listed) == 1 and isinstance(listed[0], cst.Index) else None
            extent = task_code.extent_of(source, kernel, array, axis) if isinstance(axis, int) and axis >= 0 else None
            if extent is not None:
                return _bracketed(source, cst.parse_expression(extent))
        case cst.BinaryOperation(operator=cst.Add() | cst.Subtract() | cst.Multiply() | cst.FloorDivide()):
            sides = (in_launch(source, kernel, side) for side in (node.left, node.right))
            sign = {cst.Add: "+", cst.Subtract: "-", cst.Multiply: "*", cst.FloorDivide: "//"}[type(node.operator)]
            return f"({f' {sign} '.join(sides)})"
        case cst.Call() if tile_call(source, node) == "cdiv" and len(node.args) == 2:
            whole, part = (in_launch(source, kernel, each.value) for each in node.args)
            return f"-(-{whole} // {part})"
        case cst.Call() if tile_call(source, node) == "num_tiles":
            tiled, axis = argument(node, "array", 0), number(argument(node, "axis", 1))
            sizes = elements(argument(node, "shape", 2)) or []
            own = isinstance(tiled, cst.Name) and _is_parameter(source, kernel, tiled)
            if own and isinstance(tiled, cst.Name) and isinstance(axis, int) and 0 <= axis < len(sizes):
                extent = task_code.extent_of(source, kernel, tiled.value, axis)
                if extent is not None:
                    whole = _bracketed(source, cst.parse_expression(extent))
                    return f"-(-{whole} // {in_launch(source, kernel, sizes[axis])})"
    raise NotApplicable(f"{source.name}: the launch does not know '{source.code(node)}' of {kernel}")


def given_at_launch(source: Source, kernel: str, name: str) -> Expression | None:
    """Returns the argument for a parameter of the kernel, as an expression that has its value where the launch is made;
    None if unknown: a variable with the arguments may hold what a name was before."""
    launch, given = task_code.launch_of(source), task_code.argument_of(source, kernel, name)
    if given is None or not isinstance(launch.args, cst.Name):
        return given
    assigned, own = names_assigned(launch.function.body), set(parameters(launch.function))
    changed = {each for each, count in assigned.items() if count > 1 or each in own}
    return None if names_read(given) & changed else given


def _is_parameter(source: Source, kernel: str, node: cst.Name) -> bool:
    """Returns whether a name still has the value that the launch passes."""
    defined = reaching(source, node.value, node)
    return defined is not None and defined.node is source.functions[kernel]


def _bracketed(source: Source, node: Expression) -> str:
    text = source.code(node)
    return text if isinstance(node, (cst.Name, cst.Integer, cst.Attribute, cst.Call)) else f"({text})"
