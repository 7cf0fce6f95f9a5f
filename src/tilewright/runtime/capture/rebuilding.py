"""Makes a launch again from its description: loads its kernel, and allocates its arrays with the same layout.

Arrays get their recorded contents, if there are any. Otherwise floating-point numbers are drawn from the normal
distribution. Integers are zero, because they may be indices, and another number could be out of range.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tilewright.errors import RequestError, TaskError, in_one_line
from tilewright.languages import is_kernel
from tilewright.records import Value
from tilewright.runtime.arrays import CallValue, KernelObject, LiveArray
from tilewright.runtime.capture.data import read
from tilewright.runtime.capture.described import MODULE, WHOLE, Argument, DescribedLaunch, extent_bytes, unpacked
from tilewright.runtime.capture.languages import captured_language
from tilewright.source.digest import source_of
from tilewright.source.needed import INSIDE, loaded_part
from tilewright.task.loading import editable
from tilewright.task.tensors import ALIGNED_TO, ITEM_BYTES, descriptor

if TYPE_CHECKING:
    from types import ModuleType

PROGRAM = "__main__"


def rebuilt(
    launch: DescribedLaunch, *, device: str = "cuda", seed: int = 0, data: Mapping[str, str] | None = None,
    changed: bool = False,
) -> tuple[KernelObject, tuple[int, ...], tuple[CallValue, ...]]:  # fmt: skip
    """Returns the kernel, the grid, and the arguments on ``device``.

    A cuTile kernel has the hints of the launch. A `@triton.jit` function gets them as keywords: ``kernel[grid](*args,
    **launch.hints)``. Raises RequestError if the kernel is gone or has changed, and if the description cannot be
    launched.
    seed: for the random numbers in the arrays.
    data: the file with the elements of each array, by name, as `tilewright capture --data` stores them.
    changed: whether to accept a kernel whose source has changed.
    """
    if launch.problem:
        raise RequestError(f"{launch.kernel} cannot be launched again: {launch.problem}")
    kernel = loaded_kernel(launch, changed=changed)
    kernel = captured_language(launch.language).with_hints(kernel, launch.hints)
    return kernel, launch.grid, rebuilt_arguments(launch, device=device, seed=seed, data=data)


def rebuilt_arguments(
    launch: DescribedLaunch, *, device: str = "cuda", seed: int = 0, data: Mapping[str, str] | None = None
) -> tuple[CallValue, ...]:
    """Returns the arguments of a launch on ``device``, as `rebuilt` does."""
    tensors = _tensors(launch, device, seed, data or {})
    return tuple(_value(argument, tensors, launch.language) for argument in launch.arguments)


def loaded_kernel(launch: DescribedLaunch, *, changed: bool = False) -> KernelObject:
    """Returns the kernel from its module, or else from its file. A launch that was recorded on another machine needs
    the module here.

    Raises RequestError if the kernel is gone. Unless ``changed`` is True, also raises if the source has changed.
    """
    kernel = attribute(_module(launch), launch.qualname)
    if not is_kernel(kernel):
        raise RequestError(f"{launch.file or launch.module} no longer defines a kernel '{launch.qualname}'")
    assert kernel is not None
    if launch.source and not changed and source_of(kernel) != launch.source:
        what = f"kernel '{launch.qualname}' in {launch.file} has changed since it was launched"
        raise RequestError(f"{what}; capture the program again")
    return kernel


def untouched_kernel(module: str, file: Path, qualname: str, closure: Mapping[str, Value]) -> KernelObject:
    """Returns the kernel from its own file, even if other versions of it are loaded. A kernel in a package is imported.
    From another file, only the code that the kernel needs is loaded. Raises TaskError if the kernel is gone."""
    try:
        is_part = "." not in module or INSIDE in qualname
        loaded = _part(file, qualname, module, closure) if is_part else importlib.import_module(module)
    except Exception as error:  # an error in the file's own code, or the file does not exist
        raise TaskError(f"the captured kernel '{qualname}' cannot be loaded: {in_one_line(error)}") from error
    kernel = attribute(loaded, qualname)
    if kernel is None:
        raise TaskError(f"{file} no longer defines a kernel '{qualname}'")
    return kernel


def _part(file: Path, qualname: str, module: str, closure: Mapping[str, Value]) -> ModuleType:
    """Returns a module with the kernel and what it needs. A variable of a function around it may be a module."""
    values: dict[str, object] = dict(closure)
    for name, value in closure.items():
        if isinstance(value, str) and value.startswith(MODULE):
            values[name] = importlib.import_module(value.removeprefix(MODULE))
    return loaded_part(file, qualname, module, values)


def _module(launch: DescribedLaunch) -> ModuleType:
    path = Path(launch.file)
    module = sys.modules.get(launch.module)
    if launch.module != PROGRAM:
        try:
            module = module or importlib.import_module(launch.module)
        except Exception as error:  # an error in the module's own code
            if not path.is_file():
                what = f"{launch.file} is not on this machine, and {launch.module} cannot be imported"
                raise RequestError(f"{what}: {in_one_line(error)}") from error
    file = getattr(module, "__file__", None)
    if module is not None and file is not None and attribute(module, launch.qualname):
        of_another_machine = launch.module != PROGRAM and not path.is_file()
        if of_another_machine or Path(file).resolve() == path:
            return module
    if not path.is_file():
        where = f", and {launch.module} is not it" if module is not None and launch.module != PROGRAM else ""
        raise RequestError(f"the kernel's file is gone: {launch.file}{where}; install it here, or capture here")
    if launch.module == PROGRAM or INSIDE in launch.qualname:
        return _part(path, launch.qualname, launch.module, launch.closure)
    return editable(path)


def attribute(module: ModuleType, qualname: str) -> KernelObject | None:
    """Returns the object with this qualified name in a module; None if it is not there."""
    found: Any = module
    if INSIDE in qualname:
        kernel: KernelObject | None = getattr(module, qualname, None)
        return kernel
    for name in qualname.split("."):
        found = getattr(found, name, None)
    kernel = found
    return kernel


def _value(argument: Argument, tensors: Mapping[str, LiveArray], language: str) -> CallValue:
    if argument.kind == "array":
        return tensors[argument.name]
    if argument.kind in ("list", "tuple"):
        items = [_value(item, tensors, language) for item in argument.items]
        return items if argument.kind == "list" else tuple(items)
    captures = captured_language(language)
    if argument.kind == "descriptor":
        return captures.on_device(descriptor(tensors[argument.name], argument.block_shape, argument.padding))
    return captures.dtype(str(argument.value)) if argument.kind == "dtype" else argument.value


def _tensors(launch: DescribedLaunch, device: str, seed: int, data: Mapping[str, str]) -> dict[str, LiveArray]:
    """Returns all arrays by name. Arrays that shared memory at the capture share it again, at the same distances."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    storages: dict[int, list[Argument]] = {}
    for argument in launch.arrays():
        storages.setdefault(argument.storage, []).append(argument)
    tensors = {}
    for members in storages.values():
        lowest = next(argument.spec for argument in members if argument.offset == 0)
        size = max(argument.offset + extent_bytes(argument.spec) for argument in members)
        raw = torch.zeros(size + 2 * ALIGNED_TO, dtype=torch.uint8, device=device)
        start = (lowest.address_offset - int(raw.data_ptr())) % ALIGNED_TO
        for argument in members:
            tensors[argument.name] = _filled(raw[start : start + size], argument, generator, data)
    return tensors


