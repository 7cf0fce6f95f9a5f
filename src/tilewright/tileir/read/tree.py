"""A Tile IR module as a small typed tree. `reader` builds it; everything else reads it.

Names are Tile IR's own. An operation's operands and attributes are kept by the names that the dialect gives them
(``lhs``, ``rounding_mode``, ``memory_ordering_semantics`` …).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True)
class PointerType:
    pointee: str
    """Element type, e.g. ``bf16``."""

    def __str__(self) -> str:
        return f"ptr<{self.pointee}>"


Element: TypeAlias = "str | PointerType"
"""``i1 i4 i8 i16 i32 i64 f16 bf16 f32 tf32 f64 f8E4M3FN f8E5M2 f8E8M0FNU f4E2M1FN …`` or a pointer."""


@dataclass(frozen=True)
class TileType:
    """A tile; a scalar has the shape ()."""

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
    """``None``: an extent or a stride (in elements) that is known only at run time."""

    shape: tuple[int | None, ...]
    element: str
    strides: tuple[int | None, ...]


@dataclass(frozen=True)
class PartitionViewType:
    """Tiles side by side: tile axis a lies along the tensor's axis ``dim_map[a]``."""

    tile: tuple[int, ...]
    dim_map: tuple[int, ...]
    padding: str | None
    """``zero``, ``neg_zero``, ``nan``, ``pos_inf``, ``neg_inf``; None leaves what is outside undefined."""
    tensor: TensorViewType


@dataclass(frozen=True)
class StridedViewType:
    """Tiles at a distance of ``traversal_strides`` elements from one another."""

    tile: tuple[int, ...]
    traversal_strides: tuple[int, ...]
    dim_map: tuple[int, ...]
    padding: str | None
    tensor: TensorViewType


@dataclass(frozen=True)
class GatherScatterViewType:
    """Tiles whose indices along ``sparse_dim`` are given one by one."""

    tile: tuple[int, ...]
    sparse_dim: int
    padding: str | None
    tensor: TensorViewType


ViewType: TypeAlias = PartitionViewType | StridedViewType | GatherScatterViewType
Type: TypeAlias = TileType | TokenType | TensorViewType | ViewType


@dataclass(frozen=True)
class Location:
    """A place in the source; ``caller`` is where an inlined function was called from."""

    file: str
    line: int
    column: int = 0
    caller: Location | None = None

    @property
    def outermost(self) -> Location:
        """The place in the kernel itself, not in what it calls."""
        return self.caller.outermost if self.caller else self

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}"


@dataclass(frozen=True)
class Constant:
    """The value of a ``constant`` or a ``global``: one number for all elements, or one for each in row-major order.
    Floating-point elements are Python floats (also inf and nan), or integers where the text gives the bits
    (``0x7FC00000``), then ``is_bits``."""

    element: str
    values: tuple[int | float | bool, ...]
    is_bits: bool = False


@dataclass(frozen=True)
class Assumption:
    """The predicate of ``assume``. ``kind`` is ``div_by`` (``divisor``; ``every`` elements along ``along`` where
    given), ``same_elements`` (``values`` is the shape of the equal groups) or ``bounded`` (``low`` and ``high``, None
    where open)."""

    kind: str
    divisor: int = 1
    every: int | None = None
    along: int | None = None
    values: tuple[int, ...] = ()
    low: int | None = None
    high: int | None = None


Attribute: TypeAlias = "str | int | float | Constant | Assumption | tuple[Attribute, ...] | Hints | None"
Hints: TypeAlias = Mapping[str, Mapping[str, int | bool]]
"""Architecture (or ``default``) → compiler hint → value."""


@dataclass(frozen=True, eq=False)
class Region:
    arguments: tuple[tuple[str, Type], ...]
    """Names (with their %) and types."""
    body: tuple[Op, ...]


@dataclass(frozen=True, eq=False)
class Op:
    """One operation. Values are named as in the text, with their ``%``; a name is unique in its entry."""

    name: str
    results: tuple[str, ...]
    result_types: tuple[Type, ...]
    operands: Mapping[str, tuple[str, ...]]
    """By the dialect's name of the operand; () for an optional one that is absent."""
    operand_types: Mapping[str, tuple[Type, ...]]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    regions: tuple[Region, ...] = ()
    location: Location | None = None
    text_line: int = 0
    """Line of the disassembly, from 1."""

    @property
    def address(self) -> str | None:
        """The value that says where a memory operation goes, a view or pointers; None for other operations."""
        if not self.name.endswith("_tko"):
            return None
        places = (self.operands.get(name, ()) for name in ("view", "source", "destination", "pointers"))
        return next((place[0] for place in places if place), None)

    def tile(self, operand: str | None = None) -> TileType:
        """The type of the first result, or of an operand, where it is a tile."""
        type_ = self.operand_types[operand][0] if operand else self.result_types[0]
        assert isinstance(type_, TileType), f"{self.name}: {operand or 'the result'} is {type_}"
        return type_

    def walk(self) -> Iterator[Op]:
        """This operation and all those inside its regions, in the order of the text."""
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
        for op in self.body:
            yield from op.walk()


@dataclass(frozen=True, eq=False)
class TileModule:
    entries: tuple[KernelEntry, ...]
    globals: tuple[Global, ...] = ()

    def entry(self, name: str | None = None) -> KernelEntry:
        """The one named, or the only one. Raises LookupError where there is none of the name, or several."""
        found = [one for one in self.entries if name in (None, one.name)]
        if len(found) != 1:
            raise LookupError(f"{len(found)} entries '{name or 'any'}'; has: {', '.join(e.name for e in self.entries)}")
        return found[0]
