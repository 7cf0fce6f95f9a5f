"""The findings of a profile name lines of the program's source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.profile.made_traces import eager_training

from tilewright.cli import profile_table
from tilewright.coordinate.autopilot import finding_of, items_of_profile
from tilewright.profile.figures import Profile, ProfileFinding
from tilewright.profile.profile import profile
from tilewright.program.changes import changes_for
from tilewright.program.places import MOST, located
from tilewright.report import profile_views

PROGRAM = """import torch
from torch.utils.data import DataLoader

import kernels
from data import Rows

model = torch.nn.Linear(4, 3)
loader = DataLoader(Rows(), batch_size=4)
total = 0.0
for x, y in loader:
    x, y = x.to("cuda"), y.to("cuda")
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    total += loss.item()
    if loss.item() > 9:
        break
"""
KERNELS = """import triton


@triton.jit
def scale_rows(x):
    pass
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "data.py").write_text("class Rows:\n    pass\n")
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path / "train.py"


def finding(of: Profile, kind: str, text: str = "a finding") -> ProfileFinding:
    return replace(of.findings[0], kind=kind, text=text)


def test_each_kind_names_its_lines(script: Path, tmp_path: Path) -> None:
    traced = profile(eager_training().write(tmp_path / "trace.json"))
    kinds = ("pageable-copies", "host-sync", "communication")
    hot = finding(traced, "hot-kernel", "the kernel scale_rows takes 40 % of the time")
    given = replace(traced, findings=(*(finding(traced, kind) for kind in kinds), hot))
    copies, syncs, communication, kernel = located(given, script).findings
    assert {place.partition(" ")[0] for place in copies.places} >= {"train.py:8", "train.py:11"}
    assert any(place.startswith("train.py:14 (sum total)") for place in syncs.places)
    assert any(place.startswith("train.py:15") and "decides a branch" in place for place in syncs.places)
    assert communication.places == ()
    assert kernel.places[0] == "kernels.py:5 (kernel scale_rows)"
    assert all(len(each.places) <= MOST for each in (copies, syncs, kernel))


def test_places_are_shown_and_change_no_route(script: Path, tmp_path: Path) -> None:
    traced = profile(eager_training().write(tmp_path / "trace.json"))
    found = located(traced, script)
    with_places = next(each for each in found.findings if each.places)
    shown = [line for each in found.findings for line in profile_table._finding(each)]
    assert any(f"in the source: {with_places.places[0]}" in line for line in shown)
    assert with_places.places[0] in profile_views.analysis(found).replace("\\", "")
    assert with_places.places[0] in finding_of(with_places, "F1", "m1").text
    (before, _), (after, _) = (items_of_profile(each, (), 1, "m1") for each in (traced, found))
    assert [item.text for item in before] == [item.text for item in after]
    assert [changes_for(item.text) for item in before] == [changes_for(item.text) for item in after]
    assert profile_views.for_agent(found) == profile_views.for_agent(traced)


def test_a_script_that_cannot_be_read_names_no_lines(tmp_path: Path) -> None:
    traced = profile(eager_training().write(tmp_path / "trace.json"))
    assert located(traced, tmp_path / "missing.py") == traced