def _filled(raw: LiveArray, argument: Argument, generator: Hashable, data: Mapping[str, str]) -> LiveArray:
    """Returns a view of ``raw``, the memory of the argument's storage, filled with the argument's elements."""
    import torch

    offset, array = argument.offset, argument.spec
    if offset % ITEM_BYTES[array.dtype] or array.address_offset % ITEM_BYTES[array.dtype]:
        raise RequestError(f"array '{array.name}' is not aligned to the size of its elements")
    flat = raw[offset : offset + extent_bytes(array)].view(getattr(torch, array.dtype))
    tensor = flat.as_strided(array.shape, array.strides)
    if argument.name in data:
        tensor.copy_(torch_tensor(read(data[argument.name], array), array.dtype, tensor.device))
    elif argument.contents is not None:
        tensor.copy_(torch_tensor(unpacked(argument.contents, array), array.dtype, tensor.device))
    elif not array.dtype.startswith(WHOLE):
        drawn = tensor.new_empty(array.shape, dtype=torch.float32).normal_(generator=generator)
        tensor.copy_((drawn.abs() if array.dtype == "float8_e8m0fnu" else drawn).to(tensor.dtype))
    return tensor


def torch_tensor(elements: npt.NDArray[np.generic], dtype: str, device: Hashable) -> LiveArray:
    """Returns a torch tensor with the bytes of ``elements``. NumPy and torch share no bfloat16 or float8 dtype."""
    import torch

    raw: LiveArray = torch.from_numpy(np.ascontiguousarray(elements).reshape(-1).view(np.uint8).copy())
    return raw.view(getattr(torch, dtype)).reshape(elements.shape).to(device)
