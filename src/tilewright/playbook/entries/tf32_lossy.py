"""Casts the float32 operands of a product to tfloat32, as `tf32` does, for tasks that do not declare tf32."""

from __future__ import annotations

from tilewright.playbook.base import EntryDescription
from tilewright.playbook.entries.tf32 import EFFECT, WHEN_NOT, Tf32

ENTRY = Tf32(
    EntryDescription(
        id="tf32_lossy",
        name="TF32 where float32 is declared",
        what="float32 operands of a product cast to tfloat32; the sum stays float32",
        when="float32 tiles reach ct.mma or @, and the user allows changes that round differently",
        when_not=f"{WHEN_NOT}; results that need more than ten bits of mantissa",
        priority={"compute": 2, "balanced": 2, "memory": 10},
        eases=("tensor path",),
        order=60,
        effect=EFFECT,
        risk="lossy",
    ),
    declared=False,
)
