"""Did a trial write what the shipped configuration wrote? Every element, on the device (requirements X-24).

Two right configurations add in different orders and round at different places, so they need not agree to the bit.
What is allowed is relative to the shipped output's own scale, |a − b| / (|b| + rms(b)), so that zeros never pass
(trust.md 3), and follows from the unit roundoff u of the output's dtype:

- at the worst element ``WORST`` = 4 u: each of two versions may be 2 u from the exact answer, which is what
  `verify.allowance` gives to any one;
- of the norm, ‖a − b‖ / ‖b‖, ``TOTAL`` = 2 u: rounding errors are independent, so two versions that only round
  differently are below 1 u, while one that computes in a coarser dtype has all elements off;
- float32 counts as tf32 does (u = 2⁻¹¹): its products may be rounded to that, and tensor cores keep sums of
  float8 products to no more than 13 bits;
- whole numbers and booleans must be equal;
- NaN and infinities must stand at the same places; a difference below the smallest normal number is none.

The shipped configuration runs twice. Where it is not deterministic (atomic additions), what it differs by from
itself widens both limits, ``AGAIN`` times; where that is more than ``verify.TRUSTED_AT_MOST`` of the norm nothing
can be compared with it, and no other configuration is right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.search.scratch import tensor_of
from tilewright.verify.tolerance import TRUSTED_AT_MOST, UNIT_ROUNDOFF

WORST, TOTAL, AGAIN = 4.0, 2.0, 4.0
COUNTS_AS = {"float32": "tf32", "float64": "float32"}
"""float64: nothing says that the kernel computes in more than float32."""
CHUNK = 1 << 22
"""Elements compared at a time: bounds the memory that this takes to some 200 MB."""


@dataclass(frozen=True)
class Difference:
    """Of what two launches wrote into one array."""

    worst: float = 0.0
    """Largest |a − b| / (|b| + rms(b)); infinite where one is NaN or infinite and the other is not the same."""
    total: float = 0.0
    """‖a − b‖ / ‖b‖."""
    index: int = 0
    """Of the worst element, counted in row-major order."""


@dataclass(frozen=True)
class Expected:
    """What the shipped configuration wrote into one array, and how far others may be off."""

    name: str
    output: Any
    """A copy of its own."""
    itself: Difference = Difference()
    """The shipped configuration, run again, against itself."""

    def wrong(self, got: Any) -> str | None:
        """Why ``got`` is not the same answer; None where it is."""
        out, ref = tensor_of(got), self.output
        if out.shape != ref.shape or out.dtype != ref.dtype:
            return (
                f"'{self.name}' is {_kind(out)}, where the shipped configuration writes {_kind(ref)}: "
                "the two cannot be compared"
            )
        if self.itself.total > TRUSTED_AT_MOST:
            return (
                f"'{self.name}' cannot be compared: run twice, the shipped configuration itself differs by "
                f"{self.itself.total:.3g} of its norm"
            )
        found = difference(out, ref)
        worst, total = self.limits()
        if found.worst <= worst and found.total <= total:
            return None
        place = _place(found.index, tuple(ref.shape))
        got_, wanted = (float(one.reshape(-1)[found.index].to(ref.device)) for one in (out, ref))
        return (
            f"'{self.name}'[{place}] is {got_:.6g}, where the shipped configuration wrote {wanted:.6g}: "
            f"{found.worst:.3g} of its scale at worst (allowed {worst:.3g}), "
            f"{found.total:.3g} of its norm (allowed {total:.3g})"
        )

    def limits(self) -> tuple[float, float]:
        """What is allowed at the worst element and of the norm."""
        name = str(self.output.dtype).removeprefix("torch.")
        roundoff = UNIT_ROUNDOFF.get(COUNTS_AS.get(name, name), 0.0)
        return (max(WORST * roundoff, AGAIN * self.itself.worst), max(TOTAL * roundoff, AGAIN * self.itself.total))


def difference(out: Any, ref: Any) -> Difference:
    """``out`` against ``ref``: tensors of equal shape and dtype on one device."""
    import torch

    if ref.numel() == 0 or torch.equal(bits(out), bits(ref)):
        return Difference()
    outs, refs = out.reshape(-1).split(CHUNK), ref.reshape(-1).split(CHUNK)
    squares = sum(float(_finite(b.to(torch.float64)).square().sum()) for b in refs)
    rms = math.sqrt(squares / ref.numel())
    negligible, least = (torch.finfo(ref.dtype).tiny, 0.0) if ref.dtype.is_floating_point else (0.0, 1.0)
    worst, index, off = 0.0, 0, 0.0
    for n, (a, b) in enumerate(zip(outs, refs, strict=True)):
        same = (a == b) | (a.isnan() & b.isnan())  # before widening: float64 does not hold every whole number
        a, b = a.to(torch.float64), b.to(torch.float64)
        distance = torch.where(same, 0.0, (a - b).abs().clamp_min(least))
        distance = torch.where(distance <= negligible, 0.0, distance).nan_to_num(math.inf, math.inf)
        scaled = torch.where(distance == math.inf, math.inf, distance / (_finite(b).abs() + rms).clamp_min(1e-300))
        largest, place = scaled.max(0)
        off += float(distance.square().sum())
        if float(largest) > worst:
            worst, index = float(largest), n * CHUNK + int(place)
    total = math.sqrt(off / squares) if squares else (math.inf if off else 0.0)
    return Difference(worst, total, index)


def _finite(tensor: Any) -> Any:
    return tensor.nan_to_num(0.0, 0.0, 0.0)


def bits(tensor: Any) -> Any:
    """Bytes, in which a NaN is equal to itself."""
    import torch

    return tensor.contiguous().view(-1).view(torch.uint8)


def _kind(tensor: Any) -> str:
    return f"{'×'.join(map(str, tensor.shape))} {str(tensor.dtype).removeprefix('torch.')}"


def _place(index: int, shape: tuple[int, ...]) -> str:
    places: list[int] = []
    for size in reversed(shape):
        index, here = divmod(index, size)
        places.append(here)
    return ", ".join(map(str, reversed(places)))
