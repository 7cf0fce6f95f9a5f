"""Which extents of a captured launch are dimensions of its task, and how the others depend on them.

Equal extents are one dimension. How far a launch can be scaled is a guess (`Scaling`), which is tried on small shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count

from tilewright.runtime.capture.facts import RESERVED, DeclaredArray, Form, IndexArray, last_number

Made = tuple[str, tuple[int, ...]]
"""An expression with ``{}`` for each of these extents."""


@dataclass(frozen=True)
class Scaling:
    """What may change. linked: rows that are twice as long as others stay so. index_arrays: also the lengths of integer
    arrays, and the axes that they index. any: anything at all."""

    linked: bool = False
    index_arrays: bool = True
    any: bool = True


SCALINGS = (Scaling(), Scaling(linked=True), Scaling(index_arrays=False), Scaling(linked=True, index_arrays=False))
"""The most general first."""
NOTHING = Scaling(any=False)


@dataclass(frozen=True)
class Dimensions:
    """``arrays``: as they are declared. ``largest``: the largest number in each integer array with known contents.
    ``index_arrays``: those of them that rise. ``form``: of the grid."""

    arrays: Mapping[str, DeclaredArray]
    index_arrays: Mapping[str, IndexArray]
    largest: Mapping[str, int]
    form: tuple[Form, ...] | None
    scaling: Scaling

    @cached_property
    def names(self) -> dict[int, str]:
        """Extent → its name."""
        if not self.scaling.any:
            return {}
        every = (extent for array in self.arrays.values() for extent in array.shape)
        extents = dict.fromkeys(self._after[extent][1][0] if extent in self._after else extent for extent in every)
        left_out = self._stay | self._made.keys()
        free = [extent for extent in extents if extent > 1 and extent not in left_out]
        return _named(free, self.form or (), {*self.arrays, *RESERVED})

    def entry(self, extent: int) -> str | int:
        """An extent in a shape: a name, an expression, or the number."""
        if self.names and extent in self._made:
            text, parts = self._made[extent]
            return text.format(*(self.factor(part) for part in parts))
        return self.names.get(extent, extent)

    def factor(self, extent: int) -> str:
        """An extent in a product."""
        text = str(self.entry(extent))
        return f"({text})" if " " in text else text

    def knows(self, extent: int) -> bool:
        """Whether it is a dimension, or depends on some."""
        return extent in self.names or bool(self.names and extent in self._made)

    def last(self, array: IndexArray) -> str | int:
        """The last number of an index array."""
        return last_number(array, {extent: self.factor(extent) for extent in self._reached() if self.knows(extent)})

    def beyond(self, name: str) -> str | int:
        """The bound of the numbers of an array: an extent, if the largest number is an index or a length
        in it; else a number."""
        largest, reached = self.largest[name], self._reached()
        if largest + 1 in reached:
            return self.entry(largest + 1)
        return f"{self.factor(largest)} + 1" if largest in reached and self.knows(largest) else largest + 1

    @cached_property
    def counted(self) -> frozenset[str]:
        """Dimensions that count the steps of index arrays, such as sequences."""
        return frozenset(self.names[steps] for _, (steps,) in self._after.values() if steps in self.names)

    @cached_property
    def steered(self) -> frozenset[str]:
        """Dimensions that the lengths or the numbers of index arrays depend on. They cannot be cut into slices."""
        arrays = self.index_arrays.values()
        ends = (str(end) for array in arrays for end in (self.last(array), self.entry(len(array.numbers))))
        words = {word for end in ends for word in end.replace("(", " ").replace(")", " ").split()}
        return frozenset(name for name in self.names.values() if name in words)

    @cached_property
    def _made(self) -> dict[int, Made]:
        return {**self._twice, **self._products, **self._after}

    @cached_property
    def _products(self) -> dict[int, Made]:
        """Extents that only flattened arrays have, and that are the product of two others."""
        shapes = [array.shape for array in self.arrays.values()]
        flattened = {shape[0] for shape in shapes if len(shape) == 1}
        others = sorted({extent for shape in shapes for extent in shape if extent > 1})
        flattened -= {extent for shape in shapes if len(shape) > 1 for extent in shape}
        pairs = {
            extent: [(a, b) for a in others for b in others if a <= b < extent and a * b == extent]
            for extent in flattened - self._stay
        }
        return {extent: ("{} * {}", factors[0]) for extent, factors in pairs.items() if len(factors) == 1}

    @cached_property
    def _twice(self) -> dict[int, Made]:
        """Rows that are twice as long as others: rotary embeddings have rows of two halves, and cosines for one."""
        rows = {array.shape[-1] for array in self.arrays.values() if len(array.shape) > 1 and self.scaling.linked}
        return {
            extent: ("{} * 2", (extent // 2,))
            for extent in rows - self._stay
            if extent % 2 == 0 and extent // 2 in rows and extent > 2
        }

    @cached_property
    def _after(self) -> dict[int, Made]:
        """Lengths that only index arrays starting with 0 have: one more than the number of their sequences."""
        lengths = {len(array.numbers) for array in self.index_arrays.values() if array.starts} - self._reached()
        return {length: ("{} + 1", (length - 1,)) for length in lengths - self._stay if length > 2}

    @cached_property
    def _stay(self) -> frozenset[int]:
        """Extents that stay numbers."""
        lengths = {len(array.numbers) for array in self.index_arrays.values()} - self._reached()
        stay = {length for length in lengths if length <= 2}
        if not self.scaling.index_arrays:
            for name, largest in self.largest.items():
                stay |= {*self.arrays[name].shape, *(extent - 1 for extent in self.arrays[name].shape)}
                stay |= {largest, *sorted(extent for extent in self._reached() if extent > largest)[:1]}
        return frozenset(stay)

    def _reached(self) -> set[int]:
        """Extents of the arrays that are not index arrays."""
        others = (array for name, array in self.arrays.items() if name not in self.index_arrays)
        return {extent for array in others for extent in array.shape}


def _named(extents: list[int], form: tuple[Form, ...], taken: set[str]) -> dict[int, str]:
    """A name for each extent: that of the tile that divides it (M of TILE_M), else D0, D1 …"""
    names: dict[int, str] = {}
    for factor in (factor for axis in form for factor in axis):
        suffix = factor.tile.rpartition("_")[2] if factor.tile else ""
        fits = suffix.isidentifier() and suffix.isupper() and suffix not in ("SIZE", "TILE", "BLOCK")
        if fits and factor.extent in extents and factor.extent not in names and suffix not in {*taken, *names.values()}:
            names[factor.extent] = suffix
    free_names = (name for name in map("D{}".format, count()) if name not in taken)
    return {extent: names.get(extent) or next(free_names) for extent in extents}
