"""The data of captured launches: each array as a ``.npy`` file, as it was before the first launch of its kind.

Elements are row-major. NumPy has no name for some dtypes (bfloat16, float8): their files hold the bits as
unsigned numbers, and the description of the launch says what they are.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.runtime.capture.described import DescribedLaunch
from tilewright.task.tensors import ArraySpec


class Data:
    """A folder beside a record, with room for ``limit`` bytes of this process's arrays; 0 keeps nothing.

    process: a name that no other process has, nor had.
    """

    def __init__(self, record: Path, limit: int, process: str) -> None:
        self.folder, self.left, self.process = folder_of(record), limit, process
        self._number = 0

    def kept(self, launch: DescribedLaunch, args: Sequence[Any]) -> dict[str, str]:
        """Array → its file, for all arrays of the launch; nothing where they do not fit. Waits for
        the device, so not while launches go into a CUDA graph."""
        arrays = dict(_by_name(launch, args))
        size = sum(array.nbytes for array, _ in arrays.values())
        if not arrays or size > self.left:
            return {}
        self.folder.mkdir(parents=True, exist_ok=True)
        self._number += 1
        files = {}
        for name, (_, value) in arrays.items():
            file = self.folder / f"{self.process}-{self._number}-{name}.npy"
            np.save(file, elements(value))
            files[name] = str(file)
        self.left -= size
        return files


def folder_of(record: Path) -> Path:
    return record.with_name(record.name + ".data")


def remove_all_but(files: Collection[str], record: Path) -> None:
    """Leaves beside ``record`` only the arrays that it names; what cannot be removed stays, too."""
    folder = folder_of(record)
    for file in folder.glob("*.npy"):
        if str(file) not in files:
            with suppress(OSError):
                file.unlink()
    with suppress(OSError):  # not empty, or not there
        folder.rmdir()


def elements(value: Any) -> np.ndarray[Any, Any]:
    """The elements of a torch tensor or a NumPy array, as NumPy can store them."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        dtype, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
        raw = value.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy()
        return np.asarray(raw.view(_stored_as(dtype)).reshape(shape))
    array = np.ascontiguousarray(value)
    return array.view(_stored_as(array.dtype.name))


def read(file: str | Path, array: ArraySpec) -> np.ndarray[Any, Any]:
    """The elements of ``array`` in their own dtype."""
    stored: np.ndarray[Any, Any] = np.load(file)
    return stored.view(numpy_dtype(array.dtype)).reshape(array.shape)


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def _stored_as(dtype: str) -> np.dtype[Any]:
    own = numpy_dtype(dtype)
    return own if own.kind in "biuf" and own.isbuiltin == 1 else np.dtype(f"u{own.itemsize}")


def _by_name(launch: DescribedLaunch, args: Sequence[Any]) -> Iterator[tuple[str, tuple[ArraySpec, Any]]]:
    values: Mapping[str, Any] = dict(_flat(launch.arguments, args))
    for one in launch.arrays():
        if one.array is not None:
            yield one.name, (one.array, values[one.name])


def _flat(arguments: Sequence[Any], args: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for argument, value in zip(arguments, args, strict=False):
        yield argument.name, value
        yield from _flat(argument.items, value if argument.items else ())
