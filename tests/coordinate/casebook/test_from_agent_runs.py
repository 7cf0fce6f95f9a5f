"""Runs of `agent` become cases: with all six fields of a measurement on a GPU, with none on a CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.coordinate.made_agent import FASTER, TIED, ScriptedJudge, program_in, proposing, worked

from tilewright.coordinate.casebook.book import casebook
from tilewright.coordinate.casebook.from_agent_runs import cases_of, from_agent_runs


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_what_was_raced_becomes_a_case(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proposing(monkeypatch, slow="fast", slower="same")
    book = worked(program_in(tmp_path / "program"), home, ScriptedJudge({"fast": FASTER, "same": TIED}))
    kept, dropped = from_agent_runs(home / "ledger.db")
    assert (kept.title, dropped.title) == ("fast helped in train.py", "same did not help in train.py")
    assert f"{TIED} of the time before" in dropped.section("Counter-signals")
    assert book.run.run in kept.section("Rollback") and book.run.run in kept.section("Verify")
    found = casebook().ask("the change fast in train.py").matches
    assert kept.name in {match.case.name for match in found}


def test_a_measurement_has_all_six_fields_or_is_none(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposing(monkeypatch, slow="fast")
    book = worked(program_in(tmp_path / "program"), home, ScriptedJudge({"fast": FASTER}))
    on_gpu, on_cpu = (
        next(cases_of(replace(book.run, machine=replace(book.run.machine, gpu=gpu)), book.parts))
        for gpu in ("H200", None)
    )
    assert (on_cpu.measured, on_cpu.maturity) == ((), "stub")
    (measured,) = on_gpu.measured
    assert all(vars(measured).values()) and on_gpu.maturity == "verified-locally"
    assert measured.value == pytest.approx(1 / FASTER.centre)
    assert book.parts.measurement(measured.run_ref) is not None


def test_without_a_ledger_there_are_none(home: Path) -> None:
    assert from_agent_runs() == ()
    assert not home.exists()
