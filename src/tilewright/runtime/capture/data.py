"""The data of captured launches: each array as a ``.npy`` file, as it was before the first launch of its kind.

Elements are row-major. NumPy cannot store some dtypes (bfloat16, float8): their files have the bits as unsigned
numbers, and the description of the launch has the dtype.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tilewright.runtime.arrays import CallValue
from tilewright.runtime.capture.described import Argument, DescribedLaunch
from tilewright.task.tensors import ArraySpec

Elements: TypeAlias = npt.NDArray[np.generic]


class Data:
    """A folder beside a record, with room for ``limit`` bytes of this process's arrays; 0 keeps nothing.

    process: a name that no other process has or had.
    """

    def __init__(self, record: Path, limit: int, process: str) -> None:
        self.folder, self.left, self.process = folder_of(record), limit, process
        self._number = 0

    def kept(self, launch: DescribedLaunch, args: Sequence[CallValue]) -> dict[str, str]:
        """Array → its file, for all arrays of the launch; empty if they do not fit. It waits for the device, so it must
        not be called while launches go into a CUDA graph."""
        arrays = {argument.name: argument.spec for argument in launch.arrays()}
        size, values = sum(array.nbytes for array in arrays.values()), dict(_values(launch.arguments, args))
        if not arrays or size > self.left:
            return {}
        self.folder.mkdir(parents=True, exist_ok=True)
        self._number += 1
        files = {}
        for name in arrays:
            file = self.folder / f"{self.process}-{self._number}-{name}.npy"
            np.save(file, elements(values[name]))
            files[name] = str(file)
        self.left -= size
        return files


def folder_of(record: Path) -> Path:
    return record.with_name(record.name + ".data")


def remove_all_but(files: Collection[str], record: Path) -> None:
    """Removes the arrays beside ``record`` that it does not name, if they can be removed."""
    folder = folder_of(record)
    for file in folder.glob("*.npy"):
        if str(file) not in files:
            with suppress(OSError):
                file.unlink()
    with suppress(OSError):  # not empty, or not there
        folder.rmdir()


def elements(value: CallValue) -> Elements:
    """The elements of a torch tensor or a NumPy array, as NumPy can store them."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        dtype, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
        raw: Elements = value.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy()
        return raw.view(_stored_as(dtype)).reshape(shape)
    array = np.ascontiguousarray(value)
    return array.view(_stored_as(array.dtype.name))


def read(file: str | Path, array: ArraySpec) -> Elements:
    """The elements of ``array`` in their own dtype."""
    stored: Elements = np.load(file)
    return stored.view(numpy_dtype(array.dtype)).reshape(array.shape)


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    return np.dtype(getattr(ml_dtypes, name, name))


def _stored_as(dtype: str) -> np.dtype[np.generic]:
    own = numpy_dtype(dtype)
    return own if own.kind in "biuf" and own.isbuiltin == 1 else np.dtype(f"u{own.itemsize}")


def _values(arguments: Sequence[Argument], args: Sequence[CallValue]) -> Iterator[tuple[str, CallValue]]:
    """The arguments of a launch by name, with the items of lists."""
    for argument, value in zip(arguments, args, strict=False):
        yield argument.name, value
        yield from _values(argument.items, value if isinstance(value, (list, tuple)) else ())
