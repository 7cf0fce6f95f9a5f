"""A module of TTIR as a small typed tree. `reader` builds it, and the families of operations read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Attribute: TypeAlias = Any
"""An int, float, bool, str, list, dict or `Dense`. Any other attribute is its text."""

BITS = {
    "i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "f8E4M3FN": 8, "f8E5M2": 8, "f16": 16, "bf16": 16, "tf32": 32,
    "f32": 32, "f64": 64,
}  # fmt: skip
"""The bits of an element in memory, for each element type that Tile IR also has."""


@dataclass(frozen=True)
class ValueType:
    """The type of a value. A scalar has an empty shape.

    pointer: the elements are pointers to ``element``.
    descriptor: the value is a tensor descriptor with blocks of this shape.
    """

    element: str
    shape: tuple[int, ...] = ()
    pointer: bool = False
    descriptor: bool = False

    def __str__(self) -> str:
        inside = f"!tt.ptr<{self.element}>" if self.pointer else self.element
        whole = "x".join([*map(str, self.shape), inside])
        return f"!tt.tensordesc<{whole}>" if self.descriptor else f"tensor<{whole}>" if self.shape else inside

    @property
    def bits(self) -> int:
        """Bits of an element. For a pointer: bits of the element at its address. Raises Untranslated if Tile IR lacks
        the type."""
        if self.element not in BITS:
            raise Untranslated(f"Tile IR has no elements of type {self.element}")
        return BITS[self.element]

    @property
    def is_float(self) -> bool:
        return not self.pointer and self.element[0] != "i"

    def of(self, element: str) -> ValueType:
        """Returns a type of the same shape with other elements. These elements are not pointers."""
        return ValueType(element, self.shape)

    def shaped(self, *shape: int) -> ValueType:
        return ValueType(self.element, shape, self.pointer)


@dataclass(frozen=True)
class SourcePlace:
    """A place in the source of a kernel."""

    file: str
    line: int
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.line}"


@dataclass(eq=False)
class SsaValue:
    """A value in SSA form. Two values are the same only if they are the same object."""

    name: str
    type: ValueType


@dataclass(frozen=True)
class Dense:
    """The elements of a constant: one number for all elements, or a nested list. A float that is given as a string is
    its bits."""

    values: Any
    type: ValueType


@dataclass(eq=False)
class TtirOp:
    """An operation. ``attributes`` holds both its properties and its attributes."""

    name: str
    operands: tuple[SsaValue, ...]
    results: tuple[SsaValue, ...]
    attributes: Mapping[str, Attribute]
    regions: tuple[tuple[TtirBlock, ...], ...] = ()
    successors: tuple[str, ...] = ()
    place: SourcePlace | None = None

    @property
    def type(self) -> ValueType:
        """The type of the first result."""
        return self.results[0].type

    @property
    def groups(self) -> tuple[tuple[SsaValue, ...], ...]:
        """The operands, divided by ``operandSegmentSizes``. An absent optional operand is an empty group."""
        rest, groups = iter(self.operands), []
        for size in self.attributes.get("operandSegmentSizes", [1] * len(self.operands)):
            groups.append(tuple(next(rest) for _ in range(size)))
        return tuple(groups)

    def body(self, region: int = 0) -> TtirBlock:
        """The only block of a region."""
        (block,) = self.regions[region]
        return block

    def walk(self) -> Iterator[TtirOp]:
        """Yields this operation and all inside it."""
        yield self
        for blocks in self.regions:
            for block in blocks:
                for op in block.ops:
                    yield from op.walk()


@dataclass(eq=False)
class TtirBlock:
    """A block of operations. The last one is the terminator."""

    label: str
    arguments: tuple[SsaValue, ...]
    ops: list[TtirOp] = field(default_factory=list)


class Untranslated(Exception):
    """The kernel uses a feature that Tile IR or this translator lacks. The message names the feature and its source
    line."""

    def __init__(self, what: str, op: TtirOp | None = None) -> None:
        super().__init__(f"{op.place}: {what}" if op and op.place else what)
        self.operation = op.name if op else ""

    @classmethod
    def lacking(cls, op: TtirOp) -> Untranslated:
        """Makes the error for an operation that no family translates."""
        known = " (inline assembly)" if op.name == "tt.elementwise_inline_asm" else ""
        return cls(f"Tile IR has no counterpart of {op.name}{known}", op)
