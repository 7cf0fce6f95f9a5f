"""Compares several tensors with example tensors in one call, with torch's own check.

Programs of `torch.compile` check their inputs with ``torch._C._dynamo.guards.TensorGuards``. It compares class, dtype,
device, shape, strides, ``requires_grad`` and dispatch keys. For four tensors this takes 0.3 µs; reading their shapes,
dtypes and strides takes 0.8 µs. The class is private, so only this module uses it: with tested versions of torch, after
a short test in this process. Otherwise `like` returns None, and the look-up reads each tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from types import ModuleType
from typing import TypeAlias

from tilewright.runtime.arrays import LiveArray

TRIED = ((2, 11), (2, 13))
"""The oldest and the newest version of torch that the tests have run with."""

Check: TypeAlias = Callable[..., bool]


def like(tensors: Sequence[LiveArray]) -> Check | None:
    """Returns a function that compares its arguments with ``tensors``, one by one. Returns None without torch's check.

    The result True is certain. False is not certain: for example, the function returns False for equal tensors in
    another grad mode.
    """
    if not tensors or not available():
        return None
    try:
        return _made(tensors)
    except Exception:  # torch cannot guard one of them, for example an array of another library
        return None


@cache
def available() -> bool:
    """Returns whether the torch of this process has the check, and the check works."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    try:
        version = tuple(int(part) for part in torch.__version__.split(".")[:2])
        return TRIED[0] <= version <= TRIED[1] and _works(torch)
    except Exception:  # the private class has a different signature, or does not exist
        return False


def _made(tensors: Sequence[LiveArray]) -> Check:
    from torch._C._dynamo.guards import TensorGuards

    made: Check = TensorGuards(
        *tensors,
        dynamic_dims_sizes=[list(tensor.shape) for tensor in tensors],
        dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
    ).check
    return made


def _works(torch: ModuleType) -> bool:
    """Returns whether the check accepts equal tensors, and refuses some that differ in one property each."""

    def zeros(*shape: int, dtype: Hashable = torch.float32, device: str = "cpu") -> LiveArray:
        made: LiveArray = torch.zeros(shape, dtype=dtype, device=device)
        return made

    x, y = zeros(2, 4), zeros(4)
    check = _made((x, y))
    others = (
        zeros(4, 4), zeros(8), zeros(2, 4, 1), zeros(4, 2).as_strided((2, 4), (1, 2)), zeros(2, 8).narrow(1, 0, 4),
        zeros(2, 4, dtype=torch.int32), zeros(2, 4, dtype=torch.bfloat16), zeros(2, 4, device="meta"), None, 1,
    )  # fmt: skip
    return check(zeros(2, 4), zeros(4)) and not any(check(other, y) or check(x, other) for other in others)
