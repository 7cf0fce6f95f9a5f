"""Decides which extents of a captured launch are dimensions of its task, and how other extents depend on them.

Equal extents are one dimension, except rows (`facts.Row`). Which extents may change is a guess (`Scaling`), and the
guess is tried on small shapes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count

from tilewright.runtime.capture import facts, index_arrays
from tilewright.runtime.capture.facts import DeclaredArray, Form
from tilewright.runtime.capture.index_arrays import IndexArray
from tilewright.runtime.capture.scaling import Scaling

Derived = tuple[str, tuple[int, ...]]
"""A format string for an expression, and the extents to put into its ``{}``."""


@dataclass(frozen=True)
class Dimensions:
    """The dimensions of a task.

    arrays: as the task declares them.
    index_arrays: facts about arrays of non-decreasing integers, by the array's name.
    products: maps an integer argument or an extent that is a product of extents to these extents.
    numbers: the integer arguments.
    largest: the largest element of each integer array with known contents, by the array's name.
    form: the form of the grid; None if no rule explains the grid.
    """

    arrays: Mapping[str, DeclaredArray]
    index_arrays: Mapping[str, IndexArray]
    largest: Mapping[str, int]
    products: Mapping[int, tuple[int, ...]]
    numbers: frozenset[int]
    form: tuple[Form, ...] | None
    scaling: Scaling

    @cached_property
    def names(self) -> dict[int, str]:
        """Maps each extent that is a dimension to the dimension's name."""
        if not self.scaling.any:
            return {}
        every = (extent for array in self.arrays.values() for extent in array.shape)
        parts = (part for whole in every for part in self._parts(whole))
        extents = dict.fromkeys(parts)
        left_out = self._constant | self._derived.keys()
        free = [extent for extent in extents if extent > 1 and extent not in left_out]
        return _named(free, self.form or (), {*self.arrays, *facts.RESERVED})

    def _parts(self, extent: int) -> tuple[int, ...]:
        """Returns the extents on which an extent depends that no other array may have, else the extent itself."""
        return self._lengths[extent][1] if extent in self._lengths else self.products.get(extent, (extent,))

    def entry(self, extent: int) -> str | int:
        """Returns an extent as an entry of a shape: the name of a dimension, an expression, or the number."""
        if self.names and extent in self._derived:
            text, parts = self._derived[extent]
            return text.format(*(self.factor(part) for part in parts))
        return self.names.get(extent, extent)

    def factor(self, extent: int) -> str:
        """Returns an extent as a factor of a product, in brackets if it is an expression."""
        text = str(self.entry(extent))
        return f"({text})" if " " in text else text

    def knows(self, extent: int) -> bool:
        """Returns whether an extent is a dimension, or depends on dimensions."""
        return extent in self.names or bool(self.names and extent in self._derived)

    def last(self, array: IndexArray) -> str | int:
        known = {extent: self.factor(extent) for extent in self._array_extents if self.knows(extent)}
        return index_arrays.last_number(array, known)

    def upper_bound(self, name: str) -> str | int:
        """Returns the exclusive upper bound of the numbers in an integer array. The bound is an expression of
        dimensions if the largest number is an extent, or an extent minus 1, or if this is the guess. Otherwise it is a
        number."""
        largest, extents = self.largest[name], self._array_extents
        if self.scaling.below and (larger := [extent for extent in extents if extent > largest]):
            return self.entry(min(larger))
        if largest + 1 in extents:
            return self.entry(largest + 1)
        return f"{self.factor(largest)} + 1" if largest in extents and self.knows(largest) else largest + 1

    @cached_property
    def counted(self) -> frozenset[str]:
        """The dimensions that give the number of sequences of an index array."""
        return frozenset(self.names[steps] for _, (steps,) in self._lengths.values() if steps in self.names)

    @cached_property
    def indexed(self) -> frozenset[str]:
        """The dimensions that affect the number of entries, or the last number, of an index array. A task must not cut
        them into slices."""
        arrays = self.index_arrays.values()
        ends = (str(end) for array in arrays for end in (self.last(array), self.entry(len(array.numbers))))
        words = {word for end in ends for word in end.replace("(", " ").replace(")", " ").split()}
        return frozenset(name for name in self.names.values() if name in words)

    @cached_property
    def _derived(self) -> dict[int, Derived]:
        """Maps each extent that depends on dimensions to its expression."""
        several = {number: (" * ".join(["{}"] * len(factors)), factors) for number, factors in self.products.items()}
        return {**several, **self._twice, **self._blocks, **self._products, **self._lengths}

    @cached_property
    def _products(self) -> dict[int, Derived]:
        """Maps extents to products of two other extents, such as ``M * N``. Only flattened arrays have such extents."""
        shapes = [array.shape for array in self.arrays.values()]
        flattened = {shape[0] for shape in shapes if len(shape) == 1}
        others = sorted({extent for shape in shapes for extent in shape if extent > 1})
        flattened -= {extent for shape in shapes if len(shape) > 1 for extent in shape}
        products: dict[int, Derived] = {}
        for extent in flattened - self._constant:
            factors = [(a, b) for a in others for b in others if a <= b < extent and a * b == extent]
            if len(factors) == 1:
                products[extent] = ("{} * {}", factors[0])
        return products

    @cached_property
    def _twice(self) -> dict[int, Derived]:
        """Maps row lengths that are twice another row length to ``N * 2``. For example, a cosine row of rotary
        embeddings is half as long as a data row."""
        rows = {array.shape[-1] for array in self.arrays.values() if len(array.shape) > 1 and self.scaling.linked}
        doubled = {extent for extent in rows - self._constant if extent % 2 == 0 and extent // 2 in rows and extent > 2}
        return {extent: ("{} * 2", (extent // 2,)) for extent in doubled}

    @cached_property
    def _blocks(self) -> dict[int, Derived]:
        """Maps the extents of an array with one element for each block of another array to ``N // 128``.

        Each of its axes is as long as that of the other array, or shorter by a factor that is an argument. There are
        more blocks than elements along a block; otherwise a few blocks share the work, and their length may change.
        A flat array whose length is a product of two other extents has none.
        """
        shapes = {array.shape for array in self.arrays.values() if self.scaling.blocks}
        found: dict[int, Derived] = {}
        for shape, whole in itertools.permutations(shapes, 2):
            shorter = {a: b // a for a, b in zip(shape, whole, strict=False) if a != b and a > 1 and not b % a}
            if (
                len(shape) == len(whole) and len(shorter) == sum(a != b for a, b in zip(shape, whole, strict=True))
                and self.numbers.issuperset(shorter.values()) and math.prod(shorter) > max(shorter.values(), default=0)
            ):  # fmt: skip
                found |= {a: (f"{{}} // {factor}", (a * factor,)) for a, factor in shorter.items()}
        whole_extents = {extent for _, (extent,) in found.values()}
        left_out = whole_extents | self._constant
        return {
            extent: (text, whole) for extent, (text, whole) in found.items()
            if extent not in left_out and not self._products.keys() & whole
        }  # fmt: skip

    @cached_property
    def _lengths(self) -> dict[int, Derived]:
        """Maps lengths of index arrays that start with 0 to the number of sequences plus one. Leaves out lengths that
        are also extents of other arrays."""
        lengths = {len(array.numbers) for array in self.index_arrays.values() if array.starts} - self._array_extents
        return {length: ("{} + 1", (length - 1,)) for length in lengths - self._constant if length > 2}

    @cached_property
    def _constant(self) -> frozenset[int]:
        """The extents that stay numbers: they become no dimensions."""
        lengths = {len(array.numbers) for array in self.index_arrays.values()} - self._array_extents
        constant = {length for length in lengths if length <= 2} | self.scaling.kept
        if not self.scaling.index_arrays:
            for name, largest in self.largest.items():
                constant |= {*self.arrays[name].shape, *(extent - 1 for extent in self.arrays[name].shape)}
                constant |= {largest, *sorted(extent for extent in self._array_extents if extent > largest)[:1]}
        return frozenset(constant)

    @cached_property
    def _array_extents(self) -> set[int]:
        """The extents of all arrays that are not index arrays."""
        others = (array for name, array in self.arrays.items() if name not in self.index_arrays)
        return {extent for array in others for extent in array.shape}


def _named(extents: list[int], form: tuple[Form, ...], taken: set[str]) -> dict[int, str]:
    """Maps each extent to the name of its dimension. If a tile divides the extent, the name comes from the tile (M for
    TILE_M). The other names are D0, D1 …"""
    names: dict[int, str] = {}
    for factor in (factor for axis in form for factor in axis):
        suffix = factor.tile.rpartition("_")[2] if factor.tile else ""
        fits = suffix.isidentifier() and suffix.isupper() and suffix not in ("SIZE", "TILE", "BLOCK")
        if fits and factor.extent in extents and factor.extent not in names and suffix not in {*taken, *names.values()}:
            names[factor.extent] = suffix
    free_names = (name for name in map("D{}".format, count()) if name not in taken)
    return {extent: names.get(extent) or next(free_names) for extent in extents}
