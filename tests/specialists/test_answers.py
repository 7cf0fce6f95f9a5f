"""Specialists of kernel languages answer by the loop: every answer is a run in the ledger, and ideas pass its gate."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from tests.made_runs import metrics, run_record

from tilewright.cli.optimize_table import optimized
from tilewright.errors import RequestError, TaskError
from tilewright.ledger.ledger import Ledger
from tilewright.optimize.optimized import Optimized
from tilewright.optimize.proposed import Change, Seen
from tilewright.records import Bound
from tilewright.report import cells
from tilewright.specialists import specialist_of, specialists
from tilewright.specialists.delegation import Delegation, light_measure
from tilewright.specialists.kernels import KernelSpecialist, answer_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "triton" / "softmax.py"


def work(specialist: str, file: Path | str) -> Delegation:
    return Delegation(specialist, "make it faster", "the task's workloads", ("latency in µs",), file=str(file))


class Wrong:
    """Proposes one version whose results are wrong."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def propose(self, seen: Seen) -> Change | None:
        self.seen.append(seen)
        if len(self.seen) > 1:
            return None
        texts = {
            path: text.replace("powers / tl.sum(powers, 0)", "powers / 2 / tl.sum(powers, 0)")
            for path, text in seen.texts.items()
        }
        assert texts != seen.texts
        return Change("halved", "halves the results", texts)


@pytest.mark.long
def test_an_answer_is_a_run_and_a_wrong_idea_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    file = tmp_path / "softmax.py"
    shutil.copy(EXAMPLE, file)
    before = file.read_bytes()
    specialist, wrong = specialist_of("tileir"), Wrong()
    assert isinstance(specialist, KernelSpecialist)
    answer = specialist.answer(work("tileir", file), proposers=(wrong,))
    assert file.read_bytes() == before
    assert len(wrong.seen) >= 1
    with Ledger() as ledger:
        (run,) = ledger.runs()
        tried = ledger.iterations(run.run)
    assert any(one.entry == "proposed" and one.status != "keep" for one in tried)
    assert not any("halved" in text for text in answer.findings.values())
    assert all(finding.partition("/")[0] == run.run for finding in answer.findings)
    assert (answer.outcome == "analysed") == (not run.measured)
    assert bool(answer.measures) == run.measured, "a predicted time is no measure"


def test_the_shares_of_an_answer_are_those_of_the_table_and_name_their_source() -> None:
    """`optimize` prints the same share as the measures of the specialist, and both say what the limit is made of."""
    bound = Bound("memory", "1 FLOP/B: below 10 (H200: 4.8 TB/s)", 1.0, 206.0, 9.0, "counted in Tile IR, all 8 blocks")
    sides = [replace(metrics(name, us), bound=bound) for name, us in (("a", 20.0), ("a", 15.0))]
    record = replace(run_record(), run="rms_norm-1", baseline=(sides[0],), final=(sides[1],))
    result = Optimized(record, (), "", Path())
    latency, light = answer_of(result).measures
    assert (latency.before, latency.after, light.unit) == (sides[0].us, sides[1].us, "%")
    assert light.evidence == record.run
    assert light.metric == f"SOL % of a (limit {bound.limit})"
    assert "4.8 TB/s" in bound.limit and "counted in Tile IR, all 8 blocks" in bound.limit
    console = Console(width=200, record=True, file=StringIO())
    console.print(*optimized(result, "FILE"))
    text = console.export_text()
    assert f"{light.after:.1f}%" in text and f"speed of light of a: {bound.limit}" in text
    assert f"{light.after:.1f}%" == cells.light(sides[1], "final/0", "final/0/bound")


@pytest.mark.parametrize("us", [0.0, -1.0, math.inf, math.nan])
def test_no_share_is_made_of_what_is_no_time(us: float) -> None:
    bound = Bound("memory", "", 1.0, 206.0, 9.0)
    assert bound.share(us) is None and bound.share(18.0) == 0.5
    with pytest.raises(RequestError, match="is no time"):
        light_measure("a", (bound, 1.0), (bound, us), "run")


def test_work_of_another_language_is_refused() -> None:
    pytest.importorskip("triton")
    with pytest.raises(RequestError, match="launches a triton kernel, which is no work for cutile"):
        specialist_of("cutile").answer(work("cutile", EXAMPLE))
    with pytest.raises(RequestError, match="names no file; give a task as FILE"):
        specialist_of("tileir").answer(work("tileir", ""))


def test_a_file_that_is_no_task_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "empty.py"
    path.write_text("")
    for file in (path, tmp_path / "none.py", tmp_path):
        with pytest.raises((RequestError, TaskError)) as raised:
            specialist_of("cutile").answer(work("cutile", file))
        assert "\n" not in str(raised.value)


def test_all_are_built() -> None:
    assert all(each.works for each in specialists())
