"""The task that a user writes: a kernel, its tensors, reference, launch, space and workloads.

A task is data and functions. Tilewright passes arguments to the functions *by name*. A parameter called ``M`` gets the
dimension M of the workload, and ``a`` gets the tensor declared as ``a``. A parameter called ``config`` gets the
configuration, and ``hardware`` gets the GPU model (`hardware.Board`). Tensors are specifications, not arrays. So a task
compiles on a machine without a GPU, and runs on larger, strided or hostile data. `examples/matmul.py` shows every part.
"""

from __future__ import annotations

import inspect
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from tilewright.errors import TaskError, UnknownChoice, in_task
from tilewright.hardware.architectures import Board, architecture
from tilewright.records import Configuration, Workload
from tilewright.space.space import Space
from tilewright.space.union import SpaceUnion, split_off
from tilewright.task.tensors import (
    ITEM_BYTES,
    LAYOUTS,
    ArraySpec,
    Declaration,
    Descriptor,
    Dims,
    Distribution,
    Output,
    Tensor,
    scratch_of,
)

NAME_BYTES = 200
"""The most bytes of a name: a file name may have 255."""
PRECISIONS = ("tf32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")  # may be coarser than the output's dtype
Returned = TypeVar("Returned")


@dataclass(frozen=True)
class Launch(Declaration):
    """One launch: the kernel, the grid (1 to 3 numbers) and the arguments in the kernel's order.

    An argument may be a list of arrays. cuda-tile 1.7 cannot capture such a launch in a CUDA graph, so tune the task
    with ``--launch eager``.

    in_place: maps an output to the input whose memory the output may share. `Task.launched` takes it from the task.
    """

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    in_place: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Implementation(Declaration):
    """One of several implementations of a task's operation, in any language. ``launch`` and ``space``: as in `Task`."""

    launch: Callable[..., Launch]
    space: Space


@dataclass(frozen=True)
class _LaunchOfEach:
    """The launch of a task with several implementations: calls that of the implementation that ``config`` names."""

    task: str
    implementations: Mapping[str, Implementation]

    def __call__(self, **offered: Any) -> Launch:
        name, config = split_off(offered["config"])
        what = f"launch of implementation '{name}' of task '{self.task}'"
        return call_by_name(self.implementations[name].launch, {**offered, "config": config}, what)


def _check_name(what: str, name: object) -> None:
    """Raises TaskError if a task or a workload cannot have this name, because files and branches are named after it."""
    if not isinstance(name, str) or not name.strip() or len(name.encode(errors="replace")) > NAME_BYTES:
        raise TaskError(f"{name!r:.60} is no name for a {what}; give a text of 1 to {NAME_BYTES} bytes")


def _no_launch() -> Launch:
    raise TaskError("the task has no launch")


