"""Defines the typed tree of a Tile IR module. `reader` builds the tree, and all other modules read it.

Classes, operands and attributes have Tile IR's own names: ``lhs``, ``rounding_mode``, ``memory_ordering_semantics`` …
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias


@dataclass(frozen=True)
class PointerType:
    pointee: str

    def __str__(self) -> str:
        return f"ptr<{self.pointee}>"


Element: TypeAlias = "str | PointerType"
"""The type of an element: ``i1 i4 i8 i16 i32 i64 f16 bf16 f32 tf32 f64 f8E4M3FN f8E5M2 f8E8M0FNU f4E2M1FN …``, or a
pointer."""


@dataclass(frozen=True)
class TileType:
    """The type of a tile. A scalar has the shape ()."""

    shape: tuple[int, ...]
    element: Element

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"tile<{'x'.join(map(str, (*self.shape, self.element)))}>"


@dataclass(frozen=True)
class TokenType:
    def __str__(self) -> str:
        return "token"


@dataclass(frozen=True)
class TensorViewType:
    """A tensor in memory. Strides are in elements. An extent or a stride is None if it is known only at run time."""

    shape: tuple[int | None, ...]
    element: str
    strides: tuple[int | None, ...]


@dataclass(frozen=True)
class PartitionViewType:
    """A tensor divided into adjacent tiles. Axis a of a tile is along the tensor's axis ``dim_map[a]``.

    padding: the value of elements outside the tensor: ``zero``, ``neg_zero``, ``nan``, ``pos_inf`` or ``neg_inf``. None
        means that the value is undefined.
    """

    tile: tuple[int, ...]
    dim_map: tuple[int, ...]
    padding: str | None
    tensor: TensorViewType


@dataclass(frozen=True)
class StridedViewType:
    """A tensor divided into tiles that start ``traversal_strides`` elements apart."""

    tile: tuple[int, ...]
    traversal_strides: tuple[int, ...]
    dim_map: tuple[int, ...]
    padding: str | None
    tensor: TensorViewType


@dataclass(frozen=True)
class GatherScatterViewType:
    """A tensor accessed by tiles, with an index for each element along ``sparse_dim``."""

    tile: tuple[int, ...]
    sparse_dim: int
    padding: str | None
    tensor: TensorViewType


ViewType: TypeAlias = PartitionViewType | StridedViewType | GatherScatterViewType
Type: TypeAlias = TileType | TokenType | TensorViewType | ViewType


@dataclass(frozen=True)
class Location:
    """A position in the source. ``caller``: the position of the call, if this position is in an inlined function."""

    file: str
    line: int
    column: int = 0
    caller: Location | None = None

    @property
    def outermost(self) -> Location:
        """The position in the kernel itself, not in a function that the kernel calls."""
        return self.caller.outermost if self.caller else self

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}"


@dataclass(frozen=True)
class Constant:
    """The value of a ``constant`` or a ``global``.

    values: one number for all elements, or a number for each element in row-major order.
    is_bits: whether the numbers are the bits of floating-point elements, as in the text (``0x7FC00000``).
    """

    element: str
    values: tuple[int | float | bool, ...]
    is_bits: bool = False


@dataclass(frozen=True)
class Assumption:
    """The predicate of ``assume``. There are three kinds:

    ``div_by`` has the ``divisor``, and optionally groups of ``every`` elements along the axis ``along``.
    ``same_elements`` has ``values``, the shape of the groups of equal elements.
    ``bounded`` has ``low`` and ``high``. None means that there is no such bound.
    """

    kind: str
    divisor: int = 1
    every: int | None = None
    along: int | None = None
    values: tuple[int, ...] = ()
    low: int | None = None
    high: int | None = None


Attribute: TypeAlias = "str | int | float | Constant | Assumption | tuple[Attribute, ...] | Hints | None"
Hints: TypeAlias = Mapping[str, Mapping[str, int | bool]]
"""The values of compiler hints, by architecture (or ``default``) and name of the hint."""


VARIADIC = frozenset({"index", "dynamicShape", "dynamicStrides", "operands", "args", "indices"})
"""Operands that may have any number of values."""


@dataclass(frozen=True, eq=False)
class Region:
    """A list of operations inside another operation. ``arguments``: pairs of a name, with its ``%``, and a type."""

    arguments: tuple[tuple[str, Type], ...]
    body: tuple[Op, ...]


@dataclass(frozen=True, eq=False)
class Op:
    """One operation. Values are named as in the text, with their ``%``. A name is unique in its kernel entry.

    operands: maps the dialect's name of an operand to the names of its values; () if the operand is absent.
    text_line: line in the text, from 1.
    """

    name: str
    results: tuple[str, ...]
    result_types: tuple[Type, ...]
    operands: Mapping[str, tuple[str, ...]]
    operand_types: Mapping[str, tuple[Type, ...]]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    regions: tuple[Region, ...] = ()
    location: Location | None = None
    text_line: int = 0

    @cached_property
    def address(self) -> str | None:
        """The name of the view or pointers that a memory operation accesses; None for other operations."""
        if not self.name.endswith("_tko"):
            return None
        places = (self.operands.get(name, ()) for name in ("view", "source", "destination", "pointers"))
        return next((place[0] for place in places if place), None)

    @cached_property
    def given(self) -> tuple[tuple[str, tuple[str, ...], bool], ...]:
        """The operands that the interpreter passes to a handler: name, values, and whether they are passed as a tuple.

        Tokens and absent operands are not passed.
        """
        kept = ((name, names, name in VARIADIC) for name, names in self.operands.items())
        return tuple(each for each in kept if each[2] or (each[1] and each[0] not in ("token", "tokens")))

    def tile(self, operand: str | None = None) -> TileType:
        """Returns the type of ``operand``, by default of the first result. The type must be a tile."""
        type_ = self.operand_types[operand][0] if operand else self.result_types[0]
        assert isinstance(type_, TileType), f"{self.name}: {operand or 'the result'} is {type_}"
        return type_

    def walk(self) -> Iterator[Op]:
        """Yields this operation and all operations inside its regions, in the order of the text."""
        yield self
        for region in self.regions:
            for inner in region.body:
                yield from inner.walk()


@dataclass(frozen=True, eq=False)
class Global:
    name: str
    type: TileType
    value: Constant
    alignment: int = 0


@dataclass(frozen=True, eq=False)
class KernelEntry:
    name: str
    parameters: tuple[tuple[str, Type], ...]
    body: tuple[Op, ...]
    hints: Hints = field(default_factory=dict)
    location: Location | None = None

    def walk(self) -> Iterator[Op]:
        """Yields all operations in the order of the text. They are listed once, because a check runs a kernel often."""
        return iter(self._ops)

    @cached_property
    def _ops(self) -> tuple[Op, ...]:
        return tuple(inner for op in self.body for inner in op.walk())


@dataclass(frozen=True, eq=False)
class TileModule:
    entries: tuple[KernelEntry, ...]
    globals: tuple[Global, ...] = ()

    def entry(self, name: str | None = None) -> KernelEntry:
        """Returns the entry of this name, by default the only entry. Raises LookupError if there is not exactly one."""
        entries = [entry for entry in self.entries if name in (None, entry.name)]
        if len(entries) != 1:
            names = ", ".join(entry.name for entry in self.entries)
            raise LookupError(f"{len(entries)} kernels called '{name or 'any'}'; the module has: {names}")
        return entries[0]
