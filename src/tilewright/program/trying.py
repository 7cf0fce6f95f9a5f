"""Tries changes of a user's program, one at a time: copy → run → compare → race → decide.

Every version runs in a copy of the user's tree; the tree itself is only read. Outputs are compared with the outputs of
the unchanged program. Races compare with the incumbent, which is the version with all changes kept so far.

Programs are started early (`program.early`): the first runs together, and the copies of a race while the change's
outputs are checked. Each then waits for its turn, so that nothing else makes steps while steps are timed.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from statistics import median

from tilewright.errors import MachineError, RequestError, TilewrightError, ToolFailed
from tilewright.hardware.gpu import detect
from tilewright.ledger.agent_records import AgentChange, AgentMeasurement
from tilewright.profile.figures import Profile
from tilewright.program import deciding
from tilewright.program.checking import CheckedChange, checked_change, counted_for
from tilewright.program.command import ProgramCommand
from tilewright.program.copies import program_copy
from tilewright.program.early import Meanwhile, enough_memory, may_start_early, meets_apart
from tilewright.program.findings.base import RunFinding
from tilewright.program.findings.finding import findings_in
from tilewright.program.findings.record import RecordedRun
from tilewright.program.measurements import baseline_measured, operations_measured, race_measured
from tilewright.program.race import FIRST_LOOK, ProgramRace, gpu_bytes, pairs_at_once, race_programs, time_us
from tilewright.program.reading.new_imports import wrong_import
from tilewright.program.recorded import recorded_run
from tilewright.program.run import ProgramFailed, ProgramRun, run_program
from tilewright.program.slices import slicing_for
from tilewright.program.trial import ChangeTrial, Needed, Texts
from tilewright.progress import Progress, silent

STEPS = 20
RUN_SECONDS, RACE_SECONDS = 300.0, 600.0
RECORD_SECONDS = 120.0
"""The time limit of the run that records operations."""
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
        self._recorded: tuple[Texts, RecordedRun | ProgramFailed] | None = None
        self._traced: tuple[Texts, Profile] | None = None
        self._early, self._apart = may_start_early(command), meets_apart(command)
        self._gpu = 0
        """The bytes of the GPU that the runs so far had or found free."""
        self._races: list[float] = []
        """The seconds that each race took up to its first look."""
        self._ran = 0
        self._runs: list[tuple[Texts, ProgramRun]] = []
        """The observed runs of the versions that were right and fast enough; the first is of the untouched program."""

    def baseline(
        self, original: Texts, incumbent: Texts, *, profile: bool = False, record: bool = False
    ) -> AgentMeasurement:
        """Runs the unchanged program twice, the second time with nudged parameters, to see how rounding affects it.

        profile, record: whether `profile` and `findings` of the incumbent will be called. All these runs are started at
        once, and make their steps one after another.
        """
        run = self._first_runs(original, incumbent, profile, record)
        if isinstance(run, ProgramFailed):
            raise _fails_by_itself(self.command, run)
        if not run.operations:
            raise RequestError(f"{self.command} computes nothing with torch, so no change of it can be compared")
        self._runs = [(original, run)]
        # recording slowed every step of a short program, and a program without steps does not wait for its turn
        timed = run if run.unit != "process" and run.step_us else self._observed(original, outputs=False)
        return baseline_measured(timed if isinstance(timed, ProgramRun) else run, str(self.command))

    def _first_runs(self, original: Texts, incumbent: Texts, profile: bool, record: bool) -> ProgramRun | ProgramFailed:
        """Returns the observed run of the unchanged program. Keeps its nudged run, the record and the profile."""
        plain: list[ProgramRun | ProgramFailed] = []

        def run_plain() -> None:
            plain.append(self._observed(original))
            if isinstance(plain[-1], ProgramFailed):
                raise _Disturbed

        def run_nudged(meanwhile: Meanwhile | None) -> None:
            run = self._observed(original, nudged=True, meanwhile=meanwhile)
            self._noise = run if isinstance(run, ProgramRun) else None

        if not self._early:
            plain.append(self._observed(original))
            if isinstance(plain[-1], ProgramRun):
                run_nudged(None)
            return plain[-1]
        first = partial(run_nudged, run_plain)
        first = partial(self._record, incumbent, first) if record else first
        first = partial(self._trace, incumbent, first) if profile and detect() is not None else first
        # an error of the profiler does not count: the profile is made again when it is asked for
        with suppress(_Disturbed, TilewrightError), enough_memory():
            first()
        if self._noise is not None and plain and isinstance(plain[-1], ProgramRun):
            return plain[-1]
        self._early = False
        return self._first_runs(original, incumbent, profile, record)

    def profile(self, incumbent: Texts) -> Profile | None:
        """Traces a copy of the incumbent under torch.profiler, and reads the trace; None without a GPU."""
        if detect() is None:
            return None
        if self._traced is None or self._traced[0] != incumbent:
            self._trace(incumbent)
        assert self._traced is not None
        return self._traced[1]

    def _trace(self, incumbent: Texts, meanwhile: Meanwhile | None = None) -> None:
        from tilewright.program.profiling import profile_of

        with program_copy(self.command, incumbent) as copy:
            self._traced = (incumbent, profile_of(copy, self.run_seconds, meanwhile))

    def findings(self, incumbent: Texts) -> tuple[RunFinding, ...]:
        """Applies the rules to the recorded operations of a copy of the incumbent."""
        known = self._recorded
        failed = known is not None and isinstance(known[1], ProgramFailed) and known[1].stage != "time limit"
        if known is None or known[0] != incumbent or failed:  # a run that was too long would be so again
            self._record(incumbent)
        assert self._recorded is not None
        run = self._recorded[1]
        if isinstance(run, ProgramFailed):
            raise ToolFailed(f"the run that records operations failed, so there are no findings of it: {run.reason}")
        return findings_in(run)

    def _record(self, incumbent: Texts, meanwhile: Meanwhile | None = None) -> None:
        seconds = min(self.run_seconds, RECORD_SECONDS)
        self.progress("recorded run", 0, 1, f"it is ended after {seconds:g} s")
        with program_copy(self.command, incumbent) as copy:
            self._recorded = (incumbent, recorded_run(copy, seconds, meanwhile))
        self.progress("recorded run", 1, 1)

    def needed(self) -> Needed:
        """Estimates the time of the next change and of the last race from the runs and races so far."""
        run = self._original
        race = median(self._races) if self._races else self._fewest(self._pairs(run), run)
        return Needed(self._original.wall_s + race, race)

    def judge(
        self, change: AgentChange, incumbent: Texts, asked: bool, seconds: float, most: float = math.inf
    ) -> ChangeTrial:
        """Judges a change on top of the incumbent. The next call may have the changed program as its incumbent."""
        before = self._run_of(incumbent)
        changed = {**incumbent, **{Path(path): text for path, text in change.texts.items()}}
        wrong = wrong_import({path: changed[path] for path in map(Path, change.texts)}, incumbent, self._folders)
        if wrong:
            return checked_change(ProgramFailed("imports", wrong), change, before, self._original, self._noise).trial()
        race = partial(self._race, change.name, incumbent, changed, seconds=seconds, most=most)
        checked, raced = self._checked_while_a_race_starts(change, before, changed, race, most)
        if checked is None:
            checked = self._check(change, before, changed, most)
        if checked.verdict is not None:
            return checked.trial()
        assert isinstance(checked.run, ProgramRun)
        raced = raced or race((before, checked.run))
        verdict = deciding.after_the_race(raced, asked)
        if verdict.kept:
            self._runs.append((changed, checked.run))
        return checked.trial(verdict, race_measured(raced, "race", change.name, change.id))

    def _check(self, change: AgentChange, before: ProgramRun, changed: Texts, most: float) -> CheckedChange:
        return checked_change(self._observed(changed, most=most), change, before, self._original, self._noise)

    def _checked_while_a_race_starts(
        self,
        change: AgentChange,
        before: ProgramRun,
        changed: Texts,
        race: Callable[..., ProgramRace | ProgramFailed],
        most: float,
    ) -> tuple[CheckedChange | None, ProgramRace | ProgramFailed | None]:
        """Checks the outputs of a change while the copies of its race start. The copies wait until the check has ended.

        Returns no check if the changed program failed, because that may come from the runs beside it. Returns no race
        if the change need not be raced, or needs more memory than the version before.
        """
        if not self._early or COMPILES.search(change.diff) or not self._pairs(before):
            return None, None
        found: list[CheckedChange] = []

        def check() -> None:
            found.append(self._check(change, before, changed, most))
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
        raced = self._race("the whole command", original, final, (before, after), seconds=seconds)
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

    def _observed(
        self, texts: Texts, *, outputs: bool = True, nudged: bool = False, most: float = math.inf,
        meanwhile: Meanwhile | None = None,
    ) -> ProgramRun | ProgramFailed:  # fmt: skip
        limit = max(1.0, min(self.run_seconds, most))
        self.progress("runs", self._ran, None, f"a run is ended after {limit:g} s")
        with program_copy(self.command, texts) as copy:
            run = run_program(
                copy, steps=self.steps, seconds=limit, outputs=outputs, nudged=nudged, meanwhile=meanwhile
            )
        if isinstance(run, ProgramRun):
            self._gpu = max(self._gpu, gpu_bytes(run))
        self._ran += 1
        self.progress("runs", self._ran, None)
        return run

    def _pairs(self, *runs: ProgramRun) -> int:
        return pairs_at_once(*runs, gpu=self._gpu, apart=self._apart)

    def _race(
        self, name: str, before: Texts, after: Texts, runs: tuple[ProgramRun, ...], *, seconds: float,
        most: float = math.inf, meanwhile: Meanwhile | None = None,
    ) -> ProgramRace | ProgramFailed:  # fmt: skip
        """Races two versions. name: what differs between them. runs: a run of each version, or of the first, which
        shows how much memory it needs. seconds, most, meanwhile: see `judge` and `race_programs`.
        """
        pairs = self._pairs(*runs)
        fewest = self._fewest(pairs, *runs)
        if fewest > most:
            return ProgramFailed("race", f"it takes about {fewest:.0f} s, and {most:.0f} s are left; raise --seconds")
        seconds = min(self.race_seconds, max(seconds, fewest))
        most_steps = min(math.inf if run.cut else run.steps for run in runs)
        processes = max(run.processes for run in runs)
        slicing = slicing_for(1e-6 * max(time_us(run) for run in runs), most_steps, processes) if pairs else None
        began = time.monotonic()
        with ExitStack() as stack:
            versions = {
                name: [stack.enter_context(program_copy(self.command, texts)) for _ in range(max(1, pairs))]
                for name, texts in (("before", before), ("after", after))
            }
            raced = race_programs(
                versions, slicing=slicing, seconds=seconds, most=most, steps=self.steps,
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


class _Disturbed(Exception):
    """Ends programs that were started early, because the run before them failed."""


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
