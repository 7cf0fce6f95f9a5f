"""A launch made again from its description: its kernel loaded, its arrays in memory that lies as it did.

Contents: what was recorded, where it was. Otherwise numbers are drawn: floating-point ones from the normal
distribution, and whole ones are zero, because they may be indices, and any other could lie outside.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.errors import RequestError, in_one_line
from tilewright.runtime.capture.described import ALIGNED_TO, WHOLE, Argument, DescribedLaunch, extent_bytes, unpacked
from tilewright.task.tensors import ITEM_BYTES, ArraySpec

if TYPE_CHECKING:
    from types import ModuleType

PROGRAM = "__main__"


def rebuilt(
    one: DescribedLaunch,
    *,
    device: str = "cuda",
    seed: int = 0,
    data: Mapping[str, str] | None = None,
    changed: bool = False,
) -> tuple[Any, tuple[int, ...], tuple[Any, ...]]:
    """The kernel with its hints, the grid, and arguments on ``device``: what `ct.launch` takes.

    seed: of what is drawn. data: array → file with its elements, as `tilewright capture --data` keeps them.
    changed: take the kernel also where its source is another than what was launched.
    Raises RequestError where the kernel is gone or has changed, and where the launch cannot be described.
    """
    if one.problem:
        raise RequestError(f"{one.kernel} cannot be launched again: {one.problem}")
    kernel = loaded_kernel(one, changed=changed)
    if one.hints:
        kernel = kernel.replace_hints(**one.hints)
    tensors = _tensors(one, device, seed, data or {})
    return kernel, one.grid, tuple(_value(argument, tensors) for argument in one.arguments)


def loaded_kernel(one: DescribedLaunch, *, changed: bool = False) -> Any:
    """The kernel, from its module, else from its file; see `rebuilt` for the errors."""
    from tilewright.runtime.key import source_of

    kernel = _attribute(_module(one), one.qualname)
    if kernel is None or not hasattr(kernel, "_pyfunc"):
        raise RequestError(f"{one.file or one.module} holds no kernel '{one.qualname}' any more")
    if one.source and not changed and source_of(kernel) != one.source:
        raise RequestError(
            f"kernel '{one.qualname}' in {one.file} has changed since it was launched; capture the program again"
        )
    return kernel


def untouched_kernel(module: str, file: Path, qualname: str) -> Any:
    """The kernel as it stands in its own file, whatever versions of it are loaded: from its package, else from
    that part of its file that it needs. Raises TaskError where it is gone."""
    from tilewright.errors import TaskError
    from tilewright.source.needed import loaded_part

    try:
        found = importlib.import_module(module) if "." in module else loaded_part(file, qualname, module)
    except Exception as error:  # the file's own code, or there is none
        raise TaskError(f"the captured kernel '{qualname}' is not to be had: {in_one_line(error)}") from error
    kernel = _attribute(found, qualname)
    if kernel is None:
        raise TaskError(f"{file} holds no kernel '{qualname}' any more")
    return kernel


def _module(one: DescribedLaunch) -> ModuleType:
    from tilewright.source.needed import loaded_part
    from tilewright.task.loading import editable

    path = Path(one.file)
    here = sys.modules.get(one.module)
    if one.module != PROGRAM:
        try:
            here = here or importlib.import_module(one.module)
        except Exception as error:  # the module's own code
            if not path.is_file():
                raise RequestError(f"cannot import {one.module}: {in_one_line(error)}") from error
    if here is not None and _is_file(here, path) and _attribute(here, one.qualname) is not None:
        return here
    if not path.is_file():
        raise RequestError(f"the kernel's file is gone: {one.file}")
    return loaded_part(path, one.qualname, PROGRAM) if one.module == PROGRAM else editable(path)


def _is_file(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path


def _attribute(module: ModuleType, qualname: str) -> Any:
    found: Any = module
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found


def _value(argument: Argument, tensors: Mapping[str, Any]) -> Any:
    if argument.kind == "array":
        return tensors[argument.name]
    if argument.kind in ("list", "tuple"):
        items = [_value(item, tensors) for item in argument.items]
        return items if argument.kind == "list" else tuple(items)
    if argument.kind == "dtype":
        import cuda.tile as ct

        return getattr(ct, str(argument.value))
    return argument.value


def _tensors(one: DescribedLaunch, device: str, seed: int, data: Mapping[str, str]) -> dict[str, Any]:
    """All arrays by name; those that shared memory do so again, at the same distance."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    storages: dict[int, list[tuple[Argument, ArraySpec]]] = {}
    for argument in one.arrays():
        assert argument.array is not None
        storages.setdefault(argument.storage, []).append((argument, argument.array))
    tensors = {}
    for members in storages.values():
        lowest = next(array for argument, array in members if argument.offset == 0)
        size = max(argument.offset + extent_bytes(array) for argument, array in members)
        raw = _aligned(size, lowest.address_offset % ALIGNED_TO, device)
        for argument, array in members:
            tensors[argument.name] = tensor = _view(raw, argument.offset, array)
            _fill(tensor, argument, array, generator, data)
    return tensors


def _aligned(size: int, past: int, device: str) -> Any:
    """``size`` bytes that begin ``past`` bytes after a multiple of `ALIGNED_TO`."""
    import torch

    raw = torch.zeros(size + 2 * ALIGNED_TO, dtype=torch.uint8, device=device)
    start = (past - int(raw.data_ptr())) % ALIGNED_TO
    return raw[start : start + size]


def _view(raw: Any, offset: int, array: ArraySpec) -> Any:
    import torch

    dtype = getattr(torch, array.dtype)
    flat = raw[offset : offset + extent_bytes(array)]
    if offset % ITEM_BYTES[array.dtype] or array.address_offset % ITEM_BYTES[array.dtype]:
        raise RequestError(f"array '{array.name}' does not lie at a multiple of its elements' size")
    return flat.view(dtype).as_strided(array.shape, array.strides)


def _fill(tensor: Any, argument: Argument, array: ArraySpec, generator: Any, data: Mapping[str, str]) -> None:
    import torch

    from tilewright.runtime.capture.data import read

    if argument.name in data:
        raw = torch.from_numpy(_bytes_of(read(data[argument.name], array))).to(tensor.device)
        tensor.copy_(raw.view(tensor.dtype).reshape(array.shape))
    elif argument.contents is not None:
        elements = unpacked(argument.contents, array)
        tensor.copy_(torch.from_numpy(elements.copy()).to(tensor.device))
    elif not array.dtype.startswith(WHOLE):
        drawn = torch.empty(array.shape, dtype=torch.float32, device=tensor.device)
        drawn.normal_(generator=generator)
        tensor.copy_((drawn.abs() if array.dtype == "float8_e8m0fnu" else drawn).to(tensor.dtype))


def _bytes_of(elements: Any) -> Any:
    import numpy as np

    return np.ascontiguousarray(elements).reshape(-1).view(np.uint8).copy()
