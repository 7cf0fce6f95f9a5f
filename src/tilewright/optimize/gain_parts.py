"""Divides a kept gain into the part of the structure and the part of the hints that were added to it (`fields`).

The field of a structural change normally races the structure at the incumbent's hints, too. So no race is added. The
hints' part holds for this structure. What they would bring to the incumbent is not known.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ledger.records import Attempt, GainParts
from tilewright.optimize.attempting import Variant
from tilewright.optimize.gates.base import RankedVariant


def gain_parts(kept: Variant, ranked: Sequence[RankedVariant], attempts: Sequence[Attempt]) -> GainParts | None:
    """Returns the parts of the gain of ``kept``; None if no hints were added to its structure.

    ranked, attempts: the raced variants of its field, and the outcomes of all.
    """
    if not kept.structure:
        return None
    hints = str(kept.value).removeprefix(f"{kept.structure}, ")
    alone = next((attempt for attempt in attempts if attempt.value == kept.structure), None)
    if alone is None or alone.status != "raced":
        return GainParts(hints=hints, not_separated=f"{alone.status}: {alone.reason}" if alone else "not built")
    ratios = {str(each.variant.value): each.ratio for each in ranked}
    structure, both = ratios[kept.structure], ratios[str(kept.value)]
    return GainParts(hints=hints, of_structure=1 / structure, of_hints=structure / both)
