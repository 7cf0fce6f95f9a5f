"""A scripted proposer on a small kernel, without a GPU: nothing hostile is kept, the useful is judged as by hand."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.optimize.kit import git, repository
from tests.optimize.proposing.patches import CENTRED, HOSTILE, USEFUL, Edit, answers, diff, edited

from tilewright.ledger.records import Iteration
from tilewright.optimize.loop import optimize
from tilewright.optimize.optimized import Optimized, to_json
from tilewright.optimize.options import Options
from tilewright.optimize.proposing.asked import Propose
from tilewright.report.report import report

SCRIPT = Path(__file__).with_name("scripted.py")
JUDGED_BY_RUNNING = {"most blocks are not launched": "incorrect", "the answer is stored in the kernel": "incorrect"}
"""Hostile kinds that are kernels like any other: only their outputs show what they are."""
NO_PATCH = {"the answer is prose"}
SOME = {
    kind: USEFUL[kind]
    for kind in (
        "occupancy is asked for",
        "the number of chunks is counted once",
        "one pass: the row stays in registers",
    )
}
"""A hint, the same code in other words, and another algorithm."""


def by_proposer(folder: Path, edits: Mapping[str, Edit], seed: int = 1) -> tuple[Optimized, list[dict[str, Any]]]:
    """A run in which the scripted proposer sends these edits, and what the proposer was told each time."""
    file, said = repository(folder, CENTRED, "centred.py"), answers(edits)
    script, requests = folder.parent / "answers.json", folder.parent / "requests.jsonl"
    script.write_text(json.dumps([*said.values()]))
    command = shlex.join([sys.executable, str(SCRIPT), str(script), str(requests)])
    propose = Propose(command, attempts=len(said), failures=len(said), only=True)
    found = optimize(str(file), arch="sm_90", seed=seed, options=Options(seconds=60, propose=propose))
    assert file.read_text() == CENTRED, "the user's file is as it was"
    return found, [json.loads(line) for line in requests.read_text().splitlines()]


def by_hand(folder: Path, edits: Mapping[str, Edit], seed: int = 1) -> Optimized:
    """A run on the same file in which a person gives the same changes with --change."""
    changes = []
    for n, edit in enumerate(edits.values()):
        changes.append(folder.parent / f"{n:02}.patch")
        assert not isinstance(edit, str)
        changes[-1].write_text(diff(CENTRED, edited(edit)))
    file, limits = str(folder / "centred.py"), {"iterations": len(changes), "patience": len(changes)}
    return optimize(file, arch="sm_90", seed=seed, options=Options(seconds=60, changes=tuple(changes), **limits))  # type: ignore[arg-type]


def judged(folder: Path, row: Iteration) -> tuple[object, ...]:
    """What must be the same whoever proposes: the verdict, the digest of the code, and the machine code."""
    digest = git(folder, "rev-parse", f"{row.commit}^{{tree}}").strip() if row.commit else ""
    codes = [outcome.code and outcome.code.code_hash for outcome in row.outcomes]
    waits = row.to_confirm and (row.to_confirm.speedup, row.to_confirm.kind)
    return row.status, row.correctness, row.reason, row.diff, row.predicted_ms, waits, digest, codes


def nothing_hostile_is_kept(found: Optimized, hostile: Mapping[str, Edit]) -> None:
    rows = {row.site if row.site != "no answer" else "the answer is prose": row for row in found.iterations[1:]}
    for kind in hostile:
        row = rows[kind]
        assert row.status != "keep" and row.to_confirm is None, kind
        if kind in JUDGED_BY_RUNNING:
            assert row.correctness == "FAIL" and JUDGED_BY_RUNNING[kind] in row.reason, (kind, row.reason)
        else:
            assert row.correctness == "unverified" and row.commit is None, (kind, row.reason)
            assert bool(row.tampering) != (kind in NO_PATCH), (kind, row.reason)
    assert not found.kept and found.patch == ""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Optimized, list[dict[str, Any]], Optimized]:
    """Hostile and useful patches in turn, and the useful ones again by hand."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("mixed") / "user"
        patch.setenv("TILEWRIGHT_HOME", str(folder.parent / "home"))
        return folder, *by_proposer(folder, {**HOSTILE, **SOME}), by_hand(folder, SOME)


Mixed = tuple[Path, Optimized, list[dict[str, Any]], Optimized]


def test_nothing_hostile_is_kept(mixed: Mixed) -> None:
    nothing_hostile_is_kept(mixed[1], HOSTILE)


def test_useful_patches_are_judged_as_by_hand(mixed: Mixed) -> None:
    folder, found, _, hand = mixed
    ours = {row.site: judged(folder, row) for row in found.iterations[1:] if row.site in SOME}
    assert list(ours.values()) == [judged(folder, row) for row in hand.iterations[1:]]
    statuses = {row.reason.partition(" ")[0] for row in hand.iterations[1:]}
    assert len(ours) == len(SOME) and len(statuses) > 1, "several kinds of verdict, so that the same says something"
    assert any(row.to_confirm for row in found.iterations), "one of them is predicted to gain"


@pytest.mark.long  # the test above does the same with three of them
def test_every_useful_patch_is_judged_as_by_hand(tmp_path: Path) -> None:
    folder = tmp_path / "user"
    found, hand = by_proposer(folder, USEFUL)[0], by_hand(folder, USEFUL)
    ours = [judged(folder, row) for row in found.iterations[1:]]
    assert ours == [judged(folder, row) for row in hand.iterations[1:]] and len(ours) == len(USEFUL)


def test_the_proposer_gets_the_incumbent_its_diagnosis_and_why_it_failed(mixed: Mixed) -> None:
    _, found, requests, _ = mixed
    first, second = requests[:2]
    assert first["files"] == {"centred.py": CENTRED}
    assert first["may_change"] == {"centred.py": ["ZERO", "centre", "launch"]}
    assert set(first["protected"]["centred.py"]) >= {"centred", "task"}
    (workload,) = first["workloads"]
    assert workload["time_is"] == "predicted" and workload["us"] > workload["speed_of_light_us"] > 0
    assert workload["diagnosis"]["limits"][0]["evidence"] and workload["machine_code"]["registers"] > 0
    assert (first["history"], first["last_failure"]) == ([], None)
    assert second["last_failure"] == "changes centred, which reference= of the task uses"
    assert second["history"][0]["tampering"] and second["limits"]["proposals_left"] == len(requests) - 1
    assert [each["status"] for each in requests[-1]["history"]] == [row.status for row in found.iterations[1:-1]]


def test_attempts_to_tamper_are_in_the_report_and_in_json(mixed: Mixed) -> None:
    _, found, _, _ = mixed
    tampering = [row for row in found.iterations if row.tampering]
    assert len(tampering) == len(HOSTILE) - len(NO_PATCH | set(JUDGED_BY_RUNNING) & set(HOSTILE))
    rows: Any = to_json(found)["iterations"]
    assert [row["n"] for row in rows if row.get("tampering")] == [row.n for row in tampering]
    home = found.folder.parents[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_HOME", str(home))
        text = report(found.record.run).markdown()
    section = text.split("## Attempts to tamper")[1].split("\n## ")[0]
    for row in tampering:
        assert row.site.replace("_", "\\_") in section
    assert all(attempt.diff for row in tampering for attempt in row.attempts), "what was refused is the evidence"
