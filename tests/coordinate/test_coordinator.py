"""The coordinator: one change at a time, only what was kept reaches the user's files, and a killed run goes on."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from tests.coordinate.made_agent import (
    FASTER,
    PROGRAM,
    SLOWER,
    TIED,
    ScriptedJudge,
    coordinator,
    plan_for,
    program_in,
    proposing,
    worked,
)

from tilewright.coordinate import from_run
from tilewright.coordinate.agent_plan import lines_of, refuse_what_is_not_here
from tilewright.coordinate.coordinator import Coordinator
from tilewright.coordinate.priority import WorkItem
from tilewright.errors import MachineError, RequestError, ToolFailed
from tilewright.ledger.agent_records import STEPS, AgentChange, AgentFinding, AgentParts
from tilewright.optimize.versions.journal import Journal
from tilewright.program.findings.base import RunFinding
from tilewright.program.findings.record import Line as ProgramLine
from tilewright.program.trial import Needed, Texts
from tilewright.report.agent.evidence import AgentEvidence
from tilewright.report.agent.views import report_of

REPORT = """Primary bottleneck: memory-bound
Evidence: 89 % of peak
Recommendations:
1. [Low] Enable FlashAttention: fast
2. [High] kernel fusion: faster
3. [Medium] Apply memory pooling for attention buffers
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return program_in(tmp_path / "program")


def states(parts: AgentParts, change: str) -> list[tuple[str, str]]:
    return [(step.name, step.state) for step in parts.steps_of(change)]


# One change at a time -------------------------------------------------------------------------------


