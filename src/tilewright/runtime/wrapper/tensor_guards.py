"""torch's own check of several tensors in one call: whether each is like the one that the check was made from.

Compiled programs check their inputs with ``torch._C._dynamo.guards.TensorGuards``. It compares class, dtype, device,
shape, strides, ``requires_grad`` and the dispatch keys of four tensors in 0.3 µs; reading shape, dtype and strides of
each takes 0.8. It is private, so only this module uses it, with versions of torch that it was tried with, and after
it has told a few tensors apart in this process. Otherwise `like` returns None, and the look-up reads each tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from types import ModuleType
from typing import TypeAlias

from tilewright.runtime.arrays import LiveArray

TRIED = ((2, 11), (2, 13))
"""The oldest and the newest torch that the tests have run with."""

Check: TypeAlias = Callable[..., bool]


def like(tensors: Sequence[LiveArray]) -> Check | None:
    """A function of as many values that says whether they are like ``tensors``. Its yes is certain, its no is not: in
    another grad mode, say, equal tensors are refused. None if there is no such check."""
    if not tensors or not available():
        return None
    try:
        return _made(tensors)
    except Exception:  # what torch cannot guard, such as an array that is not torch's
        return None


@cache
def available() -> bool:
    """Whether the torch of this process has the check, and it tells tensors apart."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    try:
        return TRIED[0] <= _version(torch) <= TRIED[1] and _tells_apart(torch)
    except Exception:  # another signature, or none: it is private
        return False


def _made(tensors: Sequence[LiveArray]) -> Check:
    from torch._C._dynamo.guards import TensorGuards

    made: Check = TensorGuards(
        *tensors,
        dynamic_dims_sizes=[list(tensor.shape) for tensor in tensors],
        dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
    ).check
    return made


def _version(torch: ModuleType) -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def _tells_apart(torch: ModuleType) -> bool:
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
