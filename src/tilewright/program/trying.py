"""Tries changes of a user's program, one at a time: copy → run → compare → race → decide.

Every version runs in a copy of the user's tree; the tree itself is only read. Outputs are compared with the outputs of
the unchanged program. Races compare with the incumbent, which is the version with all changes kept so far.
"""

from __future__ import annotations

import math
import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tilewright.errors import MachineError, RequestError, ToolFailed
from tilewright.hardware.gpu import detect
from tilewright.ledger.agent_records import AgentChange, AgentMeasurement
from tilewright.profile.figures import Profile
from tilewright.program import deciding
from tilewright.program.command import ProgramCommand
from tilewright.program.copies import program_copy
from tilewright.program.deciding import ChangeVerdict, OperationCount, counted
from tilewright.program.findings.base import RunFinding
from tilewright.program.findings.finding import findings_in
from tilewright.program.measurements import (
    baseline_measured,
    operations_measured,
    outputs_measured,
    race_measured,
    run_measured,
)
from tilewright.program.outputs import EPS, compare
from tilewright.program.race import FIRST_LOOK, ProgramRace, pairs_at_once, race_programs, time_us
from tilewright.program.reading.new_imports import wrong_import
from tilewright.program.recorded import recorded_run
from tilewright.program.run import ProgramFailed, ProgramRun, run_program
from tilewright.program.slices import slicing_for
from tilewright.program.trial import ChangeTrial, Texts
from tilewright.progress import Progress, silent

STEPS = 20
RUN_SECONDS, RACE_SECONDS = 300.0, 600.0
FEWEST_RUNS = 2 * (FIRST_LOOK + 2)
"""A race needs the time of this many runs to reach a verdict."""
NEEDS_GPU = re.compile(r"cuda|nvidia|\bGPU\b", re.IGNORECASE)
"""Matches the last line of a program that fails because there is no GPU."""


