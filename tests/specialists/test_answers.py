"""Specialists of kernel languages answer by the loop: every answer is a run in the ledger, and ideas pass its gate."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tilewright.errors import RequestError, TaskError
from tilewright.ledger.ledger import Ledger
from tilewright.optimize.proposed import Change, Seen
from tilewright.specialists import specialist_of, specialists
from tilewright.specialists.delegation import Delegation
from tilewright.specialists.kernels import KernelSpecialist

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


def test_those_that_are_built_work() -> None:
    assert {each.name for each in specialists() if each.works} == {"profiling", "cutile", "triton", "tileir"}
