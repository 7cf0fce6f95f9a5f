"""The main path of `tilewright agent`. It reads, delegates, decides and records; it edits no file itself.

    question → classify → casebook → plan → delegate → decide → ledger → report

`agent_plan.planned` makes the plan. `Coordinator.work` then goes through its items, one change at a time. A specialist
proposes texts. A `ProgramJudge` tries them on a copy of the program. The journal writes only kept changes to the user's
files. A killed run continues where the ledger ends: an item that has not ended is done again.

To read a run from the ledger, use `ledger.agent_runs.AgentLedger.load`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tilewright.coordinate import autopilot, from_run, texts
from tilewright.coordinate.agent_plan import AgentPlan, constraints_of
from tilewright.coordinate.ending import ended, stop_reason
from tilewright.coordinate.plan import ChangePlan, done, failed, plan_of
from tilewright.coordinate.priority import WorkItem, ranked
from tilewright.coordinate.run_book import RunBook
from tilewright.errors import TilewrightError
from tilewright.ledger.agent_records import STEPS, AgentChange, AgentMeasurement, StepName
from tilewright.profile.figures import Profile
from tilewright.program.findings.mending import sites_of
from tilewright.program.trial import ChangeTrial, ProgramJudge
from tilewright.progress import Progress, silent
from tilewright.specialists import specialist_of
from tilewright.specialists.delegation import Delegation
from tilewright.specialists.proposal import LATE, NoProposal, ProgramProposal


class RecordedEdit(Protocol):
    """One entry of the journal."""

    @property
    def id(self) -> str: ...
    @property
    def kind(self) -> str: ...


class UserFiles(Protocol):
    """The only object that may write to the user's files: `optimize.versions.journal.Journal`."""

    @property
    def entries(self) -> tuple[RecordedEdit, ...]: ...
    def backup_file(self, path: Path | str) -> str: ...
    def edit_files(self, texts: Mapping[Path, str | bytes]) -> str: ...
    def revert_to(self, entry: str) -> str: ...
    def revert_all(self) -> str: ...


@dataclass(frozen=True)
class Hands:
    """The two helpers of the coordinator: ``judge`` runs the program in copies, ``files`` changes the user's files."""

    judge: ProgramJudge
    files: UserFiles


