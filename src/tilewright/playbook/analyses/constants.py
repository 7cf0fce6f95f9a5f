"""Tells which values of a kernel are constants: known when it is compiled, and the same in all its blocks."""

from __future__ import annotations

import libcst as cst

from tilewright.playbook.analyses.dataflow import assignments, reaching
from tilewright.playbook.analyses.tile_shapes import sides_of
from tilewright.source.syntax import Expression, Function, Source, dotted

_STATIC = ("dtype", "ndim")  # attributes of arrays and tiles that are constants


def constant_parameters(source: Source, function: Function, kind: str = "") -> set[str]:
    """Returns the parameters that are annotated as ``ct.Constant[…]``, or as a name of the file for it.

    kind: the type in the brackets, such as ``int``; by default any, or none.
    """
    aliases = {name: value for _, name, value in assignments(source, source.module)}
    found = set[str]()
    for param in function.params.params:
        written = param.annotation.annotation if param.annotation is not None else None
        written = aliases.get(dotted(written), written) if written is not None else None
        match written:
            case cst.Subscript(value=inside):
                known = not kind or source.code(written).replace(" ", "").endswith(f"[{kind}]")
            case None:
                continue
            case inside:
                known = not kind
        if known and source.tile_name(dotted(inside)) == "Constant":
            found.add(param.name.value)
    return found


def is_constant(source: Source, function: Function, node: Expression) -> bool:
    """Returns whether an expression of a kernel has only constants: parameters, globals, and numbers."""
    match node:
        case cst.Integer() | cst.Float() | cst.SimpleString():
            return True
        case cst.Name(value=name):
            found = reaching(source, name, node)
            if found is None or found.node is function:
                return found is not None and name in constant_parameters(source, function)
            if found.node is source.module:
                return True
            return found.value is not None and is_constant(source, function, found.value)
        case cst.Attribute(attr=cst.Name(value=name)) if name in _STATIC:
            return True
        case cst.Attribute(value=inside) | cst.UnaryOperation(expression=inside):
            return is_constant(source, function, inside)
        case cst.BinaryOperation() | cst.BooleanOperation() | cst.Comparison():
            return all(is_constant(source, function, side) for side in sides_of(node))
    return False
