"""Tries changes of a user's program, one at a time: copy → run → compare → race → decide.

Every version runs in a copy of the user's tree; the tree itself is only read. Outputs are compared with the outputs of
the unchanged program. Races compare with the incumbent, which is the version with all changes kept so far.

Only races and profiles are timed, and nothing else runs beside them. The first runs need not be timed, so they are made
together (`program.together`). The copies of a race start while the change's outputs are checked. They wait until that
check has ended.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from tilewright.errors import MachineError, RequestError, ToolFailed
from tilewright.hardware.gpu import detect
from tilewright.ledger.agent_records import AgentChange, AgentMeasurement
from tilewright.profile.figures import Profile
from tilewright.program import deciding
from tilewright.program.checking import CheckedChange, counted_for
from tilewright.program.checking import checked as _checked
from tilewright.program.command import ProgramCommand
from tilewright.program.copies import program_copy
from tilewright.program.findings.base import RunFinding
from tilewright.program.findings.finding import findings_in
from tilewright.program.findings.record import RecordedRun
from tilewright.program.measurements import baseline_measured, operations_measured, race_measured
from tilewright.program.race import FIRST_LOOK, ProgramRace, gpu_bytes, pairs_at_once, race_programs, time_us
from tilewright.program.reading.new_imports import wrong_import
from tilewright.program.recorded import recorded_run
from tilewright.program.run import ProgramFailed, ProgramRun, run_program
from tilewright.program.slices import slicing_for
from tilewright.program.together import may_overlap, together
from tilewright.program.trial import ChangeTrial, Needed, Texts
from tilewright.progress import Progress, silent

STEPS = 20
RUN_SECONDS, RACE_SECONDS = 300.0, 600.0
FEWEST_RUNS = 2 * (FIRST_LOOK + 2)
"""A race needs the time of this many runs to reach a verdict."""
LARGER = 1.25
"""A changed program that has this many times the memory of the version before is raced in fewer copies at once."""
COMPILES = re.compile(r"^\+.*\b(compile|triton|cuda\.tile)\b", re.MULTILINE)
"""Matches the diff of a change that compiles. Its first run fills caches of compilers, so its race starts after it."""
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
        self._record: tuple[Texts, RecordedRun | ProgramFailed] | None = None
        self._overlap = may_overlap(command)
        self._gpu = 0
        """The bytes of the GPU that the runs so far had or found free."""
        self._races: list[float] = []
        """The seconds that each race took up to its first look."""
        self._ran = 0
        self._runs: list[tuple[Texts, ProgramRun]] = []
        """The observed runs of the versions that were right and fast enough; the first is of the untouched program."""

    def baseline(self, original: Texts, incumbent: Texts, record: bool) -> AgentMeasurement:
        """Runs the unchanged program twice, the second time with nudged parameters, to see how rounding affects it.
        With ``record``, the run for `findings` of the incumbent is made, too. All are made at the same time.
        """
        firsts: list[Callable[[], ProgramRun | RecordedRun | ProgramFailed]] = [
            lambda: self._run(original), lambda: self._run(original, nudged=True),
        ]  # fmt: skip
        firsts += [lambda: self._recorded(incumbent)] if record else []
        self._show_runs()
        run, noise, *_ = together(firsts, overlap=self._overlap)
        self._ran += len(firsts)
        self._show_runs()
        if isinstance(run, ProgramFailed):
            raise _fails_by_itself(self.command, run)
        assert isinstance(run, ProgramRun)
        if not run.operations:
            raise RequestError(f"{self.command} computes nothing with torch, so no change of it can be compared")
        self._noise = noise if isinstance(noise, ProgramRun) else None
        self._runs = [(original, run)]
        # recording slowed every step of a short program: run it again without recording
        timed = run if run.step_us else self._observed(original, outputs=False)
        beside = len(firsts) - 1 if self._overlap and timed is run else 0
        return baseline_measured(timed if isinstance(timed, ProgramRun) else run, str(self.command), beside)

    def profile(self, incumbent: Texts) -> Profile | None:
        """Traces a copy of the incumbent under torch.profiler, and reads the trace; None without a GPU."""
        if detect() is None:
            return None
        from tilewright.program.profiling import profile_of

        with program_copy(self.command, incumbent) as copy:
            return profile_of(copy, self.run_seconds)

    def findings(self, incumbent: Texts) -> tuple[RunFinding, ...]:
        """Applies the rules to the recorded operations of a copy of the incumbent."""
        if self._record is not None and self._record[0] == incumbent:
            run = self._record[1]
        else:
            self.progress("recorded run", 0, 1, f"it is ended after {self.run_seconds:g} s")
            run = self._recorded(incumbent)
            self.progress("recorded run", 1, 1)
        if isinstance(run, ProgramFailed):
            raise ToolFailed(f"the run that records operations failed, so there are no findings of it: {run.reason}")
        return findings_in(run)

    def needed(self) -> Needed:
        """Estimates the time of the next change and of the last race from the runs and races so far."""
        race = median(self._races) if self._races else self._fewest(0, self._original)
        return Needed(self._original.wall_s + race, race)

    def judge(
        self, change: AgentChange, incumbent: Texts, asked: bool, seconds: float, most: float = math.inf
    ) -> ChangeTrial:
        """Judges a change on top of the incumbent. The next call may have the changed program as its incumbent."""
        before = self._run_of(incumbent)
        changed = {**incumbent, **{Path(path): text for path, text in change.texts.items()}}
        wrong = wrong_import({path: changed[path] for path in map(Path, change.texts)}, incumbent, self._folders)
        if wrong:
            return _checked(ProgramFailed("imports", wrong), change, before, self._original, self._noise).trial()
        race = partial(self._race, change.name, incumbent, changed, seconds=seconds, most=most)
        checked, raced = self._checked_while_a_race_starts(change, before, changed, race)
        if checked is None:
            checked = self._check(change, before, changed)
        if checked.verdict is not None:
            return checked.trial()
        assert isinstance(checked.run, ProgramRun)
        raced = raced or race((before, checked.run))
        verdict = deciding.after_the_race(raced, asked)
        if verdict.kept:
            self._runs.append((changed, checked.run))
        return checked.trial(verdict, race_measured(raced, "race", change.name, change.id))

    def _check(self, change: AgentChange, before: ProgramRun, changed: Texts) -> CheckedChange:
        return _checked(self._observed(changed), change, before, self._original, self._noise)

    def _checked_while_a_race_starts(
        self, change: AgentChange, before: ProgramRun, changed: Texts, race: Callable[..., ProgramRace | ProgramFailed]
    ) -> tuple[CheckedChange | None, ProgramRace | ProgramFailed | None]:
        """Checks the outputs of a change while the copies of its race start. The copies wait until the check has ended.

        Returns no check if the changed program failed, because that may come from the runs beside it. Returns no race
        if the change need not be raced, or needs more memory than the version before.
        """
        if not self._overlap or COMPILES.search(change.diff) or not self._pairs(before):
            return None, None
        found: list[CheckedChange] = []

        def check() -> None:
            found.append(self._check(change, before, changed))
            if found[0].verdict is not None or _larger(found[0].run, before):
                raise _NotRaced

        try:
            raced = race((before,), meanwhile=check)
        except _NotRaced:
            raced = None
        failed = not found or isinstance(found[0].run, ProgramFailed)
        return (None, None) if failed else (found[0], raced)

    def effect(
        self, original: Texts, final: Texts, changes: tuple[AgentChange, ...], seconds: float = math.inf
    ) -> tuple[AgentMeasurement, ...]:
        """Races the unchanged program against the final one, with the user's own command, and counts the operations of
        both.
        """
        before, after = self._original, self._run_of(final)
        raced = self._race("the whole command", original, final, (before, after), seconds=seconds, most=seconds)
        found = race_measured(raced, "effect", str(self.command))
        counts = counted_for(before, after, changes)
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

    def _observed(self, texts: Texts, *, outputs: bool = True) -> ProgramRun | ProgramFailed:
        self._show_runs()
        run = self._run(texts, outputs=outputs)
        self._ran += 1
        self._show_runs()
        return run

    def _show_runs(self) -> None:
        self.progress("runs", self._ran, None, f"a run is ended after {self.run_seconds:g} s")

    def _run(self, texts: Texts, *, outputs: bool = True, nudged: bool = False) -> ProgramRun | ProgramFailed:
        with program_copy(self.command, texts) as copy:
            run = run_program(copy, steps=self.steps, seconds=self.run_seconds, outputs=outputs, nudged=nudged)
        if isinstance(run, ProgramRun):
            self._gpu = max(self._gpu, gpu_bytes(run))
        return run

    def _recorded(self, texts: Texts) -> RecordedRun | ProgramFailed:
        with program_copy(self.command, texts) as copy:
            run = recorded_run(copy, self.run_seconds)
        self._record = (texts, run)
        return run

    def _pairs(self, *runs: ProgramRun) -> int:
        return pairs_at_once(*runs, gpu=self._gpu)

    def _race(
        self, name: str, before: Texts, after: Texts, runs: tuple[ProgramRun, ...], *, seconds: float, most: float,
        meanwhile: Callable[[], None] | None = None,
    ) -> ProgramRace | ProgramFailed:  # fmt: skip
        """Races two versions. name: what differs between them. runs: a run of each version, or of the first, which
        shows how much memory it needs. seconds, most, meanwhile: see `judge` and `race_programs`.
        """
        pairs = self._pairs(*runs)
        fewest = self._fewest(pairs, *runs)
        seconds = min(self.race_seconds, max(seconds, fewest))
        most_steps = min(math.inf if run.cut else run.steps for run in runs)
        slicing = slicing_for(1e-6 * max(time_us(run) for run in runs), most_steps) if pairs else None
        began = time.monotonic()
        with ExitStack() as stack:
            versions = {
                name: [stack.enter_context(program_copy(self.command, texts)) for _ in range(max(1, pairs))]
                for name, texts in (("before", before), ("after", after))
            }
            raced = race_programs(
                versions, slicing=slicing, seconds=seconds, most=max(most, fewest), steps=self.steps,
                progress=self._named(name), meanwhile=meanwhile,
            )  # fmt: skip
        if isinstance(raced, ProgramRace):
            self._races.append((time.monotonic() - began) * min(1.0, FIRST_LOOK / raced.rounds))
        return raced

    def _fewest(self, pairs: int, *runs: ProgramRun) -> float:
        """Returns about how many seconds a race needs to reach a verdict."""
        return FEWEST_RUNS / max(1, 2 * pairs) * max(run.wall_s for run in runs)

    def _named(self, name: str) -> Progress:
        """Returns a progress whose stages are called "… of ``name``". Each stage has its own count, so no count goes
        back.
        """

        def progress(stage: str, done: int, total: int | None, note: str = "") -> None:
            self.progress(f"{stage} of {name}", done, total, note)

        return progress


class _NotRaced(Exception):
    """Ends the start of a race that is not wanted."""


def _larger(run: ProgramRun | ProgramFailed, before: ProgramRun) -> bool:
    """Returns whether a run needs clearly more memory than the run by which copies were counted."""
    if isinstance(run, ProgramFailed):
        return False
    return any(run.memory.get(name, 0) > LARGER * before.memory.get(name, 0) for name in ("host", "gpu"))


def _fails_by_itself(command: ProgramCommand, failed: ProgramFailed) -> MachineError | RequestError:
    said = failed.last_line or failed.reason
    if detect() is None and NEEDS_GPU.search(said):
        return MachineError(f"{command} needs a GPU, and there is none here, so the run is only planned: {said}")
    if failed.stage == "time limit":
        return RequestError(f"{command} ran too long: {failed.reason}; give it fewer steps, or raise --run-seconds")
    return RequestError(f"{command} fails as it is, before any change: {said}")
