"""Rewrites a kernel so that all its floating-point numbers have one precision.

With float64, the interpreter computes the rewritten kernel almost without rounding errors. The result is a reference
for kernels that have no reference. Extents, strides and indices do not change, because Tile IR counts in elements.
Kernels that use the bits of numbers are refused.
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
"""Operations that count bytes, or whose operands have fixed types."""
ROUGH = ("approx", "full")  # rounding modes that only float32 has


def in_precision(module: TileModule, element: str) -> TileModule:
    """Returns the module with every floating-point element type replaced by ``element`` (``f32`` or ``f64``).

    Raises Unsupported, naming the operation, if the kernel depends on the bits of its numbers.
    """
    assert element in PRECISIONS
    changed: TileModule = _changed(module, element)
    return changed


def _changed(value: Any, element: str) -> Any:
    """Returns ``value``, a part of the tree, with the element types replaced."""
    if isinstance(value, Constant):
        if not is_float(value.element):
            return value
        return Constant(element, tuple(float(number) for number in constant_values(value)))
    if isinstance(value, tuple):
        changed = (_operations(part, element) if isinstance(part, Op) else (_changed(part, element),) for part in value)
        return tuple(part for parts in changed for part in parts)
    if isinstance(value, Mapping):
        return {name: _changed(part, element) for name, part in value.items()}
    if not is_dataclass(value) or isinstance(value, (type, Location)):
        return value
    parts = {field.name: getattr(value, field.name) for field in fields(value)}
    for name, part in parts.items():
        is_element = name in ("element", "pointee") and isinstance(part, str)
        parts[name] = (element if is_float(part) else part) if is_element else _changed(part, element)
    return replace(value, **parts)


def _operations(op: Op, element: str) -> tuple[Op, ...]:
    """Returns ``op`` in the new precision. ``fma`` becomes a product and a sum.

    A float64 ``fma`` with a single rounding is slow, and the second rounding makes no difference here.
    """
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
