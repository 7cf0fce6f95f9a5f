"""Compares a trial's outputs with those of the reference configuration, on the caller's tensors.

Two correct configurations add in different orders and round at different places, so their bits may differ. Every
element is compared, on the device, with the rules of `verify.judge`. The limits follow from the unit roundoff u of the
output's dtype:

- For the worst element, ``WORST`` = 4 u: each configuration may be 2 u from the exact result (`tolerance.allowance`).
- For the norm ‖a − b‖ / ‖b‖, ``TOTAL`` = 2 u. Rounding errors are independent, so two configurations that only round
  differently are below 1 u. A configuration that computes in a coarser dtype has errors in all elements, and is above.
- float32 has the u of tf32 (2⁻¹¹), because its products may be rounded to tf32. Tensor cores keep no more than 13 bits
  of sums of float8 products.
- Integers and booleans must be equal. NaN and infinities must be at the same places.

The reference configuration runs twice. If its two outputs differ (atomic additions), ``AGAIN`` times this difference is
allowed too. If the difference exceeds ``TRUSTED_AT_MOST`` of the norm, no comparison is possible, and all other
configurations count as wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.runtime.arrays import CallerArray, LiveArray
from tilewright.runtime.search.scratch import tensor_of
from tilewright.verify.arrays import Tensors
from tilewright.verify.judge import EXACT, Compared, Wanted, compared
from tilewright.verify.tolerance import NO_ERROR, TRUSTED_AT_MOST, UNIT_ROUNDOFF, Allowance, Error

WORST, TOTAL, AGAIN = 4.0, 2.0, 4.0
COUNTS_AS = {"float32": "tf32", "float64": "float32"}
"""Maps an output's dtype to the dtype whose rounding errors are allowed, because the kernel may compute in that."""


@dataclass(frozen=True)
class Expected:
    """An array that the reference configuration wrote. ``itself``: the difference between its two runs."""

    name: str
    output: LiveArray
    itself: Error = NO_ERROR

    @property
    def comparable(self) -> bool:
        return self.itself.total <= TRUSTED_AT_MOST

    def wrong(self, got: CallerArray) -> str | None:
        """Returns how ``got`` differs from the expected output, or why it cannot be compared; None if allowed."""
        out, ref = tensor_of(got), self.output
        if out.shape != ref.shape or out.dtype != ref.dtype:
            kinds = f"{_kind(out)}, where the reference configuration writes {_kind(ref)}"
            return f"'{self.name}' is {kinds}: the two cannot be compared"
        if not self.comparable:
            why = f"run twice, the reference configuration itself differs by {self.itself.total:.3g} of its norm"
            return f"'{self.name}' cannot be compared: {why}"
        worst = _compared(out, ref, self.allowed, self.name)
        if worst.share <= 1:
            return None
        error, allowed = worst.error, worst.allowed
        return (
            f"{worst.place} is {error.got:.6g}, where the reference configuration wrote {error.wanted:.6g}: "
            f"{error.worst:.3g} of its scale at worst (allowed {allowed.worst:.3g}), "
            f"{error.total:.3g} of its norm (allowed {allowed.total:.3g})"
        )

    @property
    def allowed(self) -> Allowance:
        """The largest errors that are allowed: at the worst element, and of the norm."""
        dtype = str(self.output.dtype).removeprefix("torch.")
        roundoff = UNIT_ROUNDOFF.get(COUNTS_AS.get(dtype, dtype), 0.0)
        return Allowance(
            max(WORST * roundoff, AGAIN * self.itself.worst), max(TOTAL * roundoff, AGAIN * self.itself.total),
            "two versions of one kernel",
        )  # fmt: skip


def difference(out: LiveArray, ref: LiveArray) -> Error:
    """Returns the error of ``out`` against ``ref``, two tensors of equal shape and dtype on one device."""
    return _compared(out, ref).error


def _compared(out: Any, ref: Any, allowed: Allowance = EXACT, name: str = "") -> Compared:
    import torch

    if ref.numel() == 0 or torch.equal(bits(out), bits(ref)):
        return Compared(name, 0.0, NO_ERROR, allowed, 0.0)
    wanted = Wanted(ref, str(ref.dtype).removeprefix("torch."), allowed, special=True)
    return compared({name: wanted}, {name: out}, Tensors(torch))


def bits(tensor: LiveArray) -> LiveArray:
    """Returns the bytes of a tensor; compared as bytes, a NaN is equal to itself."""
    import torch

    return tensor.contiguous().view(-1).view(torch.uint8)


def _kind(tensor: LiveArray) -> str:
    return f"{'×'.join(map(str, tensor.shape))} {str(tensor.dtype).removeprefix('torch.')}"