def test_what_is_faster_and_right_is_kept_and_the_rest_never_reaches_the_files(
    script: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposing(monkeypatch, slow="fast", slower="same")
    judge = ScriptedJudge({"fast": FASTER, "same": TIED})
    book = worked(script, home, judge)
    assert script.read_text() == PROGRAM.replace("slow =", "fast =")
    ends = {end.item: (end.status, end.why) for end in book.parts.ends}
    assert ends == {"S1": ("applied", ""), "S2": ("rolled back", "applied but no gain")}
    assert states(book.parts, "S1.1") == [(name, "done") for name in STEPS]
    assert [state for _, state in states(book.parts, "S2.1")] == ["done"] * 4 + ["failed", "left out", "done"]
    assert judge.seen[2] == ("same", {script: PROGRAM.replace("slow =", "fast =")})  # raced against what was kept
    assert book.run.stop_reason == "1 change kept; the command is faster beyond the noise"
    assert "-slow = 1\n+fast = 1\n" in book.run.patch


def test_what_was_no_gain_is_tried_again_after_another_change_was_kept(
    script: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first change gains only once the second has made something else the bottleneck."""
    proposing(monkeypatch, slow="late", slower="fast")
    ratios = {"late": TIED, "fast": FASTER}
    judge = ScriptedJudge(ratios, before_each=lambda name: ratios.update(late=FASTER) if name == "effect" else None)
    book = worked(script, home, judge)
    assert [(end.item, end.status) for end in book.parts.ends] == [
        ("S1", "rolled back"), ("S2", "applied"), ("A1", "rolled back"),
    ]  # fmt: skip
    assert [name for name, _ in judge.seen] == ["baseline", "late", "fast", "late", "effect"]


def test_every_number_of_a_step_is_a_measurement_an_entry_of_the_journal_or_a_place(
    script: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposing(monkeypatch, slow="fast", slower="wrong")
    book = worked(script, home, ScriptedJudge({"fast": FASTER}))
    measured = {each.id for each in book.parts.measurements}
    with Journal.open(script.parent, book.run.run, home) as journal:
        entries = {entry.id for entry in journal.entries}
    for step in book.parts.steps:
        if step.state == "done":
            assert step.evidence in measured | entries or re.fullmatch(r"train\.py:\d+", step.evidence), step
    assert {end.evidence for end in book.parts.ends} <= measured
    assert {book.run.effect, book.run.proof} <= measured


def test_an_effect_that_is_not_shown_is_called_that(script: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proposing(monkeypatch, slow="fast")
    book = worked(script, home, ScriptedJudge({"fast": FASTER}, effect_ratio=TIED))
    assert book.run.stop_reason == "1 change kept, each faster on its own; no effect on the whole command was shown"


def test_without_a_kept_change_nothing_was_written(script: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proposing(monkeypatch, slow="slower2")
    before = script.stat()
    book = worked(script, home, ScriptedJudge({"slower2": SLOWER}))
    assert (script.stat().st_mtime_ns, script.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert (book.run.stop_reason, book.run.effect, book.run.patch) == ("no change was kept", "", "")


def test_the_time_limit_ends_the_work_with_a_reason(script: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proposing(monkeypatch, slow="fast")
    with coordinator(plan_for(script), home, ScriptedJudge({"fast": FASTER}), seconds=-1.0) as made:
        book = made.work()
    assert book.run.stop_reason == "no change was tried: the time limit was reached; raise it with --seconds"
    parts = book.parts
    assert [(end.status, end.why) for end in parts.ends] == [("remaining", "blocked")]
    assert "--seconds" in parts.ends[0].reason


def test_a_change_is_begun_only_if_it_and_the_last_race_fit_into_the_time_left(
    script: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change takes 50 s and the last race 20 s. In 100 s there is time for one change. What it needs is estimated
    before it is begun, so the run ends with its race, and the other change is named as not tried."""
    proposing(monkeypatch, slow="fast", slower="faster")
    now = [0.0]

    def works(name: str) -> None:
        now[0] += {"baseline": 5.0, "effect": 20.0}.get(name, 50.0)

    judge = ScriptedJudge({"fast": FASTER, "faster": FASTER}, works, needs=Needed(50.0, 20.0))
    with coordinator(plan_for(script), home, judge, seconds=100.0, clock=lambda: now[0]) as made:
        book = made.work()
    assert now[0] == 75.0
    assert [name for name, _ in judge.seen] == ["baseline", "fast", "effect"]
    assert judge.most == [75.0], "what is left for the change, without the last race"
    assert [(end.status, end.why) for end in book.parts.ends] == [("applied", ""), ("remaining", "blocked")]
    assert book.parts.ends[1].reason.startswith("not tried (time): ")
    assert book.run.effect and book.run.proof and book.run.patch
    report = report_of(AgentEvidence(book.run, book.parts))
    (remaining,) = (each for each in report.sections if each.heading == "Remaining Opportunities")
    assert any("not tried (time)" in line for point in remaining.points for line in point.lines)


def test_a_profile_is_made_again_only_when_it_will_be_read(
    script: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two changes of places in the source are kept. They quote no profile, so one profile after both is enough."""
    proposing(monkeypatch, slow="fast", slower="faster")
    judge = ScriptedJudge({"fast": FASTER, "faster": FASTER})
    incumbents: list[Texts] = []

    def profile(incumbent: Texts) -> None:
        incumbents.append(incumbent)

    monkeypatch.setattr(judge, "profile", profile)
    plan = replace(plan_for(script), gpu=True)
    with coordinator(plan, home, judge) as made:
        parts = made.work().parts
    assert len(parts.kept) == 2
    assert incumbents == [{}, {script: script.read_text()}]


def test_a_lossy_change_waits_until_it_is_allowed(script: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proposing(monkeypatch, "lossy", slow="fast")
    parts = worked(script, home, ScriptedJudge({"fast": FASTER})).parts
    assert "--allow-lossy" in parts.ends[0].reason
    assert worked(script, home, ScriptedJudge({"fast": FASTER}), lossy=True).parts.ends[0].status == "applied"


# Both modes -----------------------------------------------------------------------------------------


def test_autopilot_works_through_an_analysis_by_impact_over_effort(
    script: Path, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = proposing(monkeypatch, slow="fast", slower="faster")
    report = tmp_path / "analysis.txt"
    report.write_text(REPORT)
    book = worked(script, home, ScriptedJudge({"fast": FASTER, "faster": FASTER}), analysis=report)
    assert [item.id for item in book.parts.items] == ["R2", "R3", "R1"]
    assert [end.item for end in book.parts.ends] == ["R2", "R3", "R1"]
    assert book.parts.ends[1].status == "remaining" and book.parts.ends[1].why == "inapplicable"
    assert (book.run.bottleneck, book.run.mode) == ("memory-bound", "autopilot")
    assert {each.id for each in book.parts.findings} == {"R1", "R2", "R3"}
    assert len({each.context for each in asked if each.context}) == 1  # the same text in every delegation
    assert all(each.metrics for each in asked)


def test_a_recommendation_that_nobody_answers_is_dismissed_with_its_evidence(
    script: Path, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proposing(monkeypatch)
    report = tmp_path / "analysis.txt"
    report.write_text(REPORT + "4. [High] Buy the team a coffee machine\n")
    found = {each.id: each for each in worked(script, home, ScriptedJudge({}), analysis=report).parts.findings}
    assert found["R4"].dismissed and found["R4"].evidence == str(report) and not found["R4"].item


def test_a_question_that_names_the_change_is_user_specified(
    script: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposing(monkeypatch, slow="FlashAttention")
    judge = ScriptedJudge({"FlashAttention": FASTER})
    book = worked(script, home, judge, "Enable FlashAttention in train.py")
    assert (book.run.mode, judge.asked) == ("user-specified", [True])
    stages = _stages(home, book.run.run)
    assert len(stages) == 6 and stages == sorted(stages)


def _stages(home: Path, run: str) -> list[str]:
    """When the request was parsed, the work planned, delegated, validated and ended, and the run reported."""

    tables = ("agent_items", "agent_changes", "agent_steps", "agent_ends")
    with sqlite3.connect(home / "ledger.db") as connection:
        rows = [
            connection.execute(f"SELECT min(at) FROM {table} WHERE run = ?", (run,)).fetchone()[0] for table in tables
        ]
        ends = connection.execute("SELECT at FROM run_events WHERE run = ? ORDER BY number", (run,)).fetchall()
    return [ends[0][0], *rows, ends[-1][0]]


# Bad input ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("", "no question"),
        ("a cute cat", "no performance question"),
        ("book a train ticket", "no performance question"),
        ("speed up my program", "names no program"),
        ("speed up missing.py", "missing.py"),
    ],
)
def test_what_cannot_be_planned_is_one_line(script: Path, question: str, message: str) -> None:
    with pytest.raises(RequestError) as raised:
        plan_for(script, question)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_a_plan_for_hardware_that_is_not_here_is_one_line(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_for(script, "Apply CUDA Graph to train.py")
    assert any("cuda-graph lacks here" in line for line in lines_of(plan))
    with pytest.raises(MachineError, match="this machine cannot do that: cuda-graph needs"):
        refuse_what_is_not_here(plan)


def test_a_broken_analysis_is_one_line(script: Path, tmp_path: Path) -> None:
    report = tmp_path / "analysis.txt"
    report.write_text(REPORT.replace("Evidence:", "Proof:"))
    with pytest.raises(RequestError, match=r"analysis\.txt:2: .*, expected 'Evidence:'"):
        plan_for(script, analysis=report)


def test_a_second_coordinator_gets_one_line_that_names_the_first(
    script: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposing(monkeypatch, slow="fast")
    with coordinator(plan_for(script), home, ScriptedJudge({})) as first:
        with pytest.raises(MachineError, match=first.book.run.run) as raised:
            Journal.open(script.parent, "second", home)
        assert "\n" not in str(raised.value)


def test_without_a_git_repository_it_works_too(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = program_in(tmp_path / "plain", git=False)
    proposing(monkeypatch, slow="fast")
    book = worked(script, home, ScriptedJudge({"fast": FASTER}))
    assert "fast = 1" in script.read_text()
    with Journal.open(script.parent, book.run.run, home) as journal:
        journal.revert_all()
    assert script.read_text() == PROGRAM
    assert {path.name for path in script.parent.iterdir()} == {"train.py"}


def test_a_file_that_the_user_changes_meanwhile_is_left_as_it_is(
    script: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposing(monkeypatch, slow="fast")
    mine = PROGRAM + "mine = 1\n"

    def edit(name: str) -> None:
        if name == "fast":
            script.write_text(mine)

    judge = ScriptedJudge({"fast": FASTER}, edit)
    book = worked(script, home, judge)
    assert script.read_text() == mine
    assert [(end.status, end.why) for end in book.parts.ends] == [("rolled back", "blocked")]


# Killed and resumed ---------------------------------------------------------------------------------


class Killed(BaseException):
    """Ends a run as kill -9 does: nothing of the coordinator runs after it."""


POINTS = ("baseline", "found", "planned", "proposed", "stepped", "measured", "backup", "judge", "edit", "edited",
          "ended", "effect", "finished")  # fmt: skip
TWICE = ("stepped", "measured", "judge", "edit", "edited", "ended")
"""Points that a run reaches again, with the second change."""


@pytest.mark.parametrize(("point", "time"), [*((each, 1) for each in POINTS), *((each, 2) for each in TWICE)])
def test_a_run_that_is_killed_anywhere_is_at_a_recorded_step_and_goes_on(
    script: Path, home: Path, monkeypatch: pytest.MonkeyPatch, point: str, time: int
) -> None:
    proposing(monkeypatch, slow="fast", slower="faster")
    plan, judge = plan_for(script), ScriptedJudge({"fast": FASTER, "faster": FASTER})
    one = PROGRAM.replace("slow =", "fast =")
    both = one.replace("slower", "faster")
    with pytest.MonkeyPatch.context() as patch, coordinator(plan, home, judge) as first:
        _kill_at(patch, first, point, time)
        with pytest.raises(Killed):
            first.work()
    assert script.read_text() in (PROGRAM, one, both)
    with coordinator(plan, home, judge) as second:
        assert second.book.run.run == first.book.run.run
        book = second.work()
    assert script.read_text() == both
    assert {end.item: end.status for end in book.parts.ends} == {"S1": "applied", "S2": "applied"}
    assert len(book.parts.kept) == 2


def _kill_at(patch: pytest.MonkeyPatch, coordinator: Coordinator, point: str, time: int) -> None:
    """Ends the run before, or for ``edited`` right after, the ``time``-th call of one of the things that it does."""
    owner, name = {
        "baseline": (coordinator.judge, "baseline"), "judge": (coordinator.judge, "judge"),
        "effect": (coordinator.judge, "effect"), "backup": (coordinator.files, "backup_file"),
        "edit": (coordinator.files, "edit_files"), "edited": (coordinator.files, "edit_files"),
    }.get(point, (coordinator.book._ledger, "finish" if point == "finished" else point))  # fmt: skip
    real, calls = getattr(owner, name), []

    def killed(*arguments: object, **named: object) -> object:
        calls.append(1)
        if len(calls) == time and point != "edited":
            raise Killed
        result = real(*arguments, **named)
        if len(calls) == time:
            raise Killed
        return result

    patch.setattr(owner, name, killed)


# Findings of a recorded run -------------------------------------------------------------------------


def finding(line: int, rule: str = "host-reads", *changes: str) -> RunFinding:
    at = ProgramLine("train.py", "<module>", line)
    return RunFinding(rule, (at,), "the host reads a value", "read it later", 0.25, {"reads a step": 3}, changes)


def test_a_finding_without_a_change_is_an_item_that_needs_a_proposer(
    script: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposing(monkeypatch, slow="fast")
    judge = ScriptedJudge({"fast": FASTER}, found=[finding(3)])
    book = worked(script, home, judge)
    item = next(each for each in book.parts.items if each.id == "O1")
    assert (item.text, item.impact) == (
        "the host reads a value (train.py:3, 25.0 % of the step's time): read it later", "High",
    )  # fmt: skip
    end = book.parts.end_of("O1")
    assert end is not None and (end.status, end.why) == ("remaining", "blocked")
    assert end.reason.startswith("needs a proposer")
    measured = book.parts.measurement(end.evidence)
    assert measured is not None and measured.values["O1, host-reads at train.py:3, reads a step"] == 3
    assert [each.item for each in book.parts.changes] == ["S1"]  # nothing was tried for the finding


def test_a_finding_whose_lines_a_kept_change_rewrote_is_mended(
    script: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding has the greater impact, and still ends after the change."""
    proposing(monkeypatch, slow="fast")
    gone = next(n for n, line in enumerate(script.read_text().splitlines(), 1) if "slow" in line)
    book = worked(script, home, ScriptedJudge({"fast": FASTER}, found=[finding(gone), finding(gone + 1)]))
    assert book.parts.kept and book.parts.ends[-1].item.startswith("O")
    ends = {each.item: each for each in book.parts.ends}
    assert (ends["O1"].why, ends["O1"].reason) == ("mechanism already present", "S1.1 fast has rewritten these lines")
    assert ends["O2"].reason.startswith("needs a proposer")


@pytest.mark.parametrize(("file", "is_mended"), [("my model.py", True), ("model (old).py", False)])
def test_the_file_of_a_finding_may_have_any_name(tmp_path: Path, file: str, is_mended: bool) -> None:
    """In a name with parentheses the place is not found, and the finding stays open."""
    path = str(tmp_path.resolve() / file)
    text = f"the host reads a value ({file}:1, 25.0 % of the step's time)"
    change = AgentChange(
        id="S1.1", item="S1", specialist="profiling", name="fast", rationale="it is faster", site=f"{file}:1",
        texts={path: "fast = 1\n"}, before={path: "slow = 1\n"},
    )  # fmt: skip
    found = AgentFinding(id="O1", kind="host-reads", level="High", text=text, item="O1")
    end = from_run.untried(WorkItem("O1", text, "High"), found, [change], tmp_path / "train.py")
    assert end.why == ("mechanism already present" if is_mended else "blocked")


def test_a_finding_at_the_place_of_a_change_belongs_to_its_item(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both say the same: they are one item."""
    script = program_in(tmp_path / "reads")
    script.write_text(READS)
    judge = ScriptedJudge({}, found=[finding(9, "host-reads", "host_synchronisation"), finding(2)])
    book = worked(script, home, judge)
    items = {each.change: each.id for each in book.parts.items}
    assert {each.id: each.item for each in book.parts.findings if each.id.startswith("O")} == {
        "O1": items["host_synchronisation"], "O2": "O2",
    }  # fmt: skip


READS = """import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total = 0.0
for step in range(20):
    loss = model(torch.randn(2, 4)).sum()
    loss.backward()
    optimizer.step()
    total += loss.item()
    optimizer.zero_grad()
print(total)
"""


def test_a_recorded_run_that_fails_is_one_line_and_the_rest_goes_on(
    script: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposing(monkeypatch, slow="fast")
    judge = ScriptedJudge({"fast": FASTER}, fails=ToolFailed("the run that records operations failed"))
    book = worked(script, home, judge)
    failed = [each for each in book.parts.measurements if each.kind == "record"]
    assert [(each.verdict, each.reason) for each in failed] == [("failed", "the run that records operations failed")]
    assert [end.status for end in book.parts.ends] == ["applied"]


def test_a_resumed_run_does_not_record_again(script: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proposing(monkeypatch, slow="fast", slower="same")

    def killed(name: str) -> None:
        if name == "same":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        worked(script, home, ScriptedJudge({"fast": FASTER, "same": TIED}, killed, found=[finding(3)]))
    book = worked(script, home, ScriptedJudge({"fast": FASTER, "same": TIED}, found=[finding(2), finding(3)]))
    assert [each.id for each in book.parts.items if each.id.startswith("O")] == ["O1"]
