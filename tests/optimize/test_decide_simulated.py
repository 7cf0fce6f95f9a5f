"""Decisions on simulated machines: trust.md 42. The same cells with 2,000 decisions are in bench/recorded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from decide_simulated import CELLS, POWERFUL, RATIOS, RULES, Cell, outcomes  # noqa: E402

from tilewright.optimize.decide import LOOKS  # noqa: E402

RECORDED = json.loads((BENCH / "recorded" / "simulated-decisions-2026-11-22.json").read_text())
DECISIONS = 250
"""If none is kept, the share that is kept is at most 1.2 %."""
FALSE_KEEPS = 0.015
COST = 1.5


@pytest.mark.parametrize("noise", CELLS)
def test_noise_is_not_kept(noise: str) -> None:
    assert outcomes(CELLS[noise], 1.0, RULES["by_captures"], DECISIONS).upper <= FALSE_KEEPS


@pytest.mark.parametrize("noise", POWERFUL)
def test_gains_are_kept_within_the_time(noise: str) -> None:
    for ratio, share in ((0.97, 0.9), (0.9, 0.99)):
        now, before = (outcomes(CELLS[noise], ratio, RULES[rule], 100) for rule in ("by_captures", "by_rounds"))
        assert now.kept >= share * now.decisions
        assert now.launches <= COST * before.launches


@pytest.mark.parametrize("noise", ["offset 0.5 %", "AR 0.995"])
def test_rounds_of_one_capture_look_like_a_gain(noise: str) -> None:
    """What made several captures necessary."""
    assert outcomes(CELLS[noise], 1.0, RULES["by_rounds"], DECISIONS).kept > FALSE_KEEPS * DECISIONS


def test_noise_that_cannot_be_resolved_is_not_decided() -> None:
    noisy = CELLS["independent 3.5 %"]
    found = outcomes(type(noisy)(**{**vars(noisy), "offset": 0.1}), 0.97, RULES["by_captures"], 40)
    assert found.kept <= 1 and found.undecided >= 36


def test_the_recorded_cells_hold_the_bounds() -> None:
    assert RECORDED["looks"] == [list(look) for look in LOOKS], "record anew: python bench/decide_simulated.py --out …"
    cells = {(cell["noise"], cell["ratio"]): cell for cell in RECORDED["cells"]}
    assert set(cells) == {(noise, ratio) for noise in CELLS for ratio in RATIOS}
    for (noise, ratio), cell in cells.items():
        now = cell["by_captures"]
        assert now["decisions"] >= 2000
        if ratio == 1.0:
            assert now["upper"] <= FALSE_KEEPS, noise
        elif noise in POWERFUL:
            assert now["kept"] >= {0.97: 0.9, 0.9: 0.99}[ratio] * now["decisions"], noise
            assert cell["cost"] <= COST, noise


@pytest.mark.parametrize(("kept", "upper"), [(0, 0.001497), (20, 0.014503), (21, 0.01508), (2000, 1.0)])
def test_the_upper_bound_is_clopper_and_pearsons(kept: int, upper: float) -> None:
    assert Cell(2000, kept, 0, 0.0).upper == pytest.approx(upper, rel=0.01)
