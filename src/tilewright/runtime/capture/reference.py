"""The reference of a task that was generated from a recorded launch: the captured kernel itself.

Such a task has no reference in NumPy, so the captured kernel judges its changed versions. It is loaded from its own
file, never from a version that is being tried. If its source has changed since the capture, it is refused.

The captured kernel is used in two ways:

* ``reference`` interprets the kernel's Tile IR with every floating-point number in float64. So the reference has none
  of the rounding errors of the kernel's own types (`tileir.analysis.precision`).
* ``trusted`` runs the kernel unchanged: on the GPU if the inputs are on the GPU, else in the interpreter. It shows how
  large these rounding errors are.

A changed version is correct if it differs from ``reference`` by at most twice the error of ``trusted``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from tilewright.errors import TaskError
from tilewright.languages import language_of
from tilewright.records import Configuration, Failed, Json, Value
from tilewright.runtime.arrays import CallValue, KernelObject, LiveArray
from tilewright.runtime.capture.data import Elements, elements, numpy_dtype
from tilewright.runtime.capture.described import INTERMEDIATE, WHOLE
from tilewright.runtime.capture.languages import captured_language
from tilewright.runtime.capture.rebuilding import torch_tensor, untouched_kernel
from tilewright.source.digest import source_of
from tilewright.space import knobs
from tilewright.task.task import Launch, Task, call_by_name
from tilewright.task.tensors import ArraySpec, Dims, Output, Tensor, extent_of
from tilewright.tileir.analysis.precision import in_precision
from tilewright.tileir.read.reader import read_bytecode
from tilewright.tileir.read.tree import TileModule
from tilewright.tileir.run.interpreter import run
from tilewright.tileir.run.launching import bound
from tilewright.tileir.run.memory import Memory
from tilewright.tileir.run.registry import Unsupported
from tilewright.verify.tolerance import INTERPRETED_ELEMENTS, INTERPRETED_FLOP

ARCH = "sm_90"
"""The architecture for the compiler's front end, which needs one. The results do not depend on it."""
Array = TypeVar("Array")
Outputs: TypeAlias = Array | tuple[Array, ...]
"""The output of a task, or a tuple of its outputs if there are several."""


@dataclass(kw_only=True)
class CapturedKernel:
    """A captured kernel and how it was launched.

    module: the name of the kernel's module at the launch. A module of a package is imported. From another module, only
    the code that the kernel needs is loaded, from ``file``.
    source: the result of `source_of` for the kernel at the capture.
    launch: the captured launch, with the kernel as first argument.
    shipped: the captured configuration.
    closure: the values of the variables that the kernel uses of a function around it (`DescribedLaunch.closure`).
    """

    module: str
    file: str
    qualname: str
    source: str
    launch: Callable[..., Launch]
    shipped: Mapping[str, Value]
    closure: Mapping[str, Value] = field(default_factory=dict)

    @cached_property
    def kernel(self) -> KernelObject:
        """The kernel from its own file. Raises TaskError if its source has changed."""
        kernel = untouched_kernel(self.module, Path(self.file), self.qualname, self.closure)
        if source_of(kernel) != self.source:
            what = f"kernel '{self.qualname}' in {self.file} has changed since it was captured"
            fix = "capture the program again, or put the captured version back"
            raise TaskError(f"{what}, and its outputs are this task's reference; fix: {fix}")
        return kernel


@dataclass(kw_only=True)
class Producer(CapturedKernel):
    """A kernel that a program launches before the captured kernel of a task, and that writes an input of it.

    Its launch has the tensor that it writes as the parameter `INTERMEDIATE`.
    like, dtype: the tensor with the shape of the written one, and the written one's dtype.
    """

    like: str
    dtype: str


