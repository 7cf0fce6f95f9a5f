"""One workload's candidates, from the compiler to the result.

The compiler's results arrive in one thread; `WorkloadTuner.result` runs in the thread that talks to
the GPU. While compilers still run, it verifies what is best predicted so far, so that little is
left to verify when the last one is done.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tilewright.compile.compile import Compiled, launch_of
from tilewright.compile.screen import candidate_of, ranking, screen_compiled
from tilewright.hardware.architectures import Board
from tilewright.languages import language_of
from tilewright.records import (
    Bound,
    Built,
    Candidate,
    Checked,
    Configuration,
    Failed,
    Screened,
    Workload,
    WorkloadResult,
)
from tilewright.task.task import Task
from tilewright.worker.client import Measuring

if TYPE_CHECKING:
    from tilewright.verify.quick import QuickChecker

NOT_ASKED = Checked("unverified", "not among the best predicted: nothing was compared")
_PREDICTED = {
    "correct": "the shortest predicted time of those that the interpreter finds correct; predicted, not measured",
    "unverified": "the shortest predicted time; predicted, not measured, and not verified: ",
}
ENOUGH_TO_START = 0.3
"""Share of the candidates that must have arrived before the best of them are verified: ranked earlier,
most would turn out not to be among the best."""
ENOUGH_TO_RACE = 0.7
"""Share that must have arrived before the field so far is raced."""


class Stopped(Exception):
    """The run ended while candidates were waited for."""


class Arrivals:
    """Compiled candidates of one workload, as they come in."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self._arrived: list[Compiled] = []
        self._stopped = False
        self._changed = threading.Condition()

    def add(self, one: Compiled) -> None:
        with self._changed:
            self._arrived.append(one)
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def wait(self, for_more_than: int) -> list[Compiled]:
        """All that have arrived, once they are more than that many, or all there will be."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopped or len(self._arrived) > for_more_than or len(self._arrived) == self.expected
            )
            if self._stopped:
                raise Stopped
            return list(self._arrived)


@dataclass(frozen=True)
class WorkloadTuner:
    """Screens one workload's candidates, and verifies and races them where there is a GPU."""

    task: Task
    workload: Workload
    board: Board
    measuring: Measuring
    top: int
    """How many of the best predicted are verified and raced."""
    verdicts: QuickChecker | None = None
    """Who verifies where there is no GPU."""

    def result(self, arrivals: Arrivals) -> WorkloadResult:
        """Waits for the candidates and ends with the best of them."""
        if self.measuring.session is None:
            return self._predicted(arrivals.wait(arrivals.expected - 1))
        self.measuring.prepare(self.workload)
        compiled = arrivals.wait(int(ENOUGH_TO_START * arrivals.expected))
        while len(compiled) < arrivals.expected:
            compiled = arrivals.wait(-1 if self._ahead(compiled, arrivals.expected) else len(compiled))
        return self._raced(compiled)

    def _ahead(self, compiled: Sequence[Compiled], expected: int) -> bool:
        """Does the next useful thing before the last compiler is done; False where there is none.

        The stragglers are mostly those that spill. If none of them makes it into the field, what was
        verified and raced without them stands (`Measuring` remembers both).
        """
        field = self._field(self._screened(compiled))
        unverified = [config for config in field if not self.measuring.has_verdict(self.workload, config)]
        if unverified:
            remember(self.task, [one for one in compiled if one.unit.configuration == unverified[0]])
            self.measuring.verdict(self.workload, unverified[0])
            return True
        if len(compiled) < ENOUGH_TO_RACE * expected or self.measuring.has_raced(self.workload, field):
            return False
        self._raced(compiled)
        return True

    def _raced(self, compiled: Sequence[Compiled]) -> WorkloadResult:
        screened = self._screened(compiled)
        candidates, ranked = self._candidates(compiled, screened), ranking(screened)
        chosen = self._field(screened)
        for place, config in enumerate(ranked, 1):
            if config not in chosen:
                reason = f"predicted {place}. of {len(ranked)}; the first {self.top} were raced"
                candidates[config] = replace(candidates[config], status="screened", reason=reason)
        remember(self.task, [one for one in compiled if one.unit.configuration in chosen])
        return self.measuring.run(self.workload, self.bound, candidates, chosen)

    def _predicted(self, compiled: Sequence[Compiled]) -> WorkloadResult:
        """Without a GPU: the best predicted of those that the interpreter finds correct."""
        screened = self._screened(compiled)
        candidates = {
            config: replace(one, checked=NOT_ASKED) for config, one in self._candidates(compiled, screened).items()
        }
        asked = [config for config in ranking(screened) if self._verified(config, candidates)]
        for verdict in ("correct", "unverified"):
            for config in asked:
                best = candidates[config]
                if best.checked is not None and best.checked.verdict == verdict:
                    return self._result(best, candidates, f"{_PREDICTED[verdict]}{_why_not(best.checked)}")
        reason = "every candidate is incorrect" if asked else "no candidate compiled"
        return self._result(None, candidates, reason)

    def _verified(self, config: Configuration, candidates: dict[Configuration, Candidate]) -> bool:
        """Asks the interpreter, until ``top`` candidates were asked and one of them was not incorrect."""
        asked = [one.checked.verdict for one in candidates.values() if one.checked not in (None, NOT_ASKED)]
        if self.verdicts is None or (len(asked) >= self.top and set(asked) != {"incorrect"}):
            return False
        checked = self.verdicts.of(self.workload, config)
        wrong = checked.verdict == "incorrect"
        changes = {"status": "wrong", "reason": checked.reason} if wrong else {}
        candidates[config] = replace(candidates[config], checked=checked, **changes)  # type: ignore[arg-type]
        return True

    def _result(
        self, best: Candidate | None, candidates: Mapping[Configuration, Candidate], reason: str
    ) -> WorkloadResult:
        shipped = self.task.space.shipped
        return WorkloadResult(self.workload, self.bound, best, (), tuple(candidates.values()), shipped, reason)

    @cached_property
    def bound(self) -> Bound:
        from tilewright.inspect.work import bound_of  # the interpreter loads while the first compilers run

        return bound_of(self.task, self.workload, self.board)

    def _screened(self, compiled: Sequence[Compiled]) -> Mapping[Configuration, Screened | Failed]:
        return screen_compiled(
            self.task, self.workload, self.board, self.bound, self._in_order(compiled), self.task.space.shipped
        )

    def _candidates(
        self, compiled: Sequence[Compiled], screened: Mapping[Configuration, Screened | Failed]
    ) -> dict[Configuration, Candidate]:
        in_order = self._in_order(compiled)
        return {one.unit.configuration: candidate_of(one, screened[one.unit.configuration]) for one in in_order}

    def _in_order(self, compiled: Sequence[Compiled]) -> list[Compiled]:
        """In the order of the space, whatever the order of arrival: the first of equal codes stands for them."""
        space = self.task.space.configurations(self.board.sm, self.workload.dims)
        place = {config: at for at, config in enumerate(space)}
        return sorted(compiled, key=lambda one: place[one.unit.configuration])

    def _field(self, screened: Mapping[Configuration, Screened | Failed]) -> list[Configuration]:
        """Who races: the best predicted, and the one shipped today (or the one that stands for its code)."""
        ranked = ranking(screened)
        chosen = list(ranked[: self.top])
        shipped = self.task.space.shipped
        stand_in = getattr(screened.get(shipped), "duplicate_of", None) or shipped
        if stand_in in ranked and stand_in not in chosen:
            chosen.append(stand_in)
        return chosen


def _why_not(checked: Checked) -> str:
    return checked.reason if checked.verdict == "unverified" else ""


def remember(task: Task, compiled: Sequence[Compiled]) -> int:
    """Puts the cubins where the launch will find them, so that the worker compiles nothing."""
    built = [one.built for one in compiled if isinstance(one.built, Built)]
    if not built:
        return 0
    return language_of(launch_of(task, compiled[0].unit)[0].kernel).remember(built)
