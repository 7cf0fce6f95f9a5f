"""A kernel as it would be if all its floating-point numbers had one precision.

In float64 the interpreter then gives what the kernel computes without what its types round away: a
reference for a kernel that nobody wrote one for. Extents, strides and indices stay as they are, since Tile IR
counts in elements. What looks at the bits of a number has no such meaning, and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from tilewright.tileir.read.tree import Constant, Global, KernelEntry, Op, PointerType, Region, TileModule, TileType
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
    changed = _Changed(element)
    return TileModule(
        tuple(changed.entry(one) for one in module.entries), tuple(changed.global_(one) for one in module.globals)
    )


class _Changed:
    def __init__(self, element: str) -> None:
        self.element = element

    def entry(self, one: KernelEntry) -> KernelEntry:
        parameters = tuple((name, self.value(kind)) for name, kind in one.parameters)
        return replace(one, parameters=parameters, body=self._body(one.body))

    def global_(self, one: Global) -> Global:
        return replace(one, type=self.value(one.type), value=self.value(one.value))

    def op(self, one: Op) -> Op:
        if one.name in OF_BITS or (one.name == "bitcast" and self._is_of_float(one)):
            place = f" ({one.location})" if one.location else ""
            raise Unsupported(f"operation '{one.name}' depends on the bits of its numbers{place}")
        return replace(
            one,
            result_types=tuple(self.value(kind) for kind in one.result_types),
            operand_types={
                name: tuple(self.value(kind) for kind in kinds) for name, kinds in one.operand_types.items()
            },
            attributes=self._attributes(one),
            regions=tuple(self._region(region) for region in one.regions),
        )

    def _region(self, one: Region) -> Region:
        arguments = tuple((name, self.value(kind)) for name, kind in one.arguments)
        return Region(arguments, self._body(one.body))

    def _body(self, ops: tuple[Op, ...]) -> tuple[Op, ...]:
        return tuple(part for one in ops for part in self._parts(self.op(one)))

    def _parts(self, one: Op) -> tuple[Op, ...]:
        """``fma`` as product and sum: to round once matters nothing here, and takes the interpreter long in float64."""
        if one.name != "fma":
            return (one,)
        product, kinds = f"{one.results[0]}.product", one.operand_types
        lhs, rhs, acc = (one.operands[name] for name in ("lhs", "rhs", "acc"))
        first = replace(
            one, name="mulf", results=(product,), operands={"lhs": lhs, "rhs": rhs},
            operand_types={"lhs": kinds["lhs"], "rhs": kinds["rhs"]},
        )  # fmt: skip
        second = replace(
            one, name="addf", operands={"lhs": (product,), "rhs": acc},
            operand_types={"lhs": kinds["acc"], "rhs": kinds["acc"]},
        )  # fmt: skip
        return first, second

    def _attributes(self, one: Op) -> dict[str, Any]:
        found = {name: self.value(value) for name, value in one.attributes.items()}
        if found.get("rounding_mode") in ROUGH and one.name in ("divf", "sqrt"):
            found["rounding_mode"] = "nearest_even"
        found.pop("flush_to_zero", None)
        return found

    def value(self, value: Any) -> Any:
        """A type or an attribute, with other element types in it."""
        if isinstance(value, Constant):
            return self._constant(value)
        if isinstance(value, PointerType):
            return PointerType(self._element(value.pointee))
        if isinstance(value, TileType):
            inside = value.element
            return replace(
                value, element=self.value(inside) if isinstance(inside, PointerType) else self._element(inside)
            )
        if isinstance(value, tuple):
            return tuple(self.value(one) for one in value)
        if isinstance(value, list):
            return [self.value(one) for one in value]
        if isinstance(value, Mapping):
            return {name: self.value(one) for name, one in value.items()}
        if is_dataclass(value) and not isinstance(value, type):
            return replace(
                value, **{one.name: self._field(one.name, getattr(value, one.name)) for one in fields(value)}
            )
        return value

    def _field(self, name: str, value: Any) -> Any:
        return self._element(value) if name == "element" else self.value(value)

    def _element(self, element: str) -> str:
        return self.element if is_float(element) else element

    def _constant(self, one: Constant) -> Constant:
        if not is_float(one.element):
            return one
        return Constant(self.element, tuple(float(value) for value in constant_values(one)))

    def _is_of_float(self, one: Op) -> bool:
        kinds = [*one.operand_types["source"], *one.result_types]
        return any(isinstance(kind, TileType) and is_float(kind.element) for kind in kinds)