@dataclass(kw_only=True)
class Captured(CapturedKernel):
    """A captured kernel as the reference of its task.

    tensors, flops: the tensors of the task, and the FLOP that it declares.
    call: the JSON of the `ProgramCall` with which the program made the launch, if it is known.
    producer: the kernel that is launched before, if the task's kernel does the work of both.
    """

    tensors: Mapping[str, Tensor | Output]
    flops: Callable[..., float]
    call: Mapping[str, Json] | None = None
    producer: Producer | None = None
    _read: dict[tuple[bytes, str | None], TileModule] = field(default_factory=dict, repr=False)

    def reference(self, config: Mapping[str, Value] | None = None, **given: Any) -> Outputs[Elements]:
        """Returns the outputs in float64, or in float32 for float32 inputs. If the work exceeds `INTERPRETED_FLOP`,
        or the inputs have more elements than `INTERPRETED_ELEMENTS`, and there is a GPU, these are the outputs of the
        unchanged kernel on the GPU.

        config: values for the captured configuration's knobs, in place of the captured values.
        """
        if config is not None:
            shipped = {name: config.get(name, value) for name, value in self.shipped.items()}
            return replace(self, shipped=shipped, _read=self._read).reference(**given)
        inputs = {name: np.asarray(given[name]) for name in self._names(Tensor)}
        dims = {name: value for name, value in given.items() if name not in inputs}
        torch = sys.modules.get("torch")
        has_gpu = torch is not None and torch.cuda.is_available()
        size, flop = sum(array.size for array in inputs.values()), call_by_name(self.flops, dims, "flops")
        if has_gpu and (flop > INTERPRETED_FLOP or size > INTERPRETED_ELEMENTS):
            tensors = {name: _tensor(array, self.tensors[name].dtype, "cuda") for name, array in inputs.items()}
            return _as_given([output.double().cpu().numpy() for output in self._on_gpu(dims, tensors)])
        element = "f32" if any(array.dtype == np.float32 for array in inputs.values()) else "f64"
        return _as_given(self._interpreted(dims, inputs, element))

    def trusted(self, **given: Any) -> Outputs[LiveArray]:
        """Returns the outputs of the unchanged kernel. The kernel runs where the inputs are: on the GPU, or else in the
        interpreter."""
        tensors = {name: given[name] for name in self._names(Tensor)}
        dims = {name: value for name, value in given.items() if name not in tensors}
        if next(iter(tensors.values())).is_cuda:
            return _as_given(self._on_gpu(dims, tensors))
        dtypes = {name: declared.dtype for name, declared in self.tensors.items()}
        inputs = {name: elements(tensor).view(numpy_dtype(dtypes[name])) for name, tensor in tensors.items()}
        outputs = zip(self._names(Output), self._interpreted(dims, inputs, None), strict=True)
        return _as_given([_tensor(array, dtypes[name], "cpu") for name, array in outputs])

    def outputs(self, dims: Dims, inputs: Mapping[str, Elements]) -> dict[str, Elements] | str:
        """Interprets the unchanged kernel in its own precision. Returns the outputs, or the reason why there are none.

        Inputs and outputs have their declared dtypes. This is for checks in the present process; other callers use
        `trusted`.
        """
        try:
            return dict(zip(self._names(Output), self._interpreted(dims, inputs, None), strict=True))
        except (TaskError, Unsupported) as error:
            return str(error)

    def _names(self, kind: type) -> list[str]:
        return [name for name, declared in self.tensors.items() if isinstance(declared, kind)]

    def _before(self, name: str) -> str | None:
        """Returns the name of the input with a tensor's values before the launch; None if there is none."""
        declared = self.tensors.get(name)
        if declared is None:
            return None
        return declared.updates if isinstance(declared, Output) else name

    def _launches(self, dims: Dims, tensors: Mapping[str, CallValue]) -> Iterator[tuple[Launch, Mapping[str, Value]]]:
        """Yields the launches in their order, each with its configuration."""
        made: CapturedKernel
        for made in (self,) if self.producer is None else (self.producer, self):
            offered = {**dims, **tensors, "kernel": made.kernel, "config": Configuration.of(made.shipped)}
            yield call_by_name(made.launch, offered, "launch of the captured kernel"), made.shipped

    def _arrays(self, dims: Dims) -> dict[str, ArraySpec]:
        """Returns the arrays of all launches: the task's tensors, and the tensor between two launches."""
        arrays = {name: _specification(name, declared, dims) for name, declared in self.tensors.items()}
        if (made := self.producer) is not None:
            arrays[INTERMEDIATE] = replace(arrays[made.like], name=INTERMEDIATE, dtype=made.dtype)
        return arrays

    def _interpreted(self, dims: Dims, inputs: Mapping[str, Elements], element: str | None) -> list[Elements]:
        """Interprets the Tile IR of the launches. element: a type for all floating-point numbers; None keeps theirs."""
        arrays, memory = self._arrays(dims), Memory(watch=False)
        buffers, addresses = {}, {}
        for name, declared in arrays.items():
            before, whole = self._before(name), declared.dtype.startswith(WHOLE)
            dtype = numpy_dtype(declared.dtype if element is None or whole else f"float{element[1:]}")
            buffers[name] = inputs[before].astype(dtype) if before else np.zeros(declared.shape, dtype)
            addresses[name] = memory.allocate(name, buffers[name]).address
        for launch, shipped in self._launches(dims, arrays):
            module = self._module(launch, shipped, element)
            arguments = bound(language_of(launch.kernel).arguments(launch), addresses, memory)
            finished = run(module, arguments, launch.grid, memory, seed=None)
            if finished.findings:
                raise TaskError(f"the captured kernel fails with these dimensions: {finished.findings[0]}")
        return [buffers[name] for name in self._names(Output)]

    def _module(self, launch: Launch, shipped: Mapping[str, Value], element: str | None) -> TileModule:
        lowered = language_of(launch.kernel).tile_ir_of(launch, _hints(shipped), Configuration.of(shipped), ARCH)
        if isinstance(lowered, Failed):
            raise TaskError(f"the captured kernel cannot be lowered for these dimensions: {lowered.reason}")
        if (key := (lowered.code, element)) not in self._read:
            module = read_bytecode(lowered.code)
            self._read[key] = module if element is None else in_precision(module, element)
        return self._read[key]

    def _on_gpu(self, dims: Dims, tensors: Mapping[str, LiveArray]) -> list[LiveArray]:
        import torch

        device = next(iter(tensors.values())).device
        made: dict[str, LiveArray] = {}
        for name, declared in self._arrays(dims).items():
            before = self._before(name)
            if before != name:
                new = torch.zeros(declared.shape, dtype=getattr(torch, declared.dtype), device=device)
                made[name] = new.copy_(tensors[before]) if before else new
        for launch, shipped in self._launches(dims, {**tensors, **made}):
            captured_language(language_of(launch.kernel).name).launch(launch, shipped)
        torch.cuda.synchronize()
        return [made[name] for name in self._names(Output)]


def captured_of(task: Task) -> Captured:
    """Returns the captured kernel that is the reference of a captured task."""
    captured: Captured = getattr(task.reference, "__self__")  # noqa: B009  (its type is that of any reference)
    return captured


def _hints(shipped: Mapping[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in shipped.items() if name in knobs.hints()}


def viewed(tensor: ArraySpec | LiveArray, shape: tuple[int, ...], strides: tuple[int, ...]) -> ArraySpec | LiveArray:
    """Returns the same memory with another shape and strides (in elements), for arrays that were not row-major."""
    if isinstance(tensor, ArraySpec):
        return replace(tensor, shape=shape, strides_=strides)
    return tensor.as_strided(shape, strides)


def _specification(name: str, declared: Tensor | Output, dims: Dims) -> ArraySpec:
    return ArraySpec(name, tuple(extent_of(entry, dims, name) for entry in declared.shape), declared.dtype)


def _tensor(array: Elements, dtype: str, device: str) -> LiveArray:
    return torch_tensor(array.astype(numpy_dtype(dtype)), dtype, device)


def _as_given(outputs: list[Array]) -> Outputs[Array]:
    return tuple(outputs) if len(outputs) > 1 else outputs[0]
