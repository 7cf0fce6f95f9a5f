"""The text of a task file for a captured launch: `TaskDraft` has all decisions, and writes them as Python.

`Dimensions` says which extents of the launch are dimensions of its task, and how the others depend on them. Equal
extents are one dimension. How far a launch can be scaled is a guess (`Scaling`), which is tried on small shapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path

from tilewright.languages.cutile.cutile import DIVISOR
from tilewright.records import Value
from tilewright.runtime.capture import facts
from tilewright.runtime.capture.described import WHOLE, Argument, DescribedLaunch
from tilewright.runtime.capture.facts import CapturedLaunch, DeclaredArray, Factor, Form, IndexArray
from tilewright.runtime.capture.rebuilding import PROGRAM
from tilewright.source.needed import is_quiet, source_of_needed
from tilewright.space import knobs

HINTS: Mapping[str, tuple[int | None, ...]] = {
    "occupancy": (None, 1, 2, 4), "num_ctas": (None, 1, 2), "num_worker_warps": (None, 8),
}  # fmt: skip


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
        return _named(free, self.form or (), {*self.arrays, *facts.RESERVED})

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
        return facts.last_number(
            array, {extent: self.factor(extent) for extent in self._reached() if self.knows(extent)}
        )

    def beyond(self, name: str) -> str | int:
        """The bound of an array's numbers: an extent, if the largest is an index or a length in it; else a number."""
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