class ProgramTrials:
    """Judges changes of one program. Call `baseline` first. Implements `program.trial.ProgramJudge`."""

    def __init__(
        self, command: ProgramCommand, *, steps: int = STEPS, run_seconds: float = RUN_SECONDS,
        race_seconds: float = RACE_SECONDS, progress: Progress = silent,
    ) -> None:  # fmt: skip
        """steps: the number of steps to time in each run. run_seconds, race_seconds: time limits of one run and of one
        race.
        """
        self.command, self.steps, self.progress = command, steps, progress
        self.run_seconds, self.race_seconds = run_seconds, race_seconds
        self._noise: ProgramRun | None = None
        self._ran = 0
        self._runs: list[tuple[Texts, ProgramRun]] = []
        """The observed runs of the versions that were right and fast enough; the first is of the untouched program."""

    def baseline(self, original: Texts, incumbent: Texts) -> AgentMeasurement:
        """Runs the unchanged program twice, the second time with nudged parameters, to see how rounding affects it."""
        run = self._observed(original)
        if isinstance(run, ProgramFailed):
            raise _fails_by_itself(self.command, run)
        if not run.operations:
            raise RequestError(f"{self.command} computes nothing with torch, so no change of it can be compared")
        noise = self._observed(original, nudged=True)
        self._noise = noise if isinstance(noise, ProgramRun) else None
        self._runs = [(original, run)]
        # recording slowed every step of a short program: run it again without recording
        timed = run if run.step_us else self._observed(original, outputs=False)
        return baseline_measured(timed if isinstance(timed, ProgramRun) else run, str(self.command))

    def profile(self, incumbent: Texts) -> Profile | None:
        """Traces a copy of the incumbent under torch.profiler, and reads the trace; None without a GPU."""
        if detect() is None:
            return None
        from tilewright.program.profiling import profile_of

        with program_copy(self.command, incumbent) as copy:
            return profile_of(copy, self.run_seconds)

    def findings(self, incumbent: Texts) -> tuple[RunFinding, ...]:
        """Records the operations of a copy of the incumbent, and applies the rules to them."""
        self.progress("recorded run", 0, 1, f"it is ended after {self.run_seconds:g} s")
        with program_copy(self.command, incumbent) as copy:
            run = recorded_run(copy, self.run_seconds)
        self.progress("recorded run", 1, 1)
        if isinstance(run, ProgramFailed):
            raise ToolFailed(f"the run that records operations failed, so there are no findings of it: {run.reason}")
        return findings_in(run)

    def judge(self, change: AgentChange, incumbent: Texts, asked: bool, seconds: float) -> ChangeTrial:
        """Judges a change on top of the incumbent. The next call may have the changed program as its incumbent."""
        before = self._run_of(incumbent)
        changed = {**incumbent, **{Path(path): text for path, text in change.texts.items()}}
        wrong = wrong_import({path: changed[path] for path in map(Path, change.texts)}, incumbent, self._folders)
        run = ProgramFailed("imports", wrong) if wrong else self._observed(changed)
        failed = run if isinstance(run, ProgramFailed) else None
        compared = (
            None if isinstance(run, ProgramFailed) else compare(_expected(self._original, change), run, self._noise)
        )
        counts = () if isinstance(run, ProgramFailed) else _counted(before, run, (change,))
        observed = run_measured(run, change.id, counts)
        outputs = None if compared is None else outputs_measured(compared, change.id, observed.device)
        verdict = deciding.before_the_race(failed, compared, counts)
        if verdict is not None:
            return _trial(verdict, observed, outputs)
        assert isinstance(run, ProgramRun)
        raced = self._race(change.name, incumbent, changed, (before, run), seconds)
        verdict = deciding.after_the_race(raced, asked)
        if verdict.kept:
            self._runs.append((changed, run))
        return _trial(verdict, observed, outputs, race_measured(raced, "race", change.name, change.id))

    def effect(self, original: Texts, final: Texts, changes: tuple[AgentChange, ...]) -> tuple[AgentMeasurement, ...]:
        """Races the unchanged program against the final one, with the user's own command, and counts the operations of
        both.
        """
        before, after = self._original, self._run_of(final)
        raced = self._race("the whole command", original, final, (before, after))
        found = race_measured(raced, "effect", str(self.command))
        counts = _counted(before, after, changes)
        proof = operations_measured(f"{self.command}, untouched against final", after, counts)
        return (found, proof)

    @property
    def _folders(self) -> tuple[Path, ...]:
        """The folders from which the program imports its own modules."""
        return (self.command.script.parent, self.command.root)

    @property
    def _original(self) -> ProgramRun:
        assert self._runs, "the baseline comes first"
        return self._runs[0][1]

    def _run_of(self, texts: Texts) -> ProgramRun:
        """Returns the observed run of a version. The version may lack a change that was kept here, because its edit was
        refused or reverted.
        """
        for known, run in reversed(self._runs):
            if known == texts:
                return run
        again = self._observed(texts)
        if isinstance(again, ProgramFailed):
            return self._original
        self._runs.append((texts, again))
        return again

    def _observed(
        self, texts: Texts, *, outputs: bool = True, nudged: bool = False
    ) -> ProgramRun | ProgramFailed:  # fmt: skip
        self.progress("runs", self._ran, None, f"a run is ended after {self.run_seconds:g} s")
        with program_copy(self.command, texts) as copy:
            run = run_program(copy, steps=self.steps, seconds=self.run_seconds, outputs=outputs, nudged=nudged)
        self._ran += 1
        self.progress("runs", self._ran, None)
        return run

    def _race(
        self, name: str, before: Texts, after: Texts, runs: tuple[ProgramRun, ProgramRun], seconds: float = math.inf
    ) -> ProgramRace | ProgramFailed:
        """Races two versions. name: what differs between them. runs: a run of each version, which shows how much memory
        it needs.
        """
        pairs = pairs_at_once(*runs)
        fewest = FEWEST_RUNS / max(1, 2 * pairs) * max(run.wall_s for run in runs)
        seconds = min(self.race_seconds, max(seconds, fewest))
        most_steps = min(math.inf if run.cut else run.steps for run in runs)
        slicing = slicing_for(1e-6 * max(time_us(run) for run in runs), most_steps) if pairs else None
        with ExitStack() as stack:
            versions = {
                name: [stack.enter_context(program_copy(self.command, texts)) for _ in range(max(1, pairs))]
                for name, texts in (("before", before), ("after", after))
            }
            return race_programs(
                versions, slicing=slicing, seconds=seconds, steps=self.steps, progress=self._named(name)
            )

    def _named(self, name: str) -> Progress:
        """Returns a progress whose stages are called "… of ``name``". Each stage has its own count, so no count goes
        back.
        """

        def progress(stage: str, done: int, total: int | None, note: str = "") -> None:
            self.progress(f"{stage} of {name}", done, total, note)

        return progress


def _expected(original: ProgramRun, change: AgentChange) -> ProgramRun:
    """Returns the run with which a change is compared. If the change rounds differently by design, the run allows
    rounding errors of bfloat16.
    """
    if change.risk != "lossy" or original.outputs is None:
        return original
    return replace(original, outputs=replace(original.outputs, eps=max(original.outputs.eps, EPS["bfloat16"])))


def _counted(before: ProgramRun, after: ProgramRun, changes: tuple[AgentChange, ...]) -> tuple[OperationCount, ...]:
    ran = dict.fromkeys(each for one in changes for each in one.ran)
    gone = dict.fromkeys(each for one in changes for each in one.gone)
    names = [{**run.operations, **run.kernels} for run in (before, after)]
    return counted(names[0], names[1], tuple(ran), tuple(gone))


def _trial(
    verdict: ChangeVerdict, run: AgentMeasurement, outputs: AgentMeasurement | None,
    race: AgentMeasurement | None = None,
) -> ChangeTrial:  # fmt: skip
    return ChangeTrial(kept=verdict.kept, failed_at=verdict.failed_at, why=verdict.why, reason=verdict.reason,
                       run=run, outputs=outputs, race=race)  # fmt: skip


def _fails_by_itself(command: ProgramCommand, failed: ProgramFailed) -> MachineError | RequestError:
    said = failed.last_line or failed.reason
    if detect() is None and NEEDS_GPU.search(said):
        return MachineError(f"{command} needs a GPU, and there is none here, so the run is only planned: {said}")
    if failed.stage == "time limit":
        return RequestError(f"{command} ran too long: {failed.reason}; give it fewer steps, or raise --run-seconds")
    return RequestError(f"{command} fails as it is, before any change: {said}")