class Coordinator:
    """One run. ``seconds``: its time limit. A change is begun only if it and the last race fit into the time left."""

    def __init__(
        self, plan: AgentPlan, book: RunBook, hands: Hands, *, seconds: float, progress: Progress = silent,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.plan, self.book, self.judge, self.files = plan, book, hands.judge, hands.files
        self.progress, self._clock, self._until = progress, clock, clock() + seconds
        self.profile: Profile | None = None
        self._baseline = ""
        self._profiled: texts.Texts | None = None
        self._tried: set[tuple[str, frozenset[Path]]] = set()

    def work(self) -> RunBook:
        """Does the items of the plan, one change at a time, and measures the effect of the kept changes."""
        self._go_on_where_the_ledger_ends()
        if self.plan.items or self.plan.gpu or self.plan.records:
            self._measure_baseline()
        self._plan_items()
        while (item := self._next_item() or self._item_again()) is not None:
            self._work_on(item)
        self._report()
        return self.book

    # Plan -------------------------------------------------------------------------------------------

    def _go_on_where_the_ledger_ends(self) -> None:
        """Reverts an edit that is not in the ledger, and ends the steps of an interrupted change."""
        known = {step.evidence for step in self.book.parts.steps}
        entries = self.files.entries
        last = max((n for n, entry in enumerate(entries) if entry.id in known), default=-1)
        if any(entry.kind != "backup" for entry in entries[last + 1 :]):
            self.files.revert_to(entries[last].id) if last >= 0 else self.files.revert_all()
        for change in self.book.parts.changes:
            if len(self.book.parts.steps_of(change.id)) < len(STEPS):
                self.book.stepped(change.id, _interrupted(self._plan_of(change)))

    def _measure_baseline(self) -> None:
        kept = self.book.parts.kept
        self.progress("baseline", 0, 1, str(self.plan.program))
        wanted = {"profile": self.plan.gpu, "record": self._to_record()}
        self._baseline = self.book.measured(self.judge.baseline(texts.original(kept), texts.final(kept), **wanted))
        self.progress("baseline", 1, 1)

    def _plan_items(self) -> None:
        self.book.found(self.plan.dismissed)
        self._profile_again()
        self.book.planned(self.plan.items)
        self.book.found([autopilot.recommended(item) for item in self.plan.items])
        self._look_at_a_run()

    def _profile_again(self) -> None:
        """Profiles the incumbent if autopilot has a GPU, and if it changed since the last profile. Each new kind of
        finding becomes an item.
        """
        incumbent = texts.final(self.book.parts.kept)
        if not self.plan.gpu or incumbent == self._profiled or (self._profiled is not None and self._late()):
            return
        self._profiled = incumbent
        about = f"{self.plan.program}, with the changes kept so far"
        try:
            found = self.judge.profile(incumbent)
        except TilewrightError as error:  # an error of the profiler is no error of the program
            self.book.measured(AgentMeasurement(kind="profile", about=about, verdict="failed", reason=str(error)))
            return
        if found is None:
            return
        self.profile = found
        evidence = self.book.measured(autopilot.measured(found, about))
        number = sum(item.id.startswith("F") for item in self.book.parts.items) + 1
        items, dismissed = autopilot.items_of_profile(found, self.book.parts.findings, number, evidence)
        self.book.planned(items)
        for finding in found.findings:
            if item := next((item for item in items if finding.id in item.findings), None):
                self.book.found([autopilot.finding_of(finding, item.id, evidence)])
        self.book.found(dismissed)

    def _look_at_a_run(self) -> None:
        """Records the operations of the program in one run. Each finding becomes an item, or belongs to one."""
        if not self._to_record():
            return
        program, kept = self.plan.program, self.book.parts.kept
        about = f"{program}, its operations"
        try:
            found = self.judge.findings(texts.final(kept))
            sites = sites_of(program.script, program.root)
        except (TilewrightError, OSError) as error:  # this run is no condition of the others
            self.book.measured(AgentMeasurement(kind="record", about=about, verdict="failed", reason=str(error)))
            return
        places = [from_run.place_of(each, program.root, program.script) for each in found]
        evidence = self.book.measured(from_run.measured(found, places, about, self._device()))
        items, findings = from_run.items_of_run(
            found, places, sites, self.book.parts.items, self.book.parts.findings, evidence
        )
        self.book.planned(items)
        self.book.found(findings)

    def _to_record(self) -> bool:
        return self.plan.records and not any(each.kind == "record" for each in self.book.parts.measurements)

    def _device(self) -> str:
        baseline = self.book.parts.measurement(self._baseline)
        return baseline.device if baseline else ""

    def _next_item(self) -> WorkItem | None:
        """Returns the best item that has not ended. Returns None if all have ended.

        The incumbent is profiled again only when a specialist will read the profile, or nothing is left to do.
        """
        open_ = self._open_items()
        if not (open_ and open_[0].change):
            self._profile_again()
            open_ = self._open_items()
        ended, items = len(self.book.parts.ends), len(self.book.parts.items)
        self.progress("items", ended, items, open_[0].text if open_ else "")
        return open_[0] if open_ else None

    def _open_items(self) -> tuple[WorkItem, ...]:
        ends = {end.item for end in self.book.parts.ends}
        open_ = ranked([autopilot.item_again(item) for item in self.book.parts.items if item.id not in ends])
        return tuple(sorted(open_, key=lambda item: item.id.startswith(from_run.FOUND)))

    def _item_again(self) -> WorkItem | None:
        """Plans tied changes again, and returns the best of them. Returns None if there are none.

        Such a change was as fast as the version before it. After later kept changes, the program may wait for the part
        that the change speeds up.
        """
        again = autopilot.items_again(self.book.parts)
        if not again or self._late():
            return None
        self._tried -= {_key(change) for change, _ in again}
        self.book.planned([item for _, item in again])
        return self._next_item()

    # Delegate ---------------------------------------------------------------------------------------

    def _work_on(self, item: WorkItem) -> None:
        """Tries the proposals of an item's specialists, and stores the item's outcome."""
        if item.id.startswith(from_run.FOUND):
            found = next(each for each in self.book.parts.findings if each.id == item.id)
            self.book.ended(from_run.untried(item, found, self.book.parts.kept, self.plan.program.script))
            return
        trials: list[tuple[AgentChange, ChangeTrial]] = []
        refusals: list[NoProposal] = []
        for delegation in self._delegations(item):
            for proposal in self._proposals(item, delegation, refusals):
                trials.append(self._try(item, delegation, proposal))
        self.book.ended(ended(item, trials, refusals, self.book.parts))

    def _delegations(self, item: WorkItem) -> tuple[Delegation, ...]:
        return plan_of(
            item, str(self.plan.program), file=str(self.plan.program.script), context=self.plan.context,
            constraints=constraints_of(self.plan.request), findings=autopilot.ids_to_quote(item, self.profile),
            seconds=self._share(),
        ).delegations  # fmt: skip

    def _proposals(
        self, item: WorkItem, delegation: Delegation, refusals: list[NoProposal]
    ) -> Iterator[ProgramProposal]:
        """Yields proposals until there is no new one. After a kept change the files differ, so the specialists are
        asked again."""
        if delegation.specialist != autopilot.MEASURES and self._late():
            refusals.append(LATE)
            return
        proposed, kept = _proposed(delegation), len(self.book.parts.kept)
        if isinstance(proposed, NoProposal):
            refusals.append(proposed)
            return
        while (new := next((each for each in proposed if self._is_new(item, each)), None)) is not None:
            if self._late():
                refusals.append(LATE)
                return
            if len(self.book.parts.kept) > kept:
                again, kept = _proposed(delegation), len(self.book.parts.kept)
                proposed = () if isinstance(again, NoProposal) else again
                continue
            self._tried.add(_key(new))
            if new.risk == "lossy" and not self.plan.request.lossy:
                reason = f"{new.name} rounds differently; allow it with --allow-lossy"
                refusals.append(NoProposal("blocked", reason, new.site))
            else:
                yield new

    def _is_new(self, item: WorkItem, proposal: ProgramProposal) -> bool:
        return item.change in ("", proposal.name) and _key(proposal) not in self._tried

    # Decide -----------------------------------------------------------------------------------------

    def _try(
        self, item: WorkItem, delegation: Delegation, proposal: ProgramProposal
    ) -> tuple[AgentChange, ChangeTrial]:
        """Takes one change through the seven steps of its plan."""
        change = self.book.proposed(self._change_of(item, delegation, proposal))
        self.progress("items", len(self.book.parts.ends), len(self.book.parts.items), f"{change.id} {change.name}")
        plan = done(self._plan_of(change), "baseline", self._baseline)
        plan = done(plan, "backup", self._back_up(change))
        plan = done(plan, "prerequisites", change.site)
        self.book.stepped(change.id, plan)
        asked = self.plan.mode == "user-specified"
        most = self._left() - self.judge.needed().effect
        trial = self.judge.judge(change, texts.final(self.book.parts.kept), asked, self._share(), most)
        plan = self._judged(plan, trial)
        self.book.stepped(change.id, plan)
        self.book.stepped(change.id, self._keep(plan, change) if trial.kept else _left_as_it_was(plan))
        return change, trial

    def _share(self) -> float:
        """Returns the seconds of one race: the remaining time, divided among the open items and the last race."""
        left = len(self.book.parts.items) - len(self.book.parts.ends)
        return max(0.0, self._left()) / (left + 1)

    def _left(self) -> float:
        """Returns the seconds up to the time limit."""
        return self._until - self._clock()

    def _late(self) -> bool:
        """Returns whether another change and the race of the whole command do not fit into the time that is left."""
        return self._left() < sum(self.judge.needed())

    def _change_of(self, item: WorkItem, delegation: Delegation, proposal: ProgramProposal) -> AgentChange:
        old, new = texts.on_disk(proposal.texts), proposal.texts
        return AgentChange(
            id="", item=item.id, specialist=delegation.specialist, name=proposal.name, rationale=proposal.rationale,
            site=proposal.site, risk=proposal.risk, delegation=str(delegation), texts=texts.by_name(new),
            before=texts.by_name(old), diff=texts.diff(old, new, self.plan.program.root), ran=proposal.ran,
            gone=proposal.gone,
        )  # fmt: skip

    def _plan_of(self, change: AgentChange) -> ChangePlan:
        """Returns the plan of a change, including the steps that are already stored."""
        stored = next(item for item in self.book.parts.items if item.id == change.item)
        plan = ChangePlan(autopilot.item_again(stored), ())
        for step in self.book.parts.steps_of(change.id):
            if step.state == "done":
                plan = done(plan, step.name, step.evidence)
            elif step.state == "failed":
                plan = failed(plan, step.name, step.reason, step.evidence)
        return plan

    def _back_up(self, change: AgentChange) -> str:
        return [self.files.backup_file(Path(path)) for path in change.texts][-1]

    def _judged(self, plan: ChangePlan, trial: ChangeTrial) -> ChangePlan:
        """Stores the measurements of a trial. Returns the plan with the steps that the measurements decide."""
        ran = self.book.measured(trial.run)
        outputs = self.book.measured(trial.outputs) if trial.outputs is not None else ran
        raced = self.book.measured(trial.race) if trial.race is not None else ran
        decided: dict[StepName, str] = {"implement": ran, "validate": raced, "correctness": outputs}
        for step, evidence in decided.items():
            if trial.failed_at == step:
                return failed(plan, step, trial.reason, evidence)
            plan = done(plan, step, evidence)
        return plan

    def _keep(self, plan: ChangePlan, change: AgentChange) -> ChangePlan:
        """Writes a kept change to the user's files, through the journal."""
        before = edited = self.files.entries[-1].id
        try:
            for path, text in change.texts.items():  # an entry each: a kill between two leaves a recorded state
                edited = self.files.edit_files({Path(path): text})
        except TilewrightError as error:
            if edited != before:
                self.files.revert_to(before)
            return failed(plan, "finish", str(error))
        return done(plan, "finish", edited)

    # Report -----------------------------------------------------------------------------------------

    def _report(self) -> None:
        """Races the untouched program against the final one, and ends the run."""
        kept = self.book.parts.kept
        effect, proof = "", ""
        if kept:
            self.progress("effect", 0, 1, str(self.plan.program))
            measured = self.judge.effect(texts.original(kept), texts.final(kept), kept, self._left())
            ids = {each.kind: self.book.measured(each) for each in measured}
            effect, proof = ids.get("effect", ""), ids.get("operations", "")
            self.progress("effect", 1, 1)
        patch = texts.diff(texts.original(kept), texts.final(kept), self.plan.program.root)
        self.book.finished(stop_reason(self.book.parts, effect), effect, proof, patch)


def _proposed(delegation: Delegation) -> tuple[ProgramProposal, ...] | NoProposal:
    try:
        return specialist_of(delegation.specialist).propose(delegation)
    except TilewrightError as error:
        return NoProposal("blocked", str(error))


def _key(change: ProgramProposal | AgentChange) -> tuple[str, frozenset[Path]]:
    """Returns a key that identifies a change. The line number is not part of it, because kept changes move lines."""
    return change.name, frozenset(map(Path, change.texts))


def _left_as_it_was(plan: ChangePlan) -> ChangePlan:
    """Returns the plan with `finish` done. Only a copy was changed, so no file is restored; the backup is evidence."""
    backup = next(step.evidence for step in plan.steps if step.name == "backup")
    return done(plan, "finish", backup)


def _interrupted(plan: ChangePlan) -> ChangePlan:
    due = plan.next_step
    if due is None:
        return plan
    plan = failed(plan, due.name, "interrupted; it is done again")
    if due.name == "finish":
        return plan
    evidence = next((step.evidence for step in plan.steps if step.evidence), due.name)
    return done(plan, "finish", evidence)
