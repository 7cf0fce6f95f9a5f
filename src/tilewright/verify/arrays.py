"""The array operations that `tolerance` and `judge` need, for NumPy arrays on the host and torch tensors on a device.

Arithmetic, ``abs``, comparisons and ``all`` are the same in both libraries. `Arrays` and `Tensors` implement the
operations that the libraries name differently. This folder does not import torch; the caller passes the
module to `Tensors`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]  # a NumPy array of any dtype; also a torch tensor in functions that take `Tensors`
NamedArrays = Mapping[str, Array]  # the elements of a task's tensors, by name

CHUNK = 1 << 22  # elements that are compared at a time on a device; a comparison then needs about 200 MB
HOST_CHUNK = 1 << 13
"""The number of elements that are compared at a time on the host. Their arrays stay in the caches and below 128 KiB.
For larger arrays, malloc maps new pages for each array. So a comparison in small pieces is ten times faster."""
Result = TypeVar("Result")


class Arrays:
    """Operations on NumPy arrays."""

    def each(self, function: Callable[..., Result], *arrays: Array) -> Iterable[Result]:
        """Applies ``function`` to flat pieces of ``arrays``, which have equal shapes. Returns the results in order."""
        flat = [np.asarray(array).reshape(-1) for array in arrays]
        places = range(0, max(1, flat[0].size), HOST_CHUNK)  # an empty array is one piece
        return (function(*(array[at : at + HOST_CHUNK] for array in flat)) for at in places)

    def everywhere(self, test: Callable[..., Array], *arrays: Array) -> bool:
        """Returns whether the mask that ``test`` makes of each piece of ``arrays`` is true for all elements."""
        masks = self.each(lambda *pieces: (test(*pieces).all(),), *arrays)
        return all(number for (number,) in self.numbers(masks))

    def wide(self, piece: Array) -> Array:
        """Returns the elements in float64."""
        return np.asarray(piece, np.float64)

    def narrow(self, piece: Array) -> Array:
        """Returns the elements in float32."""
        return np.asarray(piece, np.float32)

    def host(self, array: Array) -> Array:
        """Returns the elements as a NumPy array: int64 unchanged, other dtypes in float64."""
        return array if array.dtype == np.int64 else self.wide(array)

    def equal(self, a: Array, b: Array) -> Array:
        """Returns a mask of equal elements. Equal dtypes are not converted: float64 cannot represent every integer."""
        return np.equal(a, b) if a.dtype == b.dtype else np.equal(self.wide(a), self.wide(b))

    def whole(self, array: Array) -> bool:
        """Returns whether the elements are integers or booleans."""
        return array.dtype.kind in "biu"

    def where(self, mask: Array, value: float, other: Array) -> Array:
        return np.where(mask, value, other)

    def finite(self, piece: Array) -> Array:
        return np.isfinite(self.wide(piece))

    def at_least(self, piece: Array, least: float) -> Array:
        return np.maximum(piece, least)

    def without_up_to(self, piece: Array, limit: float) -> Array:
        """Returns the elements of ``piece``, none below 0, with 0 for those up to ``limit``."""
        return np.where(piece <= limit, 0.0, piece)

    def infinite_for_nan(self, piece: Array) -> Array:
        return np.where(np.isnan(piece), np.inf, piece)

    def sum_of_squares(self, piece: Array) -> Any:
        return np.dot(piece, piece)

    def largest(self, piece: Array) -> tuple[Any, Any]:
        """Returns the largest element and its index, as scalars for `numbers`. ``piece`` must not be empty."""
        index = piece.argmax()
        return piece[index], index

    def numbers(self, rows: Iterable[Sequence[Any]]) -> Iterable[list[float]]:
        """Converts rows of scalars, which other operations returned, to rows of numbers."""
        return (list(map(float, row)) for row in rows)


class Tensors(Arrays):
    """Operations on torch tensors, on the device of the tensors. ``torch``: the imported module.

    A NumPy array among the operands is copied to the device piece by piece, so that it never occupies the device whole.
    """

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch

    def each(self, function: Callable[..., Result], *arrays: Array) -> Iterable[Result]:
        devices = [array.device for array in arrays if isinstance(array, self._torch.Tensor)]
        return map(function, *(self._pieces(array, devices) for array in arrays))

    def wide(self, piece: Array) -> Array:
        wide: Array = self._torch.Tensor.to(piece, self._torch.float64)
        return wide

    def narrow(self, piece: Array) -> Array:
        narrow: Array = self._torch.Tensor.to(piece, self._torch.float32)
        return narrow

    def host(self, array: Any) -> Array:
        kept = array if array.dtype == self._torch.int64 else self.wide(array)
        return np.asarray(self._torch.Tensor.cpu(kept).numpy())

    def equal(self, a: Array, b: Array) -> Array:
        wide, eight_bytes = self._torch.float64, (self._torch.int64, self._torch.uint64)
        dtype = self._torch.int64 if a.dtype in eight_bytes and a.dtype == b.dtype else wide
        view = self._torch.Tensor.view if dtype != wide else self._torch.Tensor.to
        mask: Array = view(a, dtype) == view(b, dtype)
        return mask

    def whole(self, array: Array) -> bool:
        return not self._torch.is_floating_point(array)

    def where(self, mask: Array, value: float, other: Array) -> Array:
        chosen: Array = self._torch.where(mask, value, other)
        return chosen

    def finite(self, piece: Array) -> Array:
        mask: Array = self._torch.isfinite(piece if piece.itemsize > 1 else self.wide(piece))
        return mask

    def at_least(self, piece: Array, least: float) -> Array:
        raised: Array = self._torch.clamp(piece, min=least)
        return raised

    def without_up_to(self, piece: Array, limit: float) -> Array:
        kept: Array = self._torch.nn.functional.hardshrink(piece, limit)
        return kept

    def infinite_for_nan(self, piece: Array) -> Array:
        known: Array = self._torch.nan_to_num(piece, nan=math.inf, posinf=math.inf)
        return known

    def sum_of_squares(self, piece: Array) -> Any:
        return (piece * piece).sum()  # not `dot`: that would start cuBLAS

    def largest(self, piece: Array) -> tuple[Any, Any]:
        return tuple(self._torch.max(piece, 0))

    def numbers(self, rows: Iterable[Sequence[Any]]) -> Iterable[list[float]]:
        """Copies all rows to the host at once. A copy waits until the device has done all earlier work, so with a copy
        for each row the device would be idle in between."""
        on_device = [self._torch.stack([self.wide(scalar) for scalar in row]) for row in rows]
        numbers: list[list[float]] = self._torch.stack(on_device).tolist()
        return numbers

    def _pieces(self, array: Array, devices: Sequence[Any]) -> Iterator[Any]:
        here = isinstance(array, self._torch.Tensor)
        flat = array.reshape(-1) if here else self._torch.from_numpy(np.ascontiguousarray(array).reshape(-1))
        for piece in self._torch.split(flat, CHUNK):
            yield piece if here or not devices else piece.to(devices[0])


HOST = Arrays()
