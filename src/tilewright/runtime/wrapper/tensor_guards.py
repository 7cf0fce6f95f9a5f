"""torch's own check of several tensors in one call: whether each is like the one it was made from.

``torch._C._dynamo.guards.TensorGuards`` is what compiled programs check their inputs with. It compares class, dtype,
device, shape, strides, ``requires_grad`` and the dispatch keys, for four tensors in 0.3 µs, where asking each for its
shape, dtype and strides takes 0.8. It is private: this is the one place that uses it, for versions of torch that it
was tried with, and only after it has told a few tensors apart in this process. Elsewhere `like` gives None, and the
look-up asks each tensor, as always.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

TRIED = ((2, 11), (2, 13))
"""The oldest and the newest torch that the tests have run with."""

Check = Callable[..., bool]


def like(tensors: Sequence[Any]) -> Check | None:
    """A function of as many values that says whether they are such tensors. What it takes for such tensors are: the
    converse need not hold (in another grad mode, say). None where there is no such check."""
    if not tensors or not available():
        return None
    try:
        return _made(tensors)
    except Exception:  # what torch cannot guard, such as an array that is not torch's
        return None


@cache
def available() -> bool:
    """Whether this process's torch has the check, and it tells tensors apart."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    try:
        return TRIED[0] <= _version(torch) <= TRIED[1] and _tells_apart(torch)
    except Exception:  # another signature, or none: it is private
        return False


def _made(tensors: Sequence[Any]) -> Check:
    from torch._C._dynamo.guards import TensorGuards

    made: Check = TensorGuards(
        *tensors,
        dynamic_dims_sizes=[list(one.shape) for one in tensors],
        dynamic_dims_strides=[list(one.stride()) for one in tensors],
    ).check
    return made


def _version(torch: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def _tells_apart(torch: Any) -> bool:
    def zeros(*shape: int, dtype: Any = torch.float32, device: str = "cpu") -> Any:
        return torch.zeros(shape, dtype=dtype, device=device)

    x, y = zeros(2, 4), zeros(4)
    check = _made((x, y))
    others = (
        zeros(4, 4), zeros(8), zeros(2, 4, 1), zeros(4, 2).t(), zeros(2, 8)[:, :4], zeros(2, 4, dtype=torch.int32),
        zeros(2, 4, dtype=torch.bfloat16), zeros(2, 4, device="meta"), None, 1,
    )  # fmt: skip
    return check(zeros(2, 4), zeros(4)) and not any(check(one, y) or check(x, one) for one in others)