@dataclass(frozen=True)
class Task(Declaration):
    """A kernel to tune, and everything needed to build, verify and time it.

    reference: takes NumPy arrays of the inputs, and dimensions. Returns the output, or a tuple of outputs in the order
        of declaration. Float inputs arrive as float64, integers as int64, booleans as bool.
    launch: takes tensors, dimensions, ``config`` and ``hardware``. Returns a `Launch`.
    implementations: several implementations of the operation, by name, in place of ``launch`` and ``space``. They may
        be in different languages. The first one ships. `tune` races all of them.
    flops: takes dimensions. Returns the least number of floating-point operations.
    bytes_moved: takes dimensions. Returns the least number of bytes. By default, each input is read once and each
        output is written once.
    independent: dimensions along which the outputs do not depend on one another (rows of a product, heads of an
        attention). Large outputs are checked by slices along these dimensions.
    trusted: a correct implementation in the declared precision. Takes tensors on the device, and returns the outputs.
        Its error against the float64 reference determines the allowed error of a candidate.
    edit: the files that `optimize` may change: the task file, or names given to `editable`. By default, what `editable`
        loaded, or else the task file.
    serves: takes dimensions. Returns whether the kernel supports them. By default, the kernel supports all positive
        extents that compile.
    layouts: names in `LAYOUTS` of the memory layouts that the kernel supports besides row-major and aligned.
    special_values: whether the kernel supports infinities and NaN among the inputs.
    deterministic: whether equal inputs give bit-identical outputs in any order of the blocks.
    precision: a name in `PRECISIONS`, if the arithmetic is coarser than the outputs' dtype (``tf32`` for float32).
    architectures: the architectures that the kernel ships on, such as ``("sm_90", "sm_100")``. `optimize` for one of
        them keeps what ships on the others.
    backward: the task of the gradient. It reads inputs of this task and ``d_<output>``, and writes ``d_<input>``.
    left_out: a line for each implementation that `load_task` left out, because its language is not installed.
    """

    name: str
    tensors: Mapping[str, Tensor | Output]
    reference: Callable[..., Any]
    workloads: Mapping[str, Dims]
    flops: Callable[..., float]
    launch: Callable[..., Launch] = _no_launch
    space: Space = None  # type: ignore[assignment]  # checked below: it may be left out with several implementations
    implementations: Mapping[str, Implementation] = field(default_factory=dict)
    bytes_moved: Callable[..., float] | None = None
    independent: tuple[str, ...] = ()
    trusted: Callable[..., Any] | None = None
    edit: tuple[str, ...] = ()
    serves: Callable[..., bool] | None = None
    layouts: tuple[str, ...] = ()
    special_values: bool = False
    deterministic: bool = True
    precision: str | None = None
    architectures: tuple[str, ...] = ()
    backward: Task | None = None
    left_out: tuple[str, ...] = field(default=(), compare=False)
    file: Path | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.implementations:
            self._join_implementations()
        elif self.launch is _no_launch:
            raise TaskError(f"task '{self.name}' has no launch: give launch= and space=, or implementations=")
        Space.checked(self.space)
        if not self.inputs:
            raise TaskError(f"task '{self.name}' declares no input tensor")
        if not self.outputs:
            raise TaskError(f"task '{self.name}' declares no output: use tilewright.Output for one tensor")
        if not self.workloads:
            raise TaskError(f"task '{self.name}' has no workloads: give at least one, "
                            'e.g. workloads={"small": {"M": 1024}}')  # fmt: skip
        for what, named in (("task", self.name), *(("workload", workload) for workload in self.workloads)):
            _check_name(what, named)
        for name, spec in self.tensors.items():
            if spec.dtype not in ITEM_BYTES:
                raise TaskError(f"tensor '{name}': unknown dtype '{spec.dtype}'; known: {', '.join(ITEM_BYTES)}")
            if isinstance(spec, Output):
                self._check_memory(name, spec)
        dims = dict.fromkeys(name for workload in self.workloads.values() for name in workload)
        if isinstance(self.independent, str):
            raise TaskError(f"independent='{self.independent}' is a string; write independent=('{self.independent}',)")
        for name in self.independent:
            if name not in dims:
                raise UnknownChoice("independent dimension", name, dims)
        for layout in self.layouts:
            if layout not in LAYOUTS:
                raise UnknownChoice("layout", layout, LAYOUTS)
        if isinstance(self.architectures, str):
            raise TaskError(f"architectures='{self.architectures}' is a string; write ('{self.architectures}',)")
        for arch in self.architectures:
            architecture(arch)  # raises UnknownChoice
        if self.precision not in (None, *PRECISIONS):
            raise UnknownChoice("precision", self.precision, PRECISIONS)
        self._check_backward()

    def _join_implementations(self) -> None:
        """Sets ``launch`` and ``space`` to those of all implementations."""
        if not isinstance(self.implementations, Mapping):
            raise TaskError(f"implementations of task '{self.name}' is a {type(self.implementations).__name__}; pass a "
                            "dict: name → tilewright.Implementation(launch=…, space=…)")  # fmt: skip
        for name, implementation in self.implementations.items():
            if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
                raise TaskError(f"task '{self.name}' has an implementation called {name!r}; use letters, digits, '_', "
                                "'-' and '.', because a configuration names it: implementation=NAME")  # fmt: skip
            if not isinstance(implementation, Implementation):
                raise TaskError(f"implementation '{name}' of task '{self.name}' is a {type(implementation).__name__}; "
                                "pass tilewright.Implementation(launch=…, space=…)")  # fmt: skip
        # `dataclasses.replace` passes the joined launch and space of the task that it copies
        joined = isinstance(self.launch, _LaunchOfEach) and isinstance(self.space, SpaceUnion)
        if not joined and (self.launch is not _no_launch or self.space is not None):
            raise TaskError(f"task '{self.name}' has implementations, and also a launch or space of its own; make it "
                            "one of the implementations")  # fmt: skip
        spaces = {name: Space.checked(each.space) for name, each in self.implementations.items()}
        object.__setattr__(self, "launch", _LaunchOfEach(self.name, self.implementations))
        object.__setattr__(self, "space", SpaceUnion(spaces))

    def _check_memory(self, name: str, spec: Output) -> None:
        """Raises TaskError if an output does not fit the input that it overwrites or updates."""
        if spec.in_place_of and spec.updates:
            raise TaskError(f"output '{name}' is in place of '{spec.in_place_of}' and updates '{spec.updates}': keep "
                            "in_place_of if the kernel has an argument for each of the two tensors, or updates if it "
                            "has one argument for both")  # fmt: skip
        source = spec.in_place_of or spec.updates
        if source is None:
            return
        what = f"output '{name}' {'is in place of' if spec.in_place_of else 'updates'} '{source}'"
        if source not in self.inputs:
            raise TaskError(f"{what}, which is no input; inputs: {', '.join(self.inputs)}")
        before = self.inputs[source]
        if (before.shape, before.dtype) != (spec.shape, spec.dtype):
            raise TaskError(f"{what}, which has another shape or dtype; make them equal")
        others = [one for one, output in self.outputs.items() if output.in_place_of == source and one != name]
        if spec.in_place_of and others:
            raise TaskError(f"{what}, and so is '{others[0]}': the two would share memory; keep one in_place_of")

    def _check_backward(self) -> None:
        if self.backward is None:
            return
        inputs = {*self.inputs, *(f"d_{name}" for name in self.outputs)}
        if unknown := [name for name in self.backward.inputs if name not in inputs]:
            raise TaskError(f"backward of task '{self.name}': input '{unknown[0]}' is neither an input nor the "
                            f"gradient of an output; known: {', '.join(sorted(inputs))}")  # fmt: skip
        gradients = [f"d_{name}" for name in self.inputs]
        if unknown := [name for name in self.backward.outputs if name not in gradients]:
            raise TaskError(f"backward of task '{self.name}': output '{unknown[0]}' is the gradient of no "
                            f"input; known: {', '.join(gradients)}")  # fmt: skip

    def on(self, arch: str) -> Task:
        """Returns the task as it is on ``arch``: it ships the configurations that ship there."""
        backward = self.backward and self.backward.on(arch)
        each = {name: replace(one, space=one.space.on(arch)) for name, one in self.implementations.items()}
        space = self.space if each else self.space.on(arch)
        if space is self.space and backward is self.backward and each == self.implementations:
            return self
        return replace(self, space=space, backward=backward, implementations=each)

    @property
    def inputs(self) -> dict[str, Tensor]:
        return {name: spec for name, spec in self.tensors.items() if isinstance(spec, Tensor)}

    @property
    def outputs(self) -> dict[str, Output]:
        return {name: spec for name, spec in self.tensors.items() if isinstance(spec, Output)}

    def workload(self, name: str) -> Workload:
        if name not in self.workloads:
            raise UnknownChoice("workload", name, self.workloads)
        return Workload(name, dict(self.workloads[name]))

    def selected(self, names: Sequence[str] | str | None) -> tuple[Workload, ...]:
        """Returns the workloads named by a list or one string. Without ``names``, returns all workloads."""
        names = (names,) if isinstance(names, str) else names
        return tuple(self.workload(name) for name in (names or self.workloads))

    def arrays(self, dims: Dims) -> dict[str, ArraySpec]:
        """Returns the specifications of all tensors for ``dims``."""
        with self._naming_workload(dims):
            return {name: spec.array(name, dims) for name, spec in self.tensors.items()}

    @contextmanager
    def _naming_workload(self, dims: Dims) -> Iterator[None]:
        """Adds the name of the workload to the message of a TaskError that is raised inside the ``with`` block."""
        try:
            yield
        except TaskError as error:
            name = next((name for name, sizes in self.workloads.items() if dict(sizes) == dict(dims)), None)
            if name is None or str(error).startswith("workload '"):
                raise
            error.args = (f"workload '{name}': {error}",)  # the error keeps its class
            raise

    def distribution(self, name: str, dims: Dims) -> Distribution:
        return self.inputs[name].distribution.under(dims, name)

    def promises(self, dims: Dims) -> bool:
        """Returns whether the task supports ``dims``.

        This is so if no tensor is empty, inputs can be drawn, and ``serves`` returns True.
        """
        arrays = self.arrays(dims)
        if any(0 in array.shape for array in arrays.values()):
            return False
        if not all(self.distribution(name, dims).possible(arrays[name].shape) for name in self.inputs):
            return False
        sizes = ", ".join(f"{name}={value}" for name, value in dims.items())  # no workload may have these
        return self.serves is None or _answer(self.serves, dims, bool, f"serves of task '{self.name}' for {sizes}")

    def launched(self, config: Configuration, dims: Dims, tensors: Mapping[str, Any], board: Board) -> Launch:
        """Returns the launch of ``config``. ``tensors``: an `ArraySpec` or an array on the device for each name."""
        offered = {**dims, **tensors, "config": config, "hardware": board}
        with self._naming_workload(dims):
            launch = call_by_name(self.launch, offered, f"launch of task '{self.name}'")
            if not isinstance(launch, Launch):
                raise TaskError(f"launch of task '{self.name}' returned {type(launch).__name__}; "
                                "return tilewright.Launch(kernel, grid, args)")  # fmt: skip
            grid = launch.grid if isinstance(launch.grid, tuple) else (launch.grid,)
            if not 1 <= len(grid) <= 3 or not all(isinstance(n, int) and n >= 1 for n in grid):
                raise TaskError(f"launch of task '{self.name}': grid {launch.grid} is not 1 to 3 positive integers"
                                f"{'; fix: pass what the function returns' * callable(launch.grid)}")  # fmt: skip
            self._refuse_sharing(launch, tensors)
            return replace(launch, grid=grid, in_place=self.in_place)

    @property
    def in_place(self) -> dict[str, str]:
        """Maps an output to the input that the deployed kernel overwrites with this output."""
        return {name: output.in_place_of for name, output in self.outputs.items() if output.in_place_of}

    def _refuse_sharing(self, launch: Launch, tensors: Mapping[str, Any]) -> None:
        """Raises TaskError if the launch passes an output more than once.

        Compilers assume that no other argument shares the memory that a kernel writes. An input may be passed more than
        once, because a kernel that writes an input is incorrect anyway.
        """
        passed = Counter(map(_memory, flat_arguments(launch.args)))
        own = [each.name for each in scratch_of(flat_arguments(launch.args))]
        if taken := [name for name in own if name in self.tensors or own.count(name) > 1]:
            raise TaskError(f"launch of task '{self.name}': scratch needs a name of its own, not '{taken[0]}'")
        given = Counter(map(_memory, tensors.values()))  # in a run in place, two names share memory
        for name in self.outputs.keys() & tensors.keys():
            memory = _memory(tensors[name])
            if passed[memory] > given[memory] == 1:
                raise TaskError(
                    f"launch of task '{self.name}' passes output '{name}' {passed[memory]} times, but no arguments may "
                    "share memory that the kernel writes; fix: pass it once, or declare a second tensor (in_place_of)"
                )

    def work(self, dims: Dims) -> float:
        """Returns the declared least number of floating-point operations."""
        with self._naming_workload(dims):
            return _amount(self.flops, dims, f"flops of task '{self.name}'")

    def traffic(self, dims: Dims) -> float:
        """Returns the least number of bytes that the kernel moves."""
        if self.bytes_moved is not None:
            with self._naming_workload(dims):
                return _amount(self.bytes_moved, dims, f"bytes_moved of task '{self.name}'")
        return float(sum(array.nbytes for array in self.arrays(dims).values()))

    @property
    def compute_dtype(self) -> str:
        """The dtype whose arithmetic rate bounds the task: the declared precision, or else the first input's dtype."""
        declared = "tfloat32" if self.precision == "tf32" else self.precision
        return declared or next(iter(self.inputs.values())).dtype


