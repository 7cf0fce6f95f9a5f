"""The third of the patches that was set aside while the gate of proposals was written (`../kinds.md`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.optimize.proposing.set_aside.patches import HOSTILE, USEFUL
from tests.optimize.proposing.test_scripted import by_hand, by_proposer, judged, nothing_hostile_is_kept


@pytest.mark.long  # test_scripted.py shows the same with the patches that were not set aside
def test_nothing_hostile_is_kept_and_the_useful_is_judged_as_by_hand(tmp_path: Path) -> None:
    folder = tmp_path / "user"
    found, _ = by_proposer(folder, {**USEFUL, **HOSTILE})
    nothing_hostile_is_kept(found, HOSTILE)
    hand = by_hand(folder, USEFUL)
    ours = [judged(folder, row) for row in found.iterations[1:] if row.site in USEFUL]
    assert ours == [judged(folder, row) for row in hand.iterations[1:]] and len(ours) == len(USEFUL)
