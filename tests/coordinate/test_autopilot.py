"""Each finding of each profile becomes an item or is dismissed, and delegations quote the last profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.coordinate.made_agent import FASTER, ScriptedJudge, coordinator, plan_for, program_in, proposing
from tests.profile.made_traces import MadeTrace, data_parallel, eager_training

from tilewright.coordinate.autopilot import ids_to_quote, items_of_kernels, items_of_profile
from tilewright.coordinate.principles import PRINCIPLES
from tilewright.coordinate.priority import WorkItem
from tilewright.profile.figures import Profile
from tilewright.profile.profile import profile


def read(made: MadeTrace, folder: Path, name: str) -> Profile:
    return profile(made.write(folder / f"{name}.json"))


def test_every_finding_becomes_an_item_or_is_dismissed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    script = program_in(tmp_path / "program")
    asked = proposing(monkeypatch, slow="fast")
    first, second = (read(eager_training(seed), tmp_path, f"trace{seed}") for seed in (0, 1))
    assert first.findings and {each.id for each in first.findings} != {each.id for each in second.findings}
    judge = ScriptedJudge({"fast": FASTER}, profiles=[first, second])
    plan = replace(plan_for(script), gpu=True)
    with coordinator(plan, tmp_path / "home", judge) as made:
        parts = made.work().parts
    found = {each.id: each for each in parts.findings}
    for each in (*first.findings, *second.findings):
        assert bool(found[each.id].item) != bool(found[each.id].dismissed)
        evidence = parts.measurement(found[each.id].evidence)
        assert evidence is not None and evidence.kind == "profile"
    assert {end.item for end in parts.ends} == {item.id for item in parts.items}
    ids = {each.id for each in second.findings}
    quoted = [delegation.findings for delegation in asked if delegation.findings]
    assert quoted and any(set(each) <= ids for each in quoted), (
        "after a kept change, delegations quote the next profile"
    )


EXAMPLE = Path(__file__).parents[2] / "examples" / "attention_by_hand"


def test_an_analysis_of_attention_is_worked_through_with_the_real_specialists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each recommendation is applied, or remains with its reason. Only the times are scripted."""
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    script = program_in(tmp_path / "program")
    script.write_bytes((EXAMPLE / "train.py").read_bytes())
    judge = ScriptedJudge({"scaled_dot_product_attention": FASTER})
    with coordinator(plan_for(script, analysis=EXAMPLE / "analysis.txt"), tmp_path / "home", judge) as made:
        book = made.work()
    ends = {end.item: (end.status, end.why) for end in book.parts.ends}
    assert ends["R1"] == ("applied", "")
    assert ends["R2"] == ("remaining", "mechanism already present")
    assert ends["R3"][0] == "remaining" and ends["R3"][1] in ("inapplicable", "blocked")
    assert all(end.reason for end in book.parts.ends)
    assert "scaled_dot_product_attention(" in script.read_text()
    (change,) = book.parts.kept
    assert change.ran, "operations must prove that it ran"


def test_a_kind_is_worked_on_once(tmp_path: Path) -> None:
    found = read(eager_training(), tmp_path, "trace")
    items, dismissed = items_of_profile(found, (), 1, "m0")
    assert len(items) == len({each.kind for each in found.findings})
    assert len(items) + len(dismissed) == len(found.findings)
    assert all(item.specialists[-1] == "profiling" for item in items)
    tags = {each.id: each.tag for each in found.findings}
    assert [item.tag for item in items] == [tags[item.findings[0]] for item in items]
    assert {item.tag for item in items} <= set(PRINCIPLES) and all(item.tag for item in items)


def test_what_a_delegation_quotes(tmp_path: Path) -> None:
    last = read(data_parallel(), tmp_path, "trace")
    one = next(each for each in last.findings if each.kind == "communication")
    earlier = WorkItem("F1", "overlap", "High", findings=("0a1b2c3d-communication-gpu0",))
    assert ids_to_quote(earlier, last) == (one.id,)
    assert set(ids_to_quote(WorkItem("R1", "overlap", "High"), last)) == {each.id for each in last.findings}
    assert ids_to_quote(WorkItem("S1", "fused", "High", change="fused"), last) == ()
    assert ids_to_quote(earlier, None) == ()


def test_an_item_of_kernels_names_their_places() -> None:
    folder = Path(__file__).parents[2] / "examples" / "slow_training"
    (item,) = items_of_kernels(sorted(folder.glob("*.py")), folder)
    line = (folder / "kernels.py").read_text().splitlines().index("def softmax(x, y, TILE_N: ct.Constant[int]):") + 1
    assert item.text == f"make the program's cutile kernels faster: softmax (kernels.py:{line})"
    assert item.specialists == ("cutile",)
