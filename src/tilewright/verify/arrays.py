"""Arrays that the judge compares: NumPy's on the host, torch's on a device.

The rules are written once, with ``-``, ``/``, ``abs`` and comparisons, which both libraries have. An `Arrays` adds
what they spell differently. This folder does not import torch; the caller passes it to `Tensors`.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
"""An array of any dtype; a tensor where an `Arrays` for tensors is passed beside it."""

CHUNK = 1 << 22
"""Elements of a tensor that are compared at a time: bounds the memory that this takes to some 200 MB."""


class Arrays:
    """NumPy's arrays."""

    def pieces(self, array: Array) -> Iterable[Array]:
        """The elements in row-major order, cut to what fits in memory several times."""
        return [np.asarray(array).reshape(-1)]

    def wide(self, piece: Array) -> Array:
        """In float64."""
        return np.asarray(piece, np.float64)

    def equal(self, a: Array, b: Array) -> Array:
        """Element by element, as they are: float64 does not hold every whole number."""
        return np.equal(a, b) if a.dtype == b.dtype else np.equal(self.wide(a), self.wide(b))

    def whole(self, array: Array) -> bool:
        """Whether the elements are whole numbers or booleans."""
        return array.dtype.kind in "biu"

    def where(self, mask: Array, value: float, other: Array) -> Array:
        return np.where(mask, value, other)

    def finite(self, piece: Array) -> Array:
        return np.isfinite(piece)

    def squares(self, piece: Array) -> float:
        """The sum of the squares."""
        return float(np.dot(piece, piece))

    def largest(self, piece: Array) -> tuple[float, int]:
        """The largest element and its index. ``piece`` is not empty."""
        index = int(piece.argmax())
        return float(piece[index]), index


class Tensors(Arrays):
    """torch's tensors, on the device where they are. ``torch``: the imported module."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch

    def pieces(self, array: Array) -> Iterable[Array]:
        pieces: Iterable[Array] = self._torch.split(array.reshape(-1), CHUNK)
        return pieces

    def wide(self, piece: Array) -> Array:
        wide: Array = self._torch.Tensor.to(piece, self._torch.float64)
        return wide

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
        mask: Array = self._torch.isfinite(piece)
        return mask

    def squares(self, piece: Array) -> float:
        return float((piece * piece).sum())  # not `dot`: that would start cuBLAS

    def largest(self, piece: Array) -> tuple[float, int]:
        value, index = self._torch.max(piece, 0)
        return float(value), int(index)


HOST = Arrays()
