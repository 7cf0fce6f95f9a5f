"""Stores the data of captured launches: for each array a ``.npy`` file with its elements before the launch.

Elements are row-major. NumPy cannot store some dtypes (bfloat16, float8). Their files hold the bits as unsigned
integers, and the description of the launch has the dtype.
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
from tilewright.runtime.capture.described import Argument, DescribedLaunch, LiveDescriptor
from tilewright.task.tensors import ArraySpec

Elements: TypeAlias = npt.NDArray[np.generic]


class Data:
    """A folder beside a record, with arrays of this process.

    limit: the most bytes to store; 0 stores nothing.
    process: a name that no other process has or had.
    """

    def __init__(self, record: Path, limit: int, process: str) -> None:
        self.folder, self.left, self.process = _folder_of(record), limit, process
        self._number = 0

    def keep(self, launch: DescribedLaunch, args: Sequence[CallValue]) -> dict[str, str]:
        """Stores all arrays of the launch, or none if there is too little space. Returns the file of each array, by
        name.

        Waits for the device, so it must not be called while launches are captured into a CUDA graph.
        """
        names = [argument.name for argument in launch.arrays()]
        size, values = sum(array.spec.nbytes for array in launch.arrays()), dict(_values(launch.arguments, args))
        if not names or size > self.left:
            return {}
        self.folder.mkdir(parents=True, exist_ok=True)
        self._number += 1
        files = {name: str(self.folder / f"{self.process}-{self._number}-{name}.npy") for name in names}
        for name, file in files.items():
            np.save(file, elements(values[name]))
        self.left -= size
        return files


def _folder_of(record: Path) -> Path:
    return record.with_name(record.name + ".data")


def remove_all_but(files: Collection[str], record: Path) -> None:
    """Removes the stored arrays beside ``record``, except ``files``. Ignores files that cannot be removed."""
    folder = _folder_of(record)
    for file in folder.glob("*.npy"):
        if str(file) not in files:
            with suppress(OSError):
                file.unlink()
    with suppress(OSError):  # the folder is not empty, or does not exist
        folder.rmdir()


def elements(value: CallValue) -> Elements:
    """Returns the elements of a torch tensor or a NumPy array, in a dtype that NumPy can store."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        dtype, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
        raw: Elements = value.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy()
        return raw.view(_stored_as(dtype)).reshape(shape)
    array = np.ascontiguousarray(value)
    return array.view(_stored_as(array.dtype.name))


def read(file: str | Path, array: ArraySpec) -> Elements:
    """Returns the elements of ``array``, read from ``file``, in the array's own dtype."""
    stored: Elements = np.load(file)
    return stored.view(numpy_dtype(array.dtype)).reshape(array.shape)


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    return np.dtype(getattr(ml_dtypes, name, name))


def _stored_as(dtype: str) -> np.dtype[np.generic]:
    own = numpy_dtype(dtype)
    return own if own.kind in "biuf" and own.isbuiltin == 1 else np.dtype(f"u{own.itemsize}")


def _values(arguments: Sequence[Argument], args: Sequence[CallValue]) -> Iterator[tuple[str, CallValue]]:
    for argument, value in zip(arguments, args, strict=False):
        yield argument.name, value
        inner = (value.base,) if isinstance(value, LiveDescriptor) else value
        yield from _values(argument.items, inner if isinstance(inner, (list, tuple)) else ())
