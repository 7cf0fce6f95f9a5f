"""The search over a caller's own live tensors, in the caller's process.

    lower → compile side by side → same work once → spilled ones out → right? → race → the one to launch

While the slow compilers still run, what is ready is launched once and what it wrote is compared with what the
shipped configuration wrote (requirements X-24). The race begins when all is known, so its field depends on the
code alone and never on the load of the machine. It is that of `bench.protocol`: interleaved rounds, the slow
dropped by intervals, and of those within 1 % of the fastest the shipped one, else the cheapest (X-23).

The caller's arrays hold afterwards, to the byte, what they held before (A-41, X-08).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tilewright.errors import MachineError, RequestError, TilewrightError, in_one_line
from tilewright.progress import Progress, silent
from tilewright.records import Failed
from tilewright.runtime.search.trials import FailedTrial, Trial

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from tilewright.runtime.search.building import Building, Ready
    from tilewright.runtime.search.device import Device
    from tilewright.runtime.search.racing import TrialTiming
    from tilewright.runtime.search.trying import TrialRunner

SPILL_BYTES = 128
"""Stack of a thread from which a candidate counts as spilled. Of the 158 recorded ones that spill
(bench/recorded/h200-2026-11-21.json.gz) those with more are at least 1.19 times slower than the best, and up to 76
times; one with 40 bytes is the fastest of its workload."""
HOPELESS_BYTES = 640
"""The least stack of those recorded whose accumulators do not fit (matmul on an H200, 1.9 to 9.2 times slower than the
best). They are compiled only where nothing that is right has less."""
ALL_SPILL = 2.0
"""Where everything that is right spills more: who spills up to this many times the least is launched."""

Status = Literal["timed", "duplicate", "pruned", "failed", "wrong"]


@dataclass(frozen=True)
class TrialOutcome:
    """What became of one configuration (F-5).

    us: median of the samples; of the configuration that it is a duplicate of, where it is one; None where it was
        not timed.
    error_margin_us: half of the distribution-free 95 % interval of the median.
    stage: where it failed: launch, front end, compile, machine code, verify, race.
    """

    label: str
    status: Status
    reason: str
    us: float | None = None
    error_margin_us: float | None = None
    samples: int = 0
    stage: str | None = None
    error: type[Exception] | None = None


@dataclass(frozen=True)
class SearchResult:
    """``best`` and ``runner_up`` are places in the space. ``seconds``: wall time waited for each stage."""

    best: int
    runner_up: int | None
    outcomes: tuple[TrialOutcome, ...]
    seconds: Mapping[str, float]
    note: str = ""


class Nothing(TilewrightError):
    """No configuration works. ``first``: the outcome of the first that failed."""

    def __init__(self, outcomes: Sequence[TrialOutcome]) -> None:
        self.outcomes = tuple(outcomes)
        self.first = next((one for one in outcomes if one.status == "failed"), outcomes[0])
        super().__init__(
            f"none of the {len(outcomes)} configurations works; {self.first.label} failed at the stage "
            f"{self.first.stage}: {self.first.reason}"
        )


def search(
    trials: Sequence[Trial | Failed],
    *,
    stream: Any,
    shipped: int = 0,
    flush_l2: bool = True,
    launch_mode: str = "eager",
    jobs: int | None = None,
    seconds: float | None = None,
    machine: Device | None = None,
    on_progress: Progress = silent,
) -> SearchResult:
    """Finds the configuration to launch. Raises Nothing where none works.

    stream: the caller's CUDA stream; all is queued after its work, and has ended on return.
    shipped: place of the configuration in use today: the yardstick of what is right, and what wins ties.
    flush_l2: each timed launch finds an empty L2.
    launch_mode: ``eager`` or ``graph``, as the kernel will be launched.
    jobs: compilers at a time (default: all cores).
    seconds: wall time for one compiler (default: `compile.BUDGET_SECONDS`).
    machine: where it runs (default: the GPU of ``stream``).
    """
    if launch_mode not in ("eager", "graph"):
        raise RequestError(f"unknown launch mode '{launch_mode}'; known: eager, graph")
    if not 0 <= shipped < len(trials):
        raise RequestError(f"the shipped configuration is number {shipped} of {len(trials)}")
    from tilewright.race.rules import Policy
    from tilewright.runtime.search.device import CudaDevice

    device = machine if machine is not None else CudaDevice(stream)
    policy = Policy(
        l2="cold" if flush_l2 else "warm", launch="graph" if launch_mode == "graph" else "eager", warmup_rounds=1
    )
    with device.active():
        return _SearchRun(list(trials), device, policy, shipped, on_progress).run(jobs, seconds)


class _SearchRun:
    runner: TrialRunner

    def __init__(
        self, trials: list[Trial | Failed], device: Device, policy: Any, shipped: int, progress: Progress
    ) -> None:
        self.trials, self.device, self.policy, self.shipped = trials, device, policy, shipped
        self.progress = progress
        self.outcomes: dict[int, TrialOutcome] = {}
        self.ready: dict[int, Ready] = {}
        self.representative: dict[Hashable, int] = {}
        """Equal work → the one that was met first and stands for it."""
        self.right: list[int] = []
        self.seconds = {"lower": 0.0, "compile": 0.0, "verify": 0.0, "race": 0.0}
        self.notes: list[str] = []

    def run(self, jobs: int | None, seconds: float | None) -> SearchResult:
        from tilewright.runtime.search.building import Building
        from tilewright.runtime.search.scratch import NoRoom

        with Building(self.trials, self.device.arch, self.shipped, jobs, seconds) as building:
            self._while_compilers_run()
            try:
                self._yardstick(building)
                self._meet_all(building)
                if not any(self.ready[index].header.stack_bytes < HOPELESS_BYTES for index in self.right):
                    building.build_hopeless()
                    self._meet_all(building)
                for index, reason in building.hopeless.items():
                    self.outcomes[index] = TrialOutcome(self._label(index), "pruned", reason)
            except NoRoom as reason:
                return self._unsearched(str(reason))
            finally:
                self.seconds |= building.seconds
        self._spilled()
        if not self.right:
            raise Nothing(self._in_order())
        try:
            return self._raced()
        except NoRoom as reason:
            return self._unsearched(str(reason))

    def _while_compilers_run(self) -> None:
        """What takes 0.1 s to import in the first search of a process, and is wanted only after them."""
        from tilewright.runtime.search import racing  # noqa: F401
        from tilewright.runtime.search.trying import TrialRunner

        self.runner = TrialRunner(self.device)

    # Right? ---------------------------------------------------------------------------------------

    def _yardstick(self, building: Building) -> None:
        """The shipped configuration says what is right; where it does not work, the first that does."""
        from tilewright.runtime.search.scratch import NoRoom

        order = sorted(range(len(self.trials)), key=lambda i: (i != self.shipped, i in building.hopeless, i))
        for index in order:
            if index in building.hopeless:
                building.build_hopeless()
            one = building.get(index)
            if isinstance(one, FailedTrial):
                self._failed(index, one)
                continue
            self._stand(index, one)
            try:
                with self._timed("verify"):
                    self.runner.set_yardstick(one)
            except (MachineError, NoRoom):
                raise
            except Exception as error:  # of its launch, or of the caller's functions
                self._failed(index, _raised(one.trial, error))
                continue
            self.right.append(index)
            if self.runner.note:
                self.notes.append(self.runner.note)
            if index != self.shipped:
                self.notes.append(
                    f"the shipped configuration {self._label(self.shipped)} does not work "
                    f"({self.outcomes[self.shipped].reason}), so outputs were compared with those of {one.trial.label}"
                )
            return
        raise Nothing(self._in_order())

    def _meet_all(self, building: Building) -> None:
        for done, (index, one) in enumerate(building.all(), 1):
            self.progress("compile", done, len(self.trials), self._label(index))
            self._meet(index, one)

    def _meet(self, index: int, one: Ready | FailedTrial) -> None:
        """Takes what the compilers are done with; launches it once unless it is known, or spilled."""
        if index in self.outcomes or index in self.ready:
            return
        if isinstance(one, FailedTrial):
            self._failed(index, one)
        elif self._stand(index, one) == index and one.header.stack_bytes <= SPILL_BYTES:
            self._verify(index)

    def _stand(self, index: int, one: Ready) -> int:
        self.ready[index] = one
        return self.representative.setdefault(one.identity, index)

    def _verify(self, index: int) -> None:
        from tilewright.runtime.search.scratch import NoRoom

        one = self.ready[index]
        self.progress("verify", len(self.ready), len(self.trials), one.trial.label)
        try:
            with self._timed("verify"):
                wrong = self.runner.wrong(one)
        except (MachineError, NoRoom):
            raise
        except Exception as error:  # of its launch, or of the caller's functions
            self._failed(index, _raised(one.trial, error))
            return
        if wrong is None:
            self.right.append(index)
        else:
            self.outcomes[index] = TrialOutcome(one.trial.label, "wrong", wrong, stage="verify")

    def _spilled(self) -> None:
        """Those that spill are not launched, unless everything that is right does."""
        stack = {index: self.ready[index].header.stack_bytes for index in set(self.representative.values())}
        waiting = sorted(
            (index for index in stack if index not in self.outcomes and index not in self.right),
            key=lambda index: (stack[index], index),
        )
        least = min((stack[index] for index in (*self.right, *waiting)), default=0)
        for index in waiting:
            if least > SPILL_BYTES and stack[index] <= ALL_SPILL * least:
                self._verify(index)
            else:
                reason = f"spills: {stack[index]:,} B of stack a thread, where the least is {least:,} B"
                self.outcomes[index] = TrialOutcome(self._label(index), "pruned", reason)

    # The race -------------------------------------------------------------------------------------

    def _raced(self) -> SearchResult:
        from tilewright.runtime.search.racing import raced

        field = sorted(self.right, key=lambda index: (index != self.shipped, index))
        shipped = 0 if field[0] == self.shipped else None
        with self._timed("race"):
            race = raced(
                [self.ready[index] for index in field], self.runner, self.policy, shipped,
                lambda rounds, left: self.progress("race", rounds, None, f"{left} left in the race"),
            )  # fmt: skip
        for index, timing in zip(field, race.timings, strict=True):
            self.outcomes[index] = self._timed_outcome(index, timing)
        if race.winner is None:
            raise Nothing(self._in_order())
        self.notes += race.notes
        outcomes = self._in_order()
        best = self._shown(field[race.winner])
        others = [i for i, one in enumerate(outcomes) if one.status == "timed" and i != best]
        runner_up = min(others, key=lambda i: (outcomes[i].us or 0.0, i), default=None)
        return SearchResult(best, runner_up, outcomes, self.seconds, "; ".join(self.notes))

    def _timed_outcome(self, index: int, timing: TrialTiming) -> TrialOutcome:
        label = self._label(index)
        if timing.us is None:
            return TrialOutcome(label, "failed", timing.reason, stage="race", error=RuntimeError)
        return TrialOutcome(label, "timed", timing.reason, timing.us, timing.error_margin_us, timing.samples)

    # What became of each --------------------------------------------------------------------------

    def _members(self, index: int) -> list[int]:
        """All that do the same work as the one that stands for it; the one that is shown for them first."""
        mine = self.ready[index].identity
        same = [i for i in sorted(self.ready) if self.ready[i].identity == mine]
        return sorted(same, key=lambda i: (i != self.shipped, i))

    def _shown(self, index: int) -> int:
        return self._members(index)[0]

    def _in_order(self) -> tuple[TrialOutcome, ...]:
        """One outcome for each configuration: what holds of the one that stands for it holds of all alike."""
        found = dict(self.outcomes)
        for index in self.representative.values():
            if index not in self.outcomes:
                continue
            first, *others = self._members(index)
            one = self.outcomes[index]
            found[first] = replace(one, label=self._label(first))
            status: Status = "duplicate" if one.status == "timed" else one.status
            for other in others:
                reason = f"same machine code, grid and arguments as {self._label(first)}"
                reason += "" if status == "duplicate" else f": {one.reason}"
                found[other] = replace(one, label=self._label(other), status=status, reason=reason)
        missing = TrialOutcome("", "pruned", "not looked at")
        return tuple(found.get(i, replace(missing, label=self._label(i))) for i in range(len(self.trials)))

    def _unsearched(self, reason: str) -> SearchResult:
        """Nothing was compared, so nothing may take the place of what is shipped today."""
        best = self._shown(self.right[0] if self.right else list(self.ready)[-1])
        told = f"not searched: {reason}"
        known = {index: one for index, one in self.outcomes.items() if one.status in ("failed", "wrong")}
        outcomes = tuple(
            known.get(index, TrialOutcome(self._label(index), "pruned", told)) for index in range(len(self.trials))
        )
        return SearchResult(best, None, outcomes, self.seconds, "; ".join([*self.notes, told]))

    def _failed(self, index: int, one: FailedTrial) -> None:
        self.outcomes[index] = TrialOutcome(self._label(index), "failed", one.reason, stage=one.stage, error=one.error)

    def _label(self, index: int) -> str:
        one = self.trials[index]
        return str(getattr(one, "label", "")) or f"number {index}"

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - started


def _raised(trial: Trial, error: Exception) -> FailedTrial:
    return FailedTrial("verify", in_one_line(error), trial.label, trial.config, type(error))
