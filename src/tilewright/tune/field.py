"""One workload's candidates between the compiler and the result: what each stage finds out about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.compile.compile import Compiled, remember
from tilewright.compile.screen import candidate_of, ranking, screen_compiled
from tilewright.errors import MachineError
from tilewright.hardware.machine import Target
from tilewright.progress import BEST
from tilewright.records import Bound, Candidate, Checked, Configuration, Failed, Screened, Workload, WorkloadResult
from tilewright.strategies.base import Outcomes, SearchSpace
from tilewright.task.task import Task
from tilewright.tune.judge import Judge
from tilewright.worker.client import Contestant, Eliminated, Finisher, RaceResult, cost_of
from tilewright.worker.messages import Configured

NOT_ASKED = Checked("unverified", "not among the best predicted: nothing was compared")
_PREDICTED = {
    "correct": "the shortest predicted time of those that the interpreter finds correct; predicted, not measured",
    "unverified": "the shortest predicted time; predicted, not measured, and not verified: ",
}


class Field:
    """The candidates of one workload that have compiled so far, screened.

    compiled: in the order of the space, whatever the order of arrival: the first of equal codes represents them.
    """

    def __init__(
        self, task: Task, workload: Workload, target: Target, bound: Bound, compiled: Sequence[Compiled],
        screened: Mapping[Configuration, Screened | Failed], top: int,
    ) -> None:  # fmt: skip
        self.task, self.workload, self.bound, self.measured = task, workload, bound, target.measured
        self.compiled = {each.unit.configuration: each for each in compiled}
        self.candidates = {config: candidate_of(each, screened[config]) for config, each in self.compiled.items()}
        if not self.measured:
            self.candidates = {config: replace(each, checked=NOT_ASKED) for config, each in self.candidates.items()}
        self.tried: list[Configuration] = []
        self.race = RaceResult((), ())
        ranked, shipped = ranking(screened), screened.get(task.space.shipped)
        same_code = shipped.duplicate_of if isinstance(shipped, Screened) else None
        baseline = same_code or task.space.shipped
        predicted = {config: time for config in ranked if (time := self.candidates[config].predicted) is not None}
        self.space = SearchSpace(ranked, predicted, baseline if baseline in ranked else None, top, self.measured)

    @classmethod
    def screened(
        cls, task: Task, workload: Workload, target: Target, bound: Bound, compiled: Sequence[Compiled], top: int
    ) -> Field:
        """Judges from their machine code which candidates are worth verifying and racing."""
        screened = screen_compiled(task, workload, target.board, bound, compiled)
        return cls(task, workload, target, bound, compiled, screened, top)

    # Verify ---------------------------------------------------------------------------------------

    def verify(self, batch: Sequence[Configuration], judge: Judge, *, ahead: bool) -> bool:
        """Asks the judge about each of ``batch``; whether all have a verdict now.

        ahead: compilers still run, so at most one that is new is verified: by then others may be better.
        """
        self.tried += batch
        unverified = [each for each in batch if not judge.is_verified(self.workload.name, self._contestant(each))]
        if self.measured:  # the cubins lie where the launches of a worker find them, so that it compiles nothing
            remember(self.task, [self.compiled[config] for config in (unverified[:1] if ahead else batch)])
        if ahead:
            for config in unverified[:1]:
                judge.verify(self.workload.name, self._contestant(config))
            if unverified:
                return False
        for best in self.space.ranked[:1]:
            time = self.space.predicted[best].us
            judge.progress(BEST, 0, None, f"{self.workload.name}: {time:.4g} µs predicted for {best}")
        for place, config in enumerate(batch, 1):
            if not ahead:
                judge.progress("verify", place, len(batch), f"{self.workload.name} {config}")
            self._note(config, judge.verify(self.workload.name, self._contestant(config)))
        return True

    def _note(self, config: Configuration, verdict: Checked | Eliminated) -> None:
        candidate = self.candidates[config]
        checked = verdict.checked if isinstance(verdict, Eliminated) else verdict
        if isinstance(verdict, Eliminated):
            status = "failed" if verdict.checked is None else "wrong"
            candidate = replace(candidate, status=status, reason=verdict.reason)  # type: ignore[arg-type]
        elif verdict.verdict == "incorrect" or (self.measured and verdict.verdict != "correct"):
            candidate = replace(candidate, status="wrong", reason=verdict.reason)
        self.candidates[config] = candidate if checked is None else replace(candidate, checked=checked)

    # Race -----------------------------------------------------------------------------------------

    @property
    def contestants(self) -> tuple[Contestant, ...]:
        """Those that were tried and are correct."""
        tried = [(config, self.candidates[config]) for config in self.tried]
        right = [(config, each) for config, each in tried if each.checked and each.checked.verdict == "correct"]
        return tuple(self._contestant(config) for config, each in right if each.status not in ("failed", "wrong"))

    @property
    def baseline(self) -> Contestant | None:
        config = self.space.baseline
        return None if config is None else self._contestant(config)

    def outcomes(self, batch: Sequence[Configuration]) -> Outcomes:
        return tuple(self.candidates[config] for config in batch)

    def note(self, race: RaceResult | None) -> None:
        """Writes what a race found out to its candidates."""
        if race is None:
            return
        self.race = race
        by_name = {str(config): config for config in self.tried}
        for out in race.eliminated:
            candidate = self.candidates[by_name[out.name]]
            status = "failed" if out.checked is None else "wrong"
            self.candidates[by_name[out.name]] = replace(candidate, status=status, reason=out.reason)  # type: ignore[arg-type]
        for finisher in race.raced:
            self.candidates[by_name[finisher.name]] = _finished(self.candidates[by_name[finisher.name]], finisher)

    def _contestant(self, config: Configuration) -> Contestant:
        return Contestant(str(config), Configured(config), cost_of(self.candidates[config].code))

    # Decide ---------------------------------------------------------------------------------------

    def decided(self, seed: int) -> WorkloadResult:
        """The result of the workload. ``seed``: of the inputs that were verified and timed."""
        if not self.measured:
            return self._predicted()
        race = self.race
        if race.lost:
            raise MachineError(f"the race of workload {self.workload} fails: {race.lost}")
        ranked = self.space.ranked
        for place, config in enumerate(ranked, 1):
            if config not in self.tried:
                reason = f"predicted {place}. of {len(ranked)}; the first {self.space.top} were raced"
                self.candidates[config] = replace(self.candidates[config], status="screened", reason=reason)
        by_name = {str(config): config for config in self.tried}
        best = None if race.winner is None else self.candidates[by_name[race.winner]]
        tied = tuple(by_name[each.name] for each in race.raced if each.state in ("leader", "tied"))
        if not race.raced:
            return self._result(None, "no candidate compiled, ran and was right")
        reason = str(race.record["why"])
        return replace(self._result(best, reason), tied=tied, race={**race.record, "seed": seed})

    def _predicted(self) -> WorkloadResult:
        """Without a GPU: the best predicted of those that the interpreter finds correct, else of the unverified."""
        for verdict in ("correct", "unverified"):
            for config in self.tried:
                best = self.candidates[config]
                if best.checked is not None and best.checked.verdict == verdict:
                    why_not = best.checked.reason if verdict == "unverified" else ""
                    return self._result(best, f"{_PREDICTED[verdict]}{why_not}")
        return self._result(None, "every candidate is incorrect" if self.tried else "no candidate compiled")

    def _result(self, best: Candidate | None, reason: str) -> WorkloadResult:
        shipped = self.task.space.shipped
        return WorkloadResult(self.workload, self.bound, best, (), tuple(self.candidates.values()), shipped, reason)


def _finished(candidate: Candidate, finisher: Finisher) -> Candidate:
    if finisher.state == "failed" or finisher.measured is None:
        return replace(candidate, status="failed", reason=f"race: {finisher.reason}")
    return replace(candidate, status="raced", reason=finisher.reason, measured=finisher.measured)