def flat_arguments(arguments: Iterable[Any]) -> Iterator[Any]:
    """Yields the arguments, including those inside lists and descriptors."""
    for argument in arguments:
        if isinstance(argument, list | tuple):
            yield from flat_arguments(argument)
        else:
            yield argument.base if isinstance(argument, Descriptor) else argument


def _memory(argument: Any) -> Hashable:
    """Returns a key of an argument's memory. Arguments that share memory have equal keys."""
    return argument.name if isinstance(argument, ArraySpec) else id(argument)


def _answer(function: Callable[..., Any], dims: Dims, as_: Callable[[Any], Returned], what: str) -> Returned:
    try:
        return as_(call_by_name(function, dims, what))
    except TaskError:
        raise
    except Exception as error:
        raise TaskError(f"{what} failed: {in_task(error)}") from error


def _amount(function: Callable[..., Any], dims: Dims, what: str) -> float:
    amount = _answer(function, dims, float, what)
    if not 0 <= amount < math.inf:
        raise TaskError(f"{what} is {amount:g}; it must be a number from 0 on")
    return amount


def call_by_name(function: Callable[..., Returned], offered: Mapping[str, Any], what: str) -> Returned:
    """Calls ``function``, and returns its result. Each parameter gets the value of the same name in ``offered``.

    what: the name of the function in messages.
    """
    arguments = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            return function(**offered)
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            continue
        if name in offered:
            arguments[name] = offered[name]
        elif parameter.default is inspect.Parameter.empty:
            raise TaskError(f"{what} asks for '{name}'; known: {', '.join(offered)}")
    return function(**arguments)
