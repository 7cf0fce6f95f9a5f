"""The candidates of one workload, with the results of screening, verification and race."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilewright.compile.accumulators import HasToSpill, needs_unfit
from tilewright.compile.compile import Compiled
from tilewright.compile.screen import candidate_of, not_raced, ranking, screen_compiled
from tilewright.compile.skipped import CompileLimit, ExpectedSlow, NotCompiled, compile_limit
from tilewright.errors import MachineError
from tilewright.progress import BEST
from tilewright.race.rules import cost_of
from tilewright.records import (
    Bound,
    Built,
    Candidate,
    Checked,
    Configuration,
    Failed,
    Screened,
    Status,
    Workload,
    WorkloadResult,
)
from tilewright.space.union import implementation_of
from tilewright.strategies.base import Outcomes, Search, fastest_first
from tilewright.tune.judge import Judge
from tilewright.tune.run import TuneRequest
from tilewright.tune.workload_search import Searching
from tilewright.worker.client import Contestant, Eliminated, Finisher, RaceResult

NOT_ASKED = Checked("unverified", "not among the candidates with the shortest predicted times, so not compared")
NEARLY = 1.02
"""Candidates of earlier batches within this factor of the fastest are raced again, with those of the new batch."""


class Field:
    """The candidates of one workload that have compiled so far, with their screening verdicts.

    compiled: in the order of the space.
    judge: verifies and races the candidates.
    earlier: the outcomes of earlier batches of the search, of which the measured times are kept.
    """

    def __init__(
        self, request: TuneRequest, workload: Workload, bound: Bound, compiled: Sequence[Compiled],
        screened: Mapping[Configuration, Screened | Failed], judge: Judge, earlier: Mapping[Configuration, Candidate],
    ) -> None:  # fmt: skip
        self.judge = judge
        self.task, self.workload, self.bound, self.measured = request.task, workload, bound, request.target.measured
        self.compiled = {each.unit.configuration: each for each in compiled}
        self.candidates = {config: candidate_of(each, screened[config]) for config, each in self.compiled.items()}
        if not self.measured:
            self.candidates = {config: replace(each, checked=NOT_ASKED) for config, each in self.candidates.items()}
        self.tried: list[Configuration] = []
        self.race = RaceResult((), ())
        self.ranked, self.top = ranking(screened), request.top
        shipped = self.task.space.shipped
        self.shipped = shipped if shipped in self.ranked else None
        """The shipped configuration, which represents its duplicates; None if it cannot be raced."""
        self.timed = {
            config: earlier[config] for config in self.ranked if config in earlier and earlier[config].measured
        }
        for config, before in self.timed.items():
            self.candidates[config] = replace(
                self.candidates[config], status=before.status, reason=before.reason, measured=before.measured,
                checked=before.checked,
            )  # fmt: skip

    @classmethod
    def screened(
        cls, request: TuneRequest, workload: Workload, bound: Bound, compiled: Sequence[Compiled], judge: Judge,
        earlier: Mapping[Configuration, Candidate],
    ) -> Field:  # fmt: skip
        """Returns the field of the compiled candidates. The machine code decides which of them to verify and race."""
        screened = screen_compiled(request.task, workload, request.target.board, bound, compiled)
        return cls(request, workload, bound, compiled, screened, judge, earlier)

    # Verify ---------------------------------------------------------------------------------------

    def chosen(self) -> Search:
        """Yields the configurations to verify: the ``top`` with the shortest predicted times, and the first of each
        implementation.

        If times are measured, adds the shipped configuration and the fastest of earlier batches. If times are predicted
        and all yielded configurations are wrong, yields more, one at a time, until a configuration is not wrong.
        """
        best_of_each = {implementation_of(config): config for config in reversed(self.ranked)}
        first = tuple(dict.fromkeys((*self.ranked[: self.top], *best_of_each.values())))
        if self.measured:
            shipped = () if self.shipped is None else (self.shipped,)
            yield tuple(dict.fromkeys((*first, *shipped, *self._fastest_before())))
            return
        outcomes = yield first
        for configuration in [each for each in self.ranked if each not in first]:
            if any(outcome.status != "wrong" for outcome in outcomes):
                return
            outcomes = yield (configuration,)

    def _fastest_before(self) -> list[Configuration]:
        us = {config: each.measured.us for config, each in self.timed.items() if each.measured}
        return [config for config in us if us[config] <= NEARLY * min(us.values())]

    def verify(self, batch: Sequence[Configuration], *, ahead: bool) -> bool:
        """Verifies the candidates of ``batch``. Returns whether all candidates of the batch have a verdict.

        ahead: True while compilers are running. Then at most one new candidate is verified, because a better one may be
            compiled meanwhile.
        """
        judge = self.judge
        self.tried += batch
        unverified = [each for each in batch if not judge.is_verified(self.workload.name, self._contestant(each))]
        if ahead:
            for config in unverified[:1]:
                judge.verify(self.workload.name, self._contestant(config))
            if unverified:
                return False
        for best in self.ranked[:1]:
            if time := self.candidates[best].predicted:
                judge.progress(BEST, 0, None, f"{self.workload.name}: {time.us:.4g} µs predicted for {best}")
        for place, config in enumerate(batch, 1):
            if not ahead:
                judge.progress("verify", place, len(batch), f"{self.workload.name} {config}")
            self._note(config, judge.verify(self.workload.name, self._contestant(config)))
        return True

    def _note(self, config: Configuration, verdict: Checked | Eliminated) -> None:
        candidate = self.candidates[config]
        checked = verdict.checked if isinstance(verdict, Eliminated) else verdict
        if isinstance(verdict, Eliminated):
            candidate = _eliminated(candidate, verdict)
        elif verdict.verdict == "incorrect":
            candidate = replace(candidate, status="wrong", reason=verdict.reason)
        self.candidates[config] = candidate if checked is None else replace(candidate, checked=checked)

    # Race -----------------------------------------------------------------------------------------

    @property
    def contestants(self) -> tuple[Contestant, ...]:
        """The candidates that were verified as correct."""
        tried = [(config, self.candidates[config]) for config in self.tried]
        right = [(config, each) for config, each in tried if each.checked and each.checked.right]
        return tuple(self._contestant(config) for config, each in right if each.status not in ("failed", "wrong"))

    @property
    def baseline(self) -> Contestant | None:
        return None if self.shipped is None else self._contestant(self.shipped)

    def outcomes(self, batch: Sequence[Configuration]) -> Outcomes:
        return tuple(self.candidates[config] for config in batch)

    def note(self, race: RaceResult | None) -> None:
        """Stores the results of a race in the candidates."""
        if race is None:
            return
        self.race = race
        by_name = {str(config): config for config in self.tried}
        for out in race.eliminated:
            config = by_name[out.name]
            self.candidates[config] = _eliminated(self.candidates[config], out)
        for finisher in race.raced:
            config = by_name[finisher.name]
            self.candidates[config] = _finished(self.candidates[config], finisher)

    @property
    def compile_limit(self) -> CompileLimit | None:
        """The limit for the compilers that still run, judged by the candidates raced so far; None before a race."""
        built = {config: each.built for config, each in self.compiled.items() if isinstance(each.built, Built)}
        spent = {config: each.processor_seconds for config, each in built.items() if each.processor_seconds}
        measured = {config: each.measured for config, each in self.candidates.items() if config in spent}
        timed = [(time.us, spent[config]) for config, time in measured.items() if time is not None]
        return compile_limit(timed, list(spent.values()))

    def _contestant(self, config: Configuration) -> Contestant:
        source = self.judge.source(self.compiled[config])
        return Contestant(str(config), source, cost_of(self.candidates[config].code))

    @property
    def needs_unfit(self) -> bool:
        """Whether to compile also the candidates whose accumulators cannot fit into registers.

        This is needed if no correct candidate has a small stack (`accumulators.needs_unfit`).
        """
        if not any(isinstance(each.built, HasToSpill) for each in self.compiled.values()):
            return False
        tried = map(self.candidates.__getitem__, self.tried)
        right = (each.code for each in tried if each.code and each.status not in ("failed", "wrong"))
        return needs_unfit(code.stack_bytes for code in right)

    def to_compile(self, expected_us: Callable[[Configuration], float | None]) -> set[Configuration]:
        """Returns the candidates that were left out and may win nevertheless.

        expected_us: returns the time in µs that was expected of a candidate; None if it is not known.
        """
        near = limit.near if (limit := self.compile_limit) else math.inf
        left_out = {config: each.built for config, each in self.compiled.items() if isinstance(each.built, NotCompiled)}
        unfit = {config for config, why in left_out.items() if isinstance(why, HasToSpill)}
        found = {config for config, why in left_out.items() if why.too_early(near)}
        if slow := self._slow:
            fastest = fastest_first(self.candidates[config] for config in self.tried)
            known = expected_us(fastest[0].configuration) if fastest else None
            found |= {config for config, why in slow.items() if why.may_win(known)}
        return found | unfit if self.needs_unfit else found

    @property
    def _slow(self) -> dict[Configuration, ExpectedSlow]:
        """The candidates that were not compiled because they are expected to be slow."""
        built = {config: each.built for config, each in self.compiled.items()}
        return {config: why for config, why in built.items() if isinstance(why, ExpectedSlow)}

    # Decide ---------------------------------------------------------------------------------------

    def decided(self, seed: int, search: Searching) -> WorkloadResult:
        """Returns the result of the workload. ``seed``: the seed of the inputs."""
        result = self._raced(seed) if self.measured else self._predicted()
        return replace(result, searched=search.report(self.candidates, self._slow))

    def _raced(self, seed: int) -> WorkloadResult:
        race = self.race
        if race.lost:
            raise MachineError(f"the race of workload {self.workload} fails: {race.lost}")
        for place, config in enumerate(self.ranked, 1):
            if config not in self.tried and config not in self.timed:
                reason = not_raced(place, len(self.ranked), self.top)
                self.candidates[config] = replace(self.candidates[config], status="screened", reason=reason)
        if not race.raced:
            checks = (self.candidates[config].checked for config in self.tried)
            unverified = next((each.reason for each in checks if each and each.verdict == "unverified"), "")
            reason = f"unverified: {unverified}" if unverified else "no candidate compiled, ran and was correct"
            return self._result(None, reason)
        by_name = {str(config): config for config in self.tried}
        best = None if race.winner is None else self.candidates[by_name[race.winner]]
        tied = tuple(by_name[each.name] for each in race.raced if each.state in ("leader", "tied"))
        return replace(self._result(best, str(race.record["why"])), tied=tied, race={**race.record, "seed": seed})

    def _predicted(self) -> WorkloadResult:
        """Returns the result without a GPU: the correct candidate with the shortest predicted time.

        If no candidate is correct, takes the unverified candidate with the shortest predicted time.
        """
        for verdict in ("correct", "correct on reduced shapes", "unverified"):
            for config in self.tried:
                best = self.candidates[config]
                if best.checked is not None and best.checked.verdict == verdict:
                    return self._result(best, self._why_predicted(best, best.checked))
        return self._result(None, "every candidate is incorrect" if self.tried else "no candidate compiled")

    def _why_predicted(self, best: Candidate, checked: Checked) -> str:
        alone = sum(isinstance(each.built, Built) for each in self.compiled.values()) == 1
        chosen, found = "the shortest predicted time", " of the candidates that the interpreter finds"
        if alone:
            chosen, found = "the only candidate that was compiled, so there was no choice", "; the interpreter finds it"
        if checked.verdict == "unverified":
            return f"{chosen}; predicted, not measured, and not verified: {checked.reason}"
        return f"{chosen}{found} {checked.verdict}; predicted, not measured{self._faster_than(best)}"

    def _faster_than(self, best: Candidate) -> str:
        """Says why a candidate with a shorter predicted time is not the best one; "" if there is none."""
        for config in self.tried:
            other = self.candidates[config]
            shorter = other.predicted and best.predicted and other.predicted.us < best.predicted.us
            if shorter and other.checked and other.checked.verdict != "incorrect":
                return f"; {config} is predicted faster, but is only '{other.checked.verdict}'"
        return ""

    def _result(self, best: Candidate | None, reason: str) -> WorkloadResult:
        shipped = self.task.space.shipped
        return WorkloadResult(self.workload, self.bound, best, (), tuple(self.candidates.values()), shipped, reason)


def _eliminated(candidate: Candidate, out: Eliminated) -> Candidate:
    status: Status = "failed" if out.checked is None else "wrong"
    return replace(candidate, status=status, reason=out.reason, checked=out.checked or candidate.checked)


def _finished(candidate: Candidate, finisher: Finisher) -> Candidate:
    if finisher.state == "failed" or finisher.measured is None:
        return replace(candidate, status="failed", reason=f"race: {finisher.reason}")
    return replace(candidate, status="raced", reason=finisher.reason, measured=finisher.measured)
