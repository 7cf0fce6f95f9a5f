"""The text of a task file for a captured launch: `TaskDraft` has all decisions, and writes them as Python."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tilewright.languages.cutile.cutile import DIVISOR
from tilewright.records import Value
from tilewright.runtime.capture import facts
from tilewright.runtime.capture.described import WHOLE, Argument, DescribedLaunch
from tilewright.runtime.capture.dimensions import NOTHING, SCALINGS, Dimensions, Scaling
from tilewright.runtime.capture.facts import CapturedLaunch, DeclaredArray, Factor, Form
from tilewright.runtime.capture.rebuilding import PROGRAM
from tilewright.source.needed import is_quiet, source_of_needed
from tilewright.space import knobs

HINTS: Mapping[str, tuple[int | None, ...]] = {
    "occupancy": (None, 1, 2, 4), "num_ctas": (None, 1, 2), "num_worker_warps": (None, 8),
}  # fmt: skip


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
        """The whole file."""
        return "\n".join((*self._head(), *self._kernel(), *self._launch(), *self._task())) + "\n"

    # The parts of the file

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

    # Pieces

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