@dataclass(frozen=True)
class TaskDraft:
    """Everything that a task file says about a captured launch."""

    captured: CapturedLaunch
    heading: str
    """The first line of the docstring: where the launch is from."""
    form: tuple[Form, ...] | None
    """Of the grid; None if no rule explains it."""
    knobs: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    """Constants that may vary, with their values."""
    sizes: tuple[str, ...] = ()
    """Constants that are only tile sizes, even if they equal an extent."""
    work: tuple[float, Mapping[str, int]] = (1.0, {})
    """FLOP: a factor, and the power of each dimension."""
    independent: tuple[str, ...] = ()
    scaling: Scaling = SCALINGS[0]
    notes: tuple[str, ...] = ()
    """What stays as it was captured, and why."""

    @property
    def launch(self) -> DescribedLaunch:
        return self.captured.launch

    @cached_property
    def arrays(self) -> dict[str, tuple[Argument, DeclaredArray]]:
        return {array.name: (array, facts.declared_array(array.spec)) for array in self.launch.arrays()}

    @cached_property
    def dimensions(self) -> Dimensions:
        """Without names if the grid has no rule, or if an array is not a dense block: it cannot be scaled."""
        flat = any(how.flat for _, how in self.arrays.values())
        free = not flat and (self.form is not None or self.captured.persistent)
        known = {
            name: facts.contents(array) for name, (array, _) in self.arrays.items() if name not in self.captured.filled
        }
        return Dimensions(
            {name: how for name, (_, how) in self.arrays.items()},
            self.captured.index_arrays,
            {name: max(numbers) for name, numbers in known.items() if numbers},
            self.form,
            self.scaling if free else NOTHING,
        )

    @property
    def dims(self) -> dict[int, str]:
        """Extent → its name."""
        return self.dimensions.names

    @cached_property
    def free(self) -> tuple[str, ...]:
        """Dimensions such as a batch: no tile divides them, none is contiguous, and no index array counts them."""
        tiled = {factor.extent for axis in self.form or () for factor in axis if factor.tile}
        last = {how.shape[-1] for _, how in self.arrays.values() if how.shape}
        steered = self.dimensions.steered
        return tuple(name for extent, name in self.dims.items() if extent not in tiled | last and name not in steered)

    @property
    def shipped(self) -> dict[str, Value]:
        constants = {name: self.launch.constants[name] for name in self.knobs}
        hints = {name: value for name, value in self.launch.hints.items() if name != "opt_level" or value != 3}
        return {**constants, **hints}

    def text(self) -> str:
        return "\n".join((*self._head(), *self._kernel(), *self._launch(), *self._task())) + "\n"

    def _head(self) -> Iterator[str]:
        yield f'"""{self.heading}'
        yield ""
        yield "Written by `tilewright captured task`. Nobody wrote down what this kernel should compute: its reference"
        yield 'is the captured kernel itself, in float64. So "correct" means: as the captured kernel, not: right.'
        for note in self.notes:
            yield f"{note[0].upper()}{note[1:]}."
        yield from ('"""', "")

    def _kernel(self) -> Iterator[str]:
        root, as_declared = self._root(), all(how == DeclaredArray(how.shape) for _, how in self.arrays.values())
        names = "Captured" if as_declared else "Captured, viewed"
        yield from ("import sys", "") if root else ()
        yield from ("import tilewright as tw", f"from tilewright.runtime.capture.reference import {names}")
        yield ""
        yield from (f"sys.path.insert(0, {root!r})", "") if root else ()
        if self.copied:
            yield f"# What the kernel needs of {self.launch.file}, which does other things when it is loaded."
            yield from ("", source_of_needed(Path(self.launch.file), self.launch.qualname), "")
        else:
            where = self.launch.module if "." in self.launch.module else self.launch.file
            yield from (f"module = tw.editable({where!r})", "", "")

    def _launch(self) -> Iterator[str]:
        names = ", ".join((*self.arrays, *self.dims.values(), "config"))
        yield f"def launched(kernel, {names}):"
        yield '    """As it was captured, with the configuration that ``config`` says."""'
        args = "".join(f"\n        {self._argument(argument)}," for argument in self.launch.arguments)
        yield f"    return tw.Launch(kernel, {self._grid()}, ({args}\n    ))"
        kernel = self.launch.qualname if self.copied else f"module.{self.launch.qualname}"
        yield from ("", "", f"def launch({names}):", f"    return launched({kernel}, {names})", "", "")
        factor, powers = self.work
        work = " * ".join((f"{factor:.6g}", *(name for name, power in powers.items() for _ in range(power))))
        yield from (f"def flops({', '.join(self.dims.values())}):", f"    return {work}", "", "")

    def _task(self) -> Iterator[str]:
        launch = self.launch
        yield "TENSORS = {"
        yield from (f"    {name!r}: {spec}," for array in self.arrays for name, spec in self._tensors(array))
        yield from ("}", f"SHIPPED = {self.shipped!r}", "")
        yield "captured = Captured("
        yield from (f"    {name}={getattr(launch, name)!r}," for name in ("module", "file", "qualname", "source"))
        yield "    tensors=TENSORS, launch=launched, shipped=SHIPPED, flops=flops,"
        yield from (")", "", "task = tw.Task(", f"    name={launch.kernel!r},", "    tensors=TENSORS,")
        yield from ("    reference=captured.reference,", "    trusted=captured.trusted,", "    launch=launch,")
        yield "    flops=flops,"
        if self.independent:
            yield f"    independent={self.independent!r},  # found by trying"
        if not self.captured.orderly:
            yield "    deterministic=False,  # blocks add to one place, in any order"
        yield f"    serves={self._serves()},"
        yield "    space=tw.Space("
        yield f"        constants={dict(self.knobs)!r},"
        yield f"        hints={self._hints()!r},"
        yield from ("        shipped=SHIPPED,", "    ),")
        yield f"    workloads={{'captured': { {name: extent for extent, name in self.dims.items()}!r}}},"
        yield ")"

    @property
    def copied(self) -> bool:
        """Whether the file holds a copy of the kernel, because loading the kernel's own file would run a program."""
        return self.launch.module == PROGRAM and not is_quiet(Path(self.launch.file))

    def _root(self) -> str | None:
        """The folder to import the kernel's package from, where it is not installed."""
        if "." not in self.launch.module:
            return None
        import importlib.util

        top, file = self.launch.module.split(".")[0], Path(self.launch.file)
        spec = importlib.util.find_spec(top)
        if spec is not None and any(file.is_relative_to(place) for place in spec.submodule_search_locations or ()):
            return None
        return str(file.parents[self.launch.module.count(".") + (file.name == "__init__.py")])

    def _tensors(self, name: str) -> Iterator[tuple[str, str]]:
        """The declarations of an array. One that is read and written is also declared as it was before the launch."""
        argument, how = self.arrays[name]
        shape, dtype = tuple(self.dimensions.entry(extent) for extent in how.shape), argument.spec.dtype
        if name not in self.captured.filled:
            read = f"tw.Tensor({shape!r}, {dtype!r}{self._distribution(argument)})"
            if name not in self.captured.updated:
                yield name, read
                return
            before = facts.free_name(f"{name}_before", {*self.arrays, *self.dims.values(), *facts.RESERVED})
            yield before, read
            beside = f", updates={before!r}"
        else:
            shared = (one.name for one, _ in self.arrays.values() if one.storage == argument.storage)
            source = next((other for other in shared if other != name), None)
            beside = f", in_place_of={source!r}" if source else ""
        yield name, f"tw.Output({shape!r}, {dtype!r}{beside})"

    def _distribution(self, argument: Argument) -> str:
        """Integers are drawn within the captured range, so that an index stays an index."""
        if not argument.spec.dtype.startswith(WHOLE):
            return ""
        if (index_array := self.captured.index_arrays.get(argument.name)) is not None:
            return f", {index_array.text(self.dimensions.last(index_array))}"
        numbers = facts.contents(argument)
        return f", {facts.among(numbers, self.dimensions.beyond(argument.name))}" if numbers else ", tw.integers(0, 1)"

    def _argument(self, argument: Argument) -> str:
        if argument.kind == "array":
            return self._view(argument.name)
        if argument.kind == "list":
            return f"[{', '.join(self._argument(item) for item in argument.items)}]"
        if argument.name in self.knobs:
            return f"config.{argument.name}"
        if type(argument.value) is int and argument.value > 1 and argument.name not in self.sizes:
            return self._number(argument.name, argument.value)
        return repr(argument.value)

    def _number(self, name: str, value: int) -> str:
        """An integer, as an expression of dimensions if it equals an extent, or the power of two above one. The number
        of blocks stays a number if the grid does."""
        if self.form is None and value == math.prod(self.launch.grid):
            return repr(value)
        if self.dimensions.knows(value):
            return str(self.dimensions.entry(value))
        if knobs.is_tile(name):
            for extent, dim in self.dims.items():
                if value // 2 < extent < value and knobs.is_power_of_two(value):
                    return f"1 << ({dim} - 1).bit_length()"
        return repr(value)

    def _view(self, name: str) -> str:
        argument, how = self.arrays[name]
        if how.flat:
            return f"viewed({name}, {argument.spec.shape!r}, {argument.spec.strides!r})"
        if how.order is None:
            return name
        extents = [self.dimensions.factor(extent) for extent in how.shape]
        shape = ", ".join(extents[axis] for axis in how.order)
        strides = ", ".join(" * ".join(extents[axis + 1 :]) or "1" for axis in how.order)
        return f"viewed({name}, ({shape},), ({strides},))"

    def _grid(self) -> str:
        if self.form is None:
            return repr(self.launch.grid)
        axes = (" * ".join(self._factor(factor) for factor in form) or "1" for form in self.form)
        return f"({', '.join(axes)},)"

    def _factor(self, factor: Factor) -> str:
        name = self.dimensions.factor(factor.extent)
        if factor.tile is None:
            return name
        tile = f"config.{factor.tile}" if factor.tile in self.knobs else self.launch.constants[factor.tile]
        return f"-(-{name} // {tile})"

    def _serves(self) -> str:
        """Extents up to the captured ones, with the same divisors: a kernel may rely on both."""
        if not self.dims:
            return "lambda: True"
        conditions, sizes = [], facts.tiles(self.launch)
        # The captured tiles divide the same extents. `verify.shapes` reduces an extent to one or two tiles, and half a
        # tile is the least that is tried, so some small shape is always served.
        largest = max([DIVISOR, *(value for name, value in sizes.items() if name in self.knobs)])
        for extent, name in self.dims.items():
            alone = name in self.free or name in self.dimensions.counted
            modulus = 1 if alone else math.gcd(extent, largest)
            conditions.append(f"{name} <= {extent}" + (f" and {name} % {modulus} == 0" if modulus > 1 else ""))
            if any(value == extent and name not in self.knobs for name, value in sizes.items()):
                conditions.append(f"{name} & ({name} - 1) == 0")
        return f"lambda {', '.join(self.dims.values())}: {' and '.join(conditions)}"

    def _hints(self) -> dict[str, tuple[Value, ...]]:
        shipped = {name: value for name, value in self.shipped.items() if name in knobs.HINTS}
        return {name: tuple(dict.fromkeys((value, *HINTS.get(name, ())))) for name, value in shipped.items()}
