"""The search over the caller's own tensors, in the user's process.

    lower → compile → screen → verify → race

The stages are those of `tune`. Both use the same decisions (`compile.screen`, `race.protocol`) and the same records of
verdicts and times (`worker.client`). They differ in the reference. Here, the outputs of one configuration on the
caller's arrays are the reference (`TrialRunner`): of the shipped one, or if none is in use, of the one that is compiled
the quickest. In `tune`, float64 NumPy on random arrays is the reference.

While compilers still run, the best trials so far are launched once, and their outputs are compared. The race begins
when all trials are compiled, so its candidates depend only on the code and never on the load of the machine. Afterwards
the caller's arrays have exactly their old contents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, Any

from tilewright.errors import RequestError, TilewrightError
from tilewright.progress import Progress, silent
from tilewright.runtime.arrays import Stream
from tilewright.runtime.search.scratch import NoRoom
from tilewright.runtime.search.trials import FailedTrial, Status, Trial, TrialOutcome

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from tilewright.race.rules import Policy
    from tilewright.runtime.search.building import Building, Ready
    from tilewright.runtime.search.device import Device
    from tilewright.runtime.search.racing import TrialRunner
    from tilewright.runtime.search.screening import LiveScreen
    from tilewright.worker.client import Contestant, Eliminated, Finisher, RaceClient

CALL = "the caller's arrays"
"""The name of the only workload."""


@dataclass(frozen=True)
class SearchResult:
    """The result of a search. ``best``, ``runner_up``: indices in the space. ``seconds``: wall time of each stage.
    ``comparable``: whether outputs could be compared, because those of the reference hardly differ from run to run.
    """

    best: int
    runner_up: int | None
    outcomes: tuple[TrialOutcome, ...]
    seconds: Mapping[str, float]
    note: str = ""
    comparable: bool = True


class NothingWorks(TilewrightError):
    """No configuration works. ``first``: the outcome of the first configuration that failed."""

    def __init__(self, outcomes: Sequence[TrialOutcome]) -> None:
        self.outcomes = tuple(outcomes)
        self.first = next((outcome for outcome in outcomes if outcome.status == "failed"), outcomes[0])
        super().__init__(
            f"none of the {len(outcomes)} configurations works; {self.first.label} failed at the stage "
            f"{self.first.stage}: {self.first.reason}"
        )


def search(
    trials: Sequence[Trial | FailedTrial],
    *,
    stream: Stream,
    shipped: int | None = 0,
    flush_l2: bool = True,
    launch_mode: str = "eager",
    tie_band: float = 0.01,
    device: Device | None = None,
    on_progress: Progress = silent,
) -> SearchResult:
    """Finds the configuration to launch. Raises `NothingWorks` if no trial works.

    stream: the caller's CUDA stream. The search runs after the stream's work, and has ended on return.
    shipped: index of the configuration in use today. Its outputs are the reference, and it wins ties. None: none is in
        use, so none has to be compiled. The reference is the configuration that should be compiled the quickest.
    flush_l2: whether each timed launch finds an empty L2.
    launch_mode: ``eager`` or ``graph``, as the kernel will be launched.
    tie_band: relative differences up to this do not decide; the shipped or the cheapest configuration wins.
    device: where the trials run (default: the GPU of ``stream``).
    """
    if launch_mode not in ("eager", "graph"):
        raise RequestError(f"unknown launch mode '{launch_mode}'; known: eager, graph")
    if shipped is not None and not 0 <= shipped < len(trials):
        raise RequestError(f"the shipped configuration is number {shipped} of {len(trials)}")
    from tilewright.race.rules import Policy
    from tilewright.runtime.search.device import CudaDevice

    policy = Policy(
        "cold" if flush_l2 else "warm", "graph" if launch_mode == "graph" else "eager", tie_band, warmup_rounds=1
    )
    device = device or CudaDevice(stream)
    with device.active():
        return _SearchRun(list(trials), device, policy, shipped, on_progress).run()


class _SearchRun:
    """One search. Trials are identified by their index.

    representative: maps the identity of a trial's work to the trial with this work that was compiled first.
    correct: the trials whose outputs agree with the reference, which is the first.
    many: `Building.many`.
    """

    runner: TrialRunner
    client: RaceClient
    screen: LiveScreen
    many: bool

    def __init__(
        self, trials: list[Trial | FailedTrial], device: Device, policy: Policy, shipped: int | None, progress: Progress
    ) -> None:
        self.trials, self.device, self.policy, self.shipped, self.progress = trials, device, policy, shipped, progress
        self.outcomes: dict[int, TrialOutcome] = {}
        self.ready: dict[int, Ready] = {}
        self.representative: dict[Hashable, int] = {}
        self.correct: list[int] = []
        self.building_seconds: Mapping[str, float] = {}
        self.note = ""

    def run(self) -> SearchResult:
        from tilewright.compile.accumulators import needs_unfit

        try:
            with self._building() as building:
                self._take_reference(building)
                self._compile_and_verify(building)
                if building.unfit() and needs_unfit(self.ready[index].code.stack_bytes for index in self.correct):
                    building.compile_unfit()
                    self._compile_and_verify(building)
                for index, unfit in building.unfit().items():
                    self._set(index, "pruned", unfit.reason)
            return self._race()
        except NoRoom as reason:  # too little memory to compare or time trials: keep the shipped configuration
            best = self._with_equal_work(self.correct[0] if self.correct else list(self.ready)[-1])[0]
            why = f"not searched: {reason}"
            known = {i: outcome for i, outcome in self.outcomes.items() if outcome.status in ("failed", "wrong")}
            return self._result(best, None, self._listed(known, why), why)

    def _result(self, best: int, runner_up: int | None, outcomes: tuple[TrialOutcome, ...], why: str) -> SearchResult:
        notes = "; ".join(note for note in (*self.runner.notes, self.note, why) if note)
        seconds = {**self.building_seconds, **self.client.seconds}
        comparable = all(expected.comparable for expected in self.runner.expected.values())
        return SearchResult(best, runner_up, outcomes, seconds, notes, comparable)

    @contextmanager
    def _building(self) -> Iterator[Building]:
        from tilewright.runtime.search.building import Building

        with Building(self.trials, self.device.arch, self.shipped) as building:
            from tilewright.runtime.search.racing import TrialRunner
            from tilewright.runtime.search.screening import LiveScreen
            from tilewright.worker.client import RaceClient

            self.runner = TrialRunner(self.device, self.ready)
            self.client = RaceClient(self.runner, self.policy, 0, self.progress, too_fast=self._too_fast)
            self.screen = LiveScreen.of(self.device.board, building)
            self.many = building.many
            try:
                yield building
            finally:
                self.building_seconds = building.seconds

    def _take_reference(self, building: Building) -> None:
        """Takes the outputs of the first of `Building.order` that works as the reference."""
        unfit = building.unfit()
        for index in sorted(building.order, key=lambda i: (i != self.shipped, i in unfit)):  # otherwise the order stays
            if index in building.unfit():
                building.compile_unfit()
            ready = building.get(index)
            if isinstance(ready, FailedTrial):
                self._fail(index, ready)
                continue
            self._register(index, ready)
            self._verify(index)
            if index in self.outcomes:
                continue
            if (shipped := self.shipped) is not None and shipped in self.outcomes:
                self.note = (
                    f"the shipped configuration {self._label(shipped)} does not work "
                    f"({self.outcomes[shipped].reason}), so outputs were compared with those of "
                    f"{ready.trial.label}"
                )
            return
        raise NothingWorks(self._in_order())

    def _compile_and_verify(self, building: Building) -> None:
        """Waits until all trials are compiled, and then verifies the best trials.

        While compilers run, verifies the best trial so far, one at a time.
        """
        from tilewright.compile.screen import ENOUGH_TO_START, SPILL_BYTES

        expected = len(self.trials) - len(building.unfit())
        for done, (index, ready) in enumerate(building.all(), 1):
            self.progress("compile", done, len(self.trials), self._label(index))
            if isinstance(ready, FailedTrial):
                self._fail(index, ready)
            else:
                self._register(index, ready)
            if done >= ENOUGH_TO_START * expected:
                unverified = self._unverified(ahead=True)
                good = (index for index in unverified if self.ready[index].code.stack_bytes <= SPILL_BYTES)
                for best in islice(good, 1):
                    self._verify(best)
        while unverified := self._unverified():
            for index in unverified:
                self._verify(index)

    def _register(self, index: int, ready: Ready) -> None:
        self.ready[index] = ready
        self.representative.setdefault(ready.identity, index)

    def _chosen(self, *, ahead: bool = False) -> tuple[list[int], dict[int, str]]:
        """Returns the trials to verify and race, judged by the facts so far, and why the others are left out."""
        reference, left = self.correct[0], [i for i in self.representative.values() if i not in self.outcomes]
        return self.screen.chosen({index: self.ready[index] for index in (reference, *left)}, reference, ahead=ahead)

    def _unverified(self, *, ahead: bool = False) -> list[int]:
        return [index for index in self._chosen(ahead=ahead)[0] if index not in self.correct]

    def _verify(self, index: int) -> None:
        from tilewright.worker.client import Eliminated

        self.progress("verify", len(self.ready), len(self.trials), self._label(index))
        verdict = self.client.verify(CALL, self.runner.contestant(index))
        if isinstance(verdict, Eliminated):
            self._eliminate(index, verdict)
        elif verdict.right:
            self.correct.append(index)
        else:
            self._set(index, "wrong", verdict.reason, stage="verify")

    def _race(self) -> SearchResult:
        self.screen.wait()
        self.runner.instructions_known = not self.many or self.screen.work is not None
        chosen, left_out = self._chosen()
        field = sorted(chosen, key=lambda index: (index != self.shipped, index))
        contestants = [self.runner.contestant(index) for index in field]
        raced = self.client.race(CALL, contestants, baseline=contestants[0] if field[0] == self.shipped else None)
        for out in raced.eliminated:
            self._eliminate(int(out.name), out)
        for finisher in raced.raced:
            self._finish(int(finisher.name), finisher)
        for index, reason in left_out.items():
            self._set(index, "pruned", reason)
        if raced.winner is None:
            raise NothingWorks(self._in_order())
        outcomes, best = self._in_order(), self._with_equal_work(int(raced.winner))[0]
        others = [i for i, outcome in enumerate(outcomes) if outcome.status == "timed" and i != best]
        runner_up = min(others, key=lambda i: (outcomes[i].us or 0.0, i), default=None)
        return self._result(best, runner_up, outcomes, str(raced.record["why"]))

    def _too_fast(self, workload: str, contestant: Contestant, us: float) -> str | None:
        """Returns why the measured time of a trial is too short; None if it is possible. A limit that the reference
        also breaks is ignored.
        """
        index = self.correct[0]
        reference, its_us = self.ready[index], self.runner.times.get(index)
        reason = self.screen.too_fast(self.ready[int(contestant.name)], us, reference, self.policy)
        if reason is None or its_us is None or self.screen.too_fast(reference, its_us, reference, self.policy):
            return None
        return reason

    def _eliminate(self, index: int, out: Eliminated) -> None:
        status: Status = "failed" if out.checked is None else "wrong"
        self._set(index, status, out.why, stage=out.stage or "race", error=self.runner.errors.get(index))

    def _finish(self, index: int, finisher: Finisher) -> None:
        measured = finisher.measured
        if finisher.state == "failed" or measured is None:
            self._set(index, "failed", finisher.reason, stage="race", error=RuntimeError)
            return
        low, high = measured.interval_us
        margin = (high - low) / 2 if isfinite(high) else None  # too few samples for an interval
        samples = len(measured.samples_us)
        self._set(index, "timed", finisher.reason, us=measured.us, error_margin_us=margin, samples=samples)

    def _with_equal_work(self, index: int) -> list[int]:
        """Returns all trials with the same work. The shipped trial is first, or else the trial with the lowest
        index."""
        identity = self.ready[index].identity
        same = (i for i, ready in self.ready.items() if ready.identity == identity)
        return sorted(same, key=lambda i: (i != self.shipped, i))

    def _in_order(self) -> tuple[TrialOutcome, ...]:
        """Returns one outcome for each configuration; duplicates share their representative's outcome."""
        from tilewright.compile.screen import same_code_as

        outcomes = dict(self.outcomes)
        for index in set(self.representative.values()) & self.outcomes.keys():
            first, *others = self._with_equal_work(index)
            outcome = self.outcomes[index]
            outcomes[first] = replace(outcome, label=self._label(first))
            status: Status = "duplicate" if outcome.status == "timed" else outcome.status
            for other in others:
                reason = same_code_as(self._label(first)) + ("" if status == "duplicate" else f": {outcome.reason}")
                outcomes[other] = replace(outcome, label=self._label(other), status=status, reason=reason)
        return self._listed(outcomes, "neither compared nor timed")

    def _listed(self, known: Mapping[int, TrialOutcome], otherwise: str) -> tuple[TrialOutcome, ...]:
        every = range(len(self.trials))
        return tuple(known.get(i) or TrialOutcome(self._label(i), "pruned", otherwise) for i in every)

    def _fail(self, index: int, failed: FailedTrial) -> None:
        self._set(index, "failed", failed.reason, stage=failed.stage, error=failed.error)

    def _set(self, index: int, status: Status, reason: str, **details: Any) -> None:
        self.outcomes[index] = TrialOutcome(self._label(index), status, reason, **details)

    def _label(self, index: int) -> str:
        return self.trials[index].label or f"number {index}"
