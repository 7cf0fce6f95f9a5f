"""The types of arrays in the interpreter and its sanitizer."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"
Bytes: TypeAlias = "npt.NDArray[np.uint8]"
Indices: TypeAlias = "npt.NDArray[np.int64]"
Int32s: TypeAlias = "npt.NDArray[np.int32]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"
DType: TypeAlias = "np.dtype[np.generic]"
