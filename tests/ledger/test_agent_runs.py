"""The runs of `agent`: what goes in comes out, in its order, and nothing else goes in."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ledger.test_tunings import MACHINE

from tilewright.errors import StorageError
from tilewright.ledger.agent_records import (
    STEPS,
    AgentChange,
    AgentEnd,
    AgentFinding,
    AgentItem,
    AgentMeasurement,
    AgentParts,
    AgentRun,
    AgentStep,
)
from tilewright.ledger.agent_runs import AgentLedger
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.runs import LedgerFile
from tilewright.race.stats import Interval

OLD = Path(__file__).parent / "old" / "ledger.db.gz"
RACE = AgentMeasurement(
    kind="race", about="R1.1 against the kept version", change="R1.1", values={"step before, µs": 20.0},
    ratio=Interval(0.7, 0.75, 0.8, 0.99, 9), samples_us={"before": (20.0, 21.0), "after": (15.0, 15.5)},
    verdict="faster", device="this CPU",
)  # fmt: skip
ITEM = AgentItem(id="R1", text="enable FlashAttention", impact="High", effort="Low", risk="lossless",
                 specialists=("profiling",), findings=("R1",))  # fmt: skip
FINDING = AgentFinding(id="R1", kind="recommendation", level="High", text="enable FlashAttention", item="R1")
CHANGE = AgentChange(id="R1.1", item="R1", specialist="profiling", name="sdpa", rationale="one kernel",
                     site="train.py:3", texts={"/p/train.py": "new"}, before={"/p/train.py": "old"})  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[AgentLedger]:
    with AgentLedger(tmp_path / "home" / "ledger.db") as opened:
        yield opened


def begin(ledger: AgentLedger, key: str = "key") -> str:
    record = AgentRun(key=key, task="train.py", machine=MACHINE, measured=True, question="speed up train.py",
                      mode="autopilot", program=("python", "train.py"), root="/p", specialists=("profiling",),
                      why="measure first", trace='CASEBOOK: no-match query="speed up train.py"')  # fmt: skip
    return ledger.begin(record).run


def kept(ledger: AgentLedger, run: str) -> str:
    """Stores an item with one change that is kept. Returns the id of its measurement."""
    ledger.planned(run, ITEM)
    ledger.found(run, FINDING)
    ledger.proposed(run, CHANGE)
    id = ledger.measured(run, RACE).id
    for name in STEPS:
        ledger.stepped(run, AgentStep(change="R1.1", name=name, state="done", evidence=id))
    ledger.ended(run, AgentEnd(item="R1", status="applied", why="", reason="0.75 of the time", evidence=id))
    return id


def test_a_run_comes_back_as_it_was(ledger: AgentLedger) -> None:
    run = begin(ledger)
    id = kept(ledger, run)
    ledger.finish(run, "nothing left to try", effect=id, proof=id, patch="--- a")
    record, parts = AgentLedger(ledger.path).load("latest")
    assert id == f"{run}/m0"
    assert (record.stop_reason, record.effect, record.proof, record.patch) == ("nothing left to try", id, id, "--- a")
    assert record.finished
    stored = parts.measurement(id)
    assert stored is not None
    assert (stored.ratio, stored.samples_us, stored.values) == (RACE.ratio, RACE.samples_us, RACE.values)
    assert (parts.items, parts.findings, parts.changes, parts.kept) == ((ITEM,), (FINDING,), (CHANGE,), (CHANGE,))
    assert [step.name for step in parts.steps_of("R1.1")] == list(STEPS)
    assert parts.end_of("R1") == parts.ends[0]


def test_steps_out_of_order_are_refused(ledger: AgentLedger) -> None:
    run = begin(ledger)
    ledger.planned(run, ITEM)
    ledger.proposed(run, CHANGE)
    for name in ("backup", "finish"):
        with pytest.raises(StorageError, match="in their order"):
            ledger.stepped(run, AgentStep(change="R1.1", name=name, state="done", evidence="m0"))
    ledger.stepped(run, AgentStep(change="R1.1", name="baseline", state="done", evidence="m0"))
    with pytest.raises(StorageError):
        ledger.stepped(run, AgentStep(change="R1.1", name="baseline", state="done", evidence="m0"))
    with pytest.raises(StorageError, match="CHECK"):
        ledger.stepped(run, AgentStep(change="R1.1", name="backup", state="done"))
    assert len(ledger.load(run)[1].steps) == 1


def test_what_belongs_to_nothing_is_refused(ledger: AgentLedger) -> None:
    run = begin(ledger)
    with pytest.raises(StorageError):
        ledger.proposed(run, CHANGE)  # its item is not there
    with pytest.raises(StorageError):  # neither an item nor dismissed
        ledger.found(run, AgentFinding(id="R1", kind="recommendation", level="High", text="x"))
    assert ledger.load(run)[1] == AgentParts()


def test_rows_are_not_changed(ledger: AgentLedger) -> None:
    kept(ledger, begin(ledger))
    with sqlite3.connect(ledger.path) as connection:
        for table in ("measurements", "findings", "items", "changes", "steps", "ends"):
            for change in (f"UPDATE agent_{table} SET at = ''", f"DELETE FROM agent_{table}"):
                with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                    connection.execute(change)


def test_a_run_ends_when_its_items_have(ledger: AgentLedger) -> None:
    run = begin(ledger)
    ledger.planned(run, ITEM)
    with pytest.raises(StorageError, match="R1 has not ended"):
        ledger.finish(run, "done")
    ledger.ended(run, AgentEnd(item="R1", status="remaining", why="blocked", reason="needs a GPU"))
    ledger.finish(run, "done")
    with pytest.raises(StorageError, match="finished"):
        ledger.measured(run, RACE)


def test_an_interrupted_run_resumes_with_its_parts(ledger: AgentLedger) -> None:
    run = begin(ledger)
    kept(ledger, run)
    with AgentLedger(ledger.path) as again:
        found = again.resume("key")
        assert found is not None
        assert (found[0].run, [one.item for one in found[1].ends]) == (run, ["R1"])
        assert again.measured(run, RACE).id == f"{run}/m1"
        assert again.stored() == (1, False)


def test_a_ledger_of_an_earlier_schema_takes_runs_of_agent(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(gzip.decompress(OLD.read_bytes()))
    with AgentLedger(path) as ledger, Ledger(path) as loops:
        earlier = {one.run for one in loops.runs()}
        run = begin(ledger)
        kept(ledger, run)
        assert len(earlier) == 2
        assert {one.run for one in loops.runs()} == earlier
        with LedgerFile(path) as whole:
            assert whole.find("latest") == (run, "agent")
