"""A kernel as it would be if all its floating-point numbers had one precision.

In float64 the interpreter then gives what the kernel computes without what its types round away: a reference for a
kernel that has none. Extents, strides and indices stay as they are, since Tile IR counts in elements. What looks at the
bits of a number has no such meaning, and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from tilewright.tileir.read.tree import Constant, Location, Op, TileModule, TileType
from tilewright.tileir.run.numbers import constant_values, is_float
from tilewright.tileir.run.registry import Unsupported

PRECISIONS = ("f32", "f64")
OF_BITS = ("ptr_to_int", "mmaf_scaled")
"""Operations that count bytes, or whose operands must have their own types."""
ROUGH = ("approx", "full")
"""Roundings that only float32 has."""


def in_precision(module: TileModule, element: str) -> TileModule:
    """``module`` with every floating-point element type replaced by ``element`` (``f32`` or ``f64``).

    Raises Unsupported, naming the operation, where the kernel depends on the bits of its numbers.
    """
    assert element in PRECISIONS
    changed: TileModule = _changed(module, element)
    return changed


def _changed(value: Any, element: str) -> Any:
    """A part of the tree with other element types in it."""
    if isinstance(value, Constant):
        if not is_float(value.element):
            return value
        return Constant(element, tuple(float(number) for number in constant_values(value)))
    if isinstance(value, tuple):
        return tuple(
            part
            for one in value
            for part in (_operations(one, element) if isinstance(one, Op) else (_changed(one, element),))
        )
    if isinstance(value, Mapping):
        return {name: _changed(one, element) for name, one in value.items()}
    if not is_dataclass(value) or isinstance(value, (type, Location)):
        return value
    parts = {field.name: getattr(value, field.name) for field in fields(value)}
    for name, part in parts.items():
        is_element = name in ("element", "pointee") and isinstance(part, str)
        parts[name] = (element if is_float(part) else part) if is_element else _changed(part, element)
    return replace(value, **parts)


def _operations(op: Op, element: str) -> tuple[Op, ...]:
    """``op`` in the other precision; ``fma`` as product and sum: to round once matters nothing here, and takes the
    interpreter long in float64."""
    kinds = (*op.operand_types["source"], *op.result_types) if op.name == "bitcast" else ()
    if op.name in OF_BITS or any(isinstance(kind, TileType) and is_float(kind.element) for kind in kinds):
        place = f" ({op.location})" if op.location else ""
        raise Unsupported(f"operation '{op.name}' depends on the bits of its numbers{place}")
    parts = {name: _changed(getattr(op, name), element) for name in ("result_types", "operand_types", "regions")}
    attributes = _changed(op.attributes, element)
    if attributes.get("rounding_mode") in ROUGH and op.name in ("divf", "sqrt"):
        attributes["rounding_mode"] = "nearest_even"
    attributes.pop("flush_to_zero", None)
    changed = replace(op, attributes=attributes, **parts)
    if op.name != "fma":
        return (changed,)
    product, types = (f"{op.results[0]}.product",), dict(changed.operand_types)
    operands, acc = dict(op.operands), types.pop("acc")
    sum_ = {"lhs": product, "rhs": operands.pop("acc")}
    return (
        replace(changed, name="mulf", results=product, operands=operands, operand_types=types),
        replace(changed, name="addf", operands=sum_, operand_types={"lhs": acc, "rhs": acc}),
    )
