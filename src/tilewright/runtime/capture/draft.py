"""Generates the text of a task file for a captured launch. `TaskDraft` has all decisions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from tilewright.records import Value
from tilewright.runtime.capture import facts, index_arrays
from tilewright.runtime.capture.described import INTERMEDIATE, MODULE, WHOLE, Argument, DescribedLaunch
from tilewright.runtime.capture.dimensions import Dimensions
from tilewright.runtime.capture.drafted_launch import (
    edit_text,
    editable_text,
    launch_text,
    produced_text,
    producer_text,
    reference_text,
)
from tilewright.runtime.capture.drafted_space import DraftedSpace, literal
from tilewright.runtime.capture.facts import CapturedLaunch, DeclaredArray, Factor, Form
from tilewright.runtime.capture.languages import captured_language
from tilewright.runtime.capture.program_call import ProgramCall
from tilewright.runtime.capture.rebuilding import PROGRAM
from tilewright.runtime.capture.scaling import SCALINGS, Scaling, only_rows_change, scalings
from tilewright.source.needed import INSIDE, is_quiet, source_of_needed
from tilewright.source.source_file import SourceFile
from tilewright.space import knobs
from tilewright.task.tensors import DIVISOR
from tilewright.tools.packages import package_of


@dataclass(frozen=True)
class TaskDraft:
    """All decisions for the task file of a captured launch."""

    captured: CapturedLaunch
    heading: str
    """The first line of the file's docstring: the origin of the launch."""
    form: tuple[Form, ...] | None
    """The form of the grid; None if no rule explains it."""
    knobs: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    """The constants that may vary, with the values to try."""
    points: tuple[Mapping[str, Value], ...] = ()
    """The configurations of the program's autotuner for which the kernel gives the captured outputs."""
    sizes: tuple[str, ...] = ()
    """The constants that are treated only as tile sizes, even if they equal an extent."""
    work: tuple[float, Mapping[str, int]] = (1.0, {})
    """The FLOP of a launch as a product: a factor, and the power of each dimension."""
    independent: tuple[str, ...] = ()
    scaling: Scaling = SCALINGS[0]
    notes: tuple[str, ...] = ()
    """Sentences for the file's docstring: which numbers stay as captured, and why."""
    call: ProgramCall | None = None
    """Where the program made the launch."""

    @property
    def launch(self) -> DescribedLaunch:
        return self.captured.launch

    @cached_property
    def arrays(self) -> dict[str, tuple[Argument, DeclaredArray]]:
        return {array.name: (array, facts.declared_array(array.spec)) for array in self.launch.arrays()}

    @cached_property
    def dimensions(self) -> Dimensions:
        """The dimensions of the task. A launch that cannot be scaled has none: no rule explains its grid, and not only
        lengths of rows change, or one of its arrays is not a dense block of memory."""
        flat = any(declared.flat for _, declared in self.arrays.values())
        explained = self.form is not None or self.captured.persistent or only_rows_change(self.launch, self.scaling)
        can_scale = not flat and explained
        read = {name: array for name, (array, _) in self.arrays.items() if name not in self.captured.filled}
        known = {name: index_arrays.contents(array) for name, array in read.items()}
        scaling = self.scaling if can_scale else replace(self.scaling, any=False)
        whole = frozenset(each.value for each in self.launch.arguments if type(each.value) is int)
        return Dimensions(
            arrays={name: declared for name, (_, declared) in self.arrays.items()},
            index_arrays=self.captured.index_arrays,
            largest={name: max(numbers) for name, numbers in known.items() if numbers},
            products=self.captured.products, numbers=whole, form=self.form, scaling=scaling,
        )  # fmt: skip

    @property
    def dims(self) -> dict[int, str]:
        return self.dimensions.names

    @property
    def is_sure(self) -> bool:
        """Whether the draft uses the last guess of `scalings`, which lets the fewest numbers change."""
        return self.scaling == scalings(self.launch)[-1]

    @cached_property
    def free(self) -> tuple[str, ...]:
        """Dimensions such as a batch: not contiguous, not divided by a tile, and not related to index arrays."""
        divided = [factor.extent for axis in self.form or () for factor in axis if factor.tile]
        tiled = {part for extent in divided for part in self.captured.products.get(extent, (extent,))}
        tiled = tiled.union(*map(self.captured.tiled_extents, self.captured.tiled))
        last = {declared.shape[-1] for _, declared in self.arrays.values() if declared.shape}
        indexed = self.dimensions.indexed
        return tuple(name for extent, name in self.dims.items() if extent not in tiled | last and name not in indexed)

    @property
    def space(self) -> DraftedSpace:
        configured = tuple(name for name in self.captured.configured if name not in self.knobs)
        return DraftedSpace(self.launch, self.knobs, configured, self.points)

    def text(self) -> str:
        return "\n".join((*self._head(), *self._kernel(), *self._launch(), *self._task())) + "\n"

    def _head(self) -> Iterator[str]:
        yield from (f'"""{self.heading}', "")
        yield from self._about_reference()
        yield from (f"{note[0].upper()}{note[1:]}." for note in self.notes)
        yield from ('"""', "")

    def _about_reference(self) -> Iterator[str]:
        if self.captured.composed is not None:
            yield "Written by `tilewright captured fuse`. Its reference is both captured kernels, one after the other,"
            yield 'in float64. So "correct" means: the same as these two launches, not: right.'
            return
        yield "Written by `tilewright captured task`. Its reference is the captured kernel itself, in float64, because"
        yield 'there is no other specification. So "correct" means: the same as the captured kernel, not: right.'

    def _kernel(self) -> Iterator[str]:
        root = self._root()
        is_viewed = any(declared != DeclaredArray(declared.shape) for _, declared in self.arrays.values())
        used = {"Captured": True, "Producer": self.captured.composed is not None, "viewed": is_viewed}
        imported = ", ".join(name for name, is_used in used.items() if is_used)
        uses_dtype = any(argument.kind == "dtype" for argument in self.launch.arguments)
        yield from ("from __future__ import annotations", "") if self.copied else ()
        yield from ("import sys", "") if root else ()
        yield from ("import triton.language", "") if uses_dtype and self.launch.language == "triton" else ()
        yield from ("import tilewright as tw", f"from tilewright.runtime.capture.reference import {imported}", "")
        yield from (f"sys.path.insert(0, {root!r})", "") if root else ()
        if self.copied:
            why = "a function makes it" if INSIDE in self.launch.qualname else "loading that file would run a program"
            yield f"# The kernel with all that it needs of {self.launch.file}; {why}."
            around = {name: _defined(name, value) for name, value in self.launch.closure.items()}
            yield from ("", source_of_needed(Path(self.launch.file), self.launch.qualname, around), "")
        else:
            yield from editable_text(self.launch, self.call)

    def _launch(self) -> Iterator[str]:
        names = ", ".join((*self.arrays, *self.dims.values(), "config"))
        args = "".join(
            f"\n        {self._argument(argument)}," for argument in self.launch.arguments[: self.captured.passed]
        )
        kernel = self.launch.qualname.rpartition(INSIDE)[2] if self.copied else f"module.{self.launch.qualname}"
        launched = f"{self._grid()}, ({args}\n    )"
        if (composed := self.captured.composed) is None:
            yield from launch_text(kernel, names, launched, launched)
        else:
            own = "".join(f"\n        {text}," for text in composed.consumed(self._of_parameter))
            yield from produced_text(f"{names}, {INTERMEDIATE}", composed.produced(self._of_parameter))
            yield from launch_text(kernel, names, launched, f"{self._grid()}, ({own}\n    )", f", {INTERMEDIATE}")
        factor, powers = self.work
        work = " * ".join((f"{factor:.6g}", *(name for name, power in powers.items() for _ in range(power))))
        yield from (f"def flops({', '.join(self.dims.values())}):", f"    return {work}", "", "")

    def _of_parameter(self, name: str) -> str:
        """Returns the argument for a parameter of the fused kernel as text."""
        assert self.captured.composed is not None
        return self._argument(self.launch.arguments[self.captured.composed.fused.parameters.index(name)])

    def _task(self) -> Iterator[str]:
        launch, composed = self.launch, self.captured.composed
        yield "TENSORS = {"
        yield from (f"    {name!r}: {spec}," for array in self.arrays for name, spec in self._tensors(array))
        yield from ("}", "")
        if composed is None:
            yield from reference_text(launch, self.space.shipped, self.call)
        else:
            like = self.launch.arguments[composed.fused.parameters.index(composed.fused.whole)].name
            constants = {name: self.space.shipped[name] for name in self.space.constants}
            more = producer_text(composed.producer, constants, like, composed.dtype)
            yield from reference_text(composed.consumer, self.space.shipped, None, more)
        yield from ("", "task = tw.Task(", f"    name={launch.kernel!r},", "    tensors=TENSORS,")
        yield from ("    reference=captured.reference,", "    trusted=captured.trusted,", "    launch=launch,")
        yield "    flops=flops,"
        if not self.copied:
            yield edit_text(self.launch, self.call)
        if self.independent:
            yield f"    independent={self.independent!r},  # found by trying"
        if not self.captured.deterministic:
            yield "    deterministic=False,  # blocks add to one place, in any order"
        yield f"    serves={self._serves()},"
        yield from self.space.text()
        yield from (f"    workloads={{'captured': { {name: extent for extent, name in self.dims.items()}!r}}},", ")")

    @property
    def copied(self) -> bool:
        """Whether the task file has a copy of the kernel, because loading the kernel's own file would run a program, or
        would not make a kernel that is defined inside a function."""
        if INSIDE in self.launch.qualname:
            return True
        return self.launch.module == PROGRAM and not is_quiet(Path(self.launch.file))

    def _root(self) -> str | None:
        """Returns the folder from which the kernel's package is imported; None for installed or missing packages."""
        if self.copied:
            source = SourceFile.requested(Path(self.launch.file))
            inside = package_of(source.path, source.text)
            return None if inside is None else str(inside[0])
        if "." not in self.launch.module:
            return None
        import importlib.util

        top, file = self.launch.module.split(".")[0], Path(self.launch.file)
        spec = importlib.util.find_spec(top)
        if spec is not None and any(file.is_relative_to(place) for place in spec.submodule_search_locations or ()):
            return None
        return str(file.parents[self.launch.module.count(".") + (file.name == "__init__.py")])

    def _tensors(self, name: str) -> Iterator[tuple[str, str]]:
        """Yields the name and declaration of an array. An array that is read and written has two: an input with its
        values before the launch, and an output."""
        argument, declared = self.arrays[name]
        shape, dtype = tuple(self.dimensions.entry(extent) for extent in declared.shape), argument.spec.dtype
        if name not in self.captured.filled:
            read = f"tw.Tensor({shape!r}, {dtype!r}{self._distribution(argument)})"
            if name not in self.captured.updated:
                yield name, read
                return
            before = facts.free_name(f"{name}_before", {*self.arrays, *self.dims.values(), *facts.RESERVED})
            yield before, read
            option = f", updates={before!r}"
        else:
            shared = (array.name for array, _ in self.arrays.values() if array.storage == argument.storage)
            source = next((other for other in shared if other != name), None)
            option = f", in_place_of={source!r}" if source else ""
        yield name, f"tw.Output({shape!r}, {dtype!r}{option})"

    def _distribution(self, argument: Argument) -> str:
        """Returns the distribution from which a task draws an array of indices, as text; empty for other arrays. The
        distribution has the captured range, so that an index stays valid."""
        if not argument.spec.dtype.startswith(WHOLE):
            limits = self.captured.ranges.get(argument.name)
            return "" if limits is None else f", tw.uniform{limits!r}"
        if not self.scaling.numbers and (numbers := index_arrays.contents(argument)):
            return f", tw.fixed({numbers!r})"
        if (index_array := self.captured.index_arrays.get(argument.name)) is not None:
            return f", {index_array.text(self.dimensions.last(index_array))}"
        if not (numbers := index_arrays.contents(argument)):
            return ", tw.integers(0, 1)"
        return f", {index_arrays.similar_numbers(numbers, self.dimensions.upper_bound(argument.name))}"

    def _argument(self, argument: Argument) -> str:
        if argument.kind == "array":
            return self._view(argument.name)
        if argument.kind == "list":
            return f"[{', '.join(self._argument(item) for item in argument.items)}]"
        if argument.kind == "tuple":
            return f"({''.join(f'{self._argument(item)}, ' for item in argument.items)})"
        if argument.kind == "descriptor":
            blocks = ", ".join(map(self._block, argument.block_shape))
            return f"tw.descriptor({self._view(argument.items[0].name)}, [{blocks}], {argument.padding!r})"
        if argument.kind == "dtype":
            return captured_language(self.launch.language).dtype_text(str(argument.value))
        if argument.name in self.knobs:
            return f"config.{argument.name}"
        if type(argument.value) is int and argument.value > 1 and argument.name not in self.sizes:
            return self._number(argument.name, argument.value)
        return literal(argument.value)

    def _block(self, extent: int) -> str:
        """Returns an extent of a descriptor's block as text: the only constant with this value, else the number."""
        equal = {self._argument(one) for one in self.launch.arguments if one.kind == "constant" and one.value == extent}
        return equal.pop() if len(equal) == 1 else str(extent)

    def _number(self, name: str, value: int) -> str:
        """Returns an integer argument as text. The text is an expression of dimensions if the argument equals an
        extent, or the next power of two of an extent. An argument that may be the number of blocks stays a number if
        the grid stays as captured."""
        if self.form is None and value == math.prod(self.launch.grid):
            return repr(value)
        if name in self._quotients:
            whole, part = self._quotients[name]
            return f"{self.dimensions.factor(whole)} // {self.dimensions.factor(part)}"
        followed = self.captured.followed(name, value)
        for extent in filter(self.dimensions.knows, followed):
            entry = str(self.dimensions.entry(extent))
            return entry if int(extent) == value else _power_of_two_from(entry)
        if knobs.is_tile(name) and followed:
            for extent, dim in self.dims.items():
                if value // 2 < extent < value and knobs.is_power_of_two(value):
                    return _power_of_two_from(dim)
        return repr(value)

    @cached_property
    def _quotients(self) -> dict[str, tuple[int, int]]:
        """Maps an argument to the extents whose quotient it is, such as the length of each of several splits. An equal
        extent counts for less if a tile covers it: the tile is the argument that follows this extent."""
        if not self.scaling.quotients:
            return {}
        extents = {extent for _, declared in self.arrays.values() for extent in declared.shape if extent > 1}
        covered = {extent for name in self.captured.tiled for extent in self._covered(name)}
        found: dict[str, tuple[int, int]] = {}
        for argument in self.launch.arguments:
            value, is_tile = argument.value, knobs.is_tile(argument.name) or argument.name in self.captured.tiled
            if type(value) is int and value > 1 and not is_tile and covered.issuperset(extents & {value}):
                pairs = [(a, b) for a in extents for b in extents if a == b * value and value not in (a, b)]
                found |= {argument.name: pairs[0]} if len(pairs) == 1 else {}
        return found

    def _covered(self, name: str) -> tuple[int, ...]:
        value = self.launch.constants[name]
        return self.captured.followed(name, value) if isinstance(value, int) else ()

    def _tiles_of(self, extent: int) -> Iterator[int]:
        """Yields the tile sizes that may divide an extent. If another extent left a part of a tile, a load without
        padding would give undefined elements, which the captured launch does not have."""
        for name, value in self.launch.constants.items():
            tiled = self.captured.tiled_extents(name)
            is_free = name in self.knobs or name in self.sizes
            if not isinstance(value, int) or not (extent in tiled or (is_free and not tiled)):
                continue
            if is_free or not self.captured.followed(name, value):
                yield value

    def _follows(self, name: str, value: Value, extent: int) -> bool:
        """Returns whether a tile size is an extent, which a task must then keep a power of two."""
        is_fixed = name not in self.knobs and name not in self.sizes
        return is_fixed and value == int(extent) and extent in self.captured.followed(name, int(extent))

    def _view(self, name: str) -> str:
        argument, declared = self.arrays[name]
        if declared.flat:
            return f"viewed({name}, {argument.spec.shape!r}, {argument.spec.strides!r})"
        if declared.order is None:
            return name
        extents = [self.dimensions.factor(extent) for extent in declared.shape]
        shape = ", ".join(extents[axis] for axis in declared.order)
        strides = ", ".join(" * ".join(extents[axis + 1 :]) or "1" for axis in declared.order)
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
        """Returns the text of a lambda: whether dimensions are at most the captured extents, with the same divisors."""
        if not self.dims:
            return "lambda: True"
        conditions, sizes = [], self.captured.tiles
        covering = {
            name: value for name, value in self.launch.constants.items() if name in {*sizes, *self.captured.tiled}
        }
        # A kernel may rely on the captured extents and on their divisors by tiles. `verify.shapes` reduces an extent to
        # one or two tiles, and no tile below half the captured size is tried, so some small shape is always allowed.
        for extent, name in self.dims.items():
            alone = name in self.free or name in self.dimensions.counted
            modulus = 1 if alone else math.gcd(extent, max(DIVISOR, *self._tiles_of(extent), 1))
            conditions.append(f"{name} <= {extent}" + (f" and {name} % {modulus} == 0" if modulus > 1 else ""))
            if any(self._follows(name, value, extent) for name, value in covering.items()):
                conditions.append(f"{name} & ({name} - 1) == 0")
        dividing = [size for name, size in sizes.items() if name in self.captured.tiled and not self._covered(name)]
        for whole, part in self._quotients.values():
            step = math.gcd(whole // part, max(dividing, default=1))
            conditions.append(f"{self.dimensions.factor(whole)} % ({self.dimensions.factor(part)} * {step}) == 0")
        return f"lambda {', '.join(self.dims.values())}: {' and '.join(conditions)}"


def _power_of_two_from(extent: str) -> str:
    return f"1 << ({extent} - 1).bit_length()"


def _defined(name: str, value: Value) -> str:
    """Returns the statement that defines a variable of `DescribedLaunch.closure`."""
    is_module = isinstance(value, str) and value.startswith(MODULE)
    return f"import {str(value).removeprefix(MODULE)} as {name}" if is_module else f"{name} = {literal(value)}"
