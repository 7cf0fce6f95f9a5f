"""Shares the workloads of a run out over several judges, such as the GPUs of a machine.

Each judge takes the next workload when it has finished one. A workload stays with one judge, so all its times come from
one GPU and are compared with the noise of that GPU. A judge that fails is left out, and another one takes its workload.

A command that tunes for several kinds of GPU has one run for each. Their judges work at the same time, and no run's
workload reaches a judge of another run.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Queue
from typing import TYPE_CHECKING, TypeAlias

from tilewright.errors import MachineError
from tilewright.records import Workload, WorkloadResult

if TYPE_CHECKING:
    from tilewright.tune.judge import Judge

Work: TypeAlias = "Callable[[Judge, Callable[[], None], Workload], WorkloadResult]"
"""Tunes a workload with a judge. The function that it gets is to be called when the workload is prepared."""
UNSTEADY = 0.5
"""A GPU that disturbed more than this share of a race's rounds, by throttling for example, is left out."""


@dataclass(frozen=True)
class Share:
    """The workloads of one run, and the judges that take them. ``begin`` and ``note``: of the run (`TuningRun`)."""

    workloads: Sequence[Workload]
    judges: Sequence[Judge]
    work: Work
    begin: Callable[[], None]
    note: Callable[[str], None]


def share(run: Share) -> Iterator[WorkloadResult]:
    """Returns the results of the workloads as they come. All calls of ``begin`` and ``note`` are in this thread.

    A single judge works in this thread. Several judges work in threads of their own, also on one workload: another one
    takes it if the first fails.

    Raises what ``work`` raises, and the last judge's MachineError if all judges failed.
    """
    if len(run.judges) == 1:
        return map(partial(run.work, run.judges[0], run.begin), run.workloads)
    return (_raised(result) for _, result in share_each([run]))


def share_each(runs: Sequence[Share]) -> Iterator[tuple[int, WorkloadResult | MachineError]]:
    """Yields the results of several runs as they come, each with the index of its run.

    All judges work at the same time, in threads of their own. If all judges of a run failed, its last result is the
    MachineError of the last judge.
    """
    events: Queue[tuple[int, Event]] = Queue()
    sharings = [_Sharing(run, partial(_put, events, number)) for number, run in enumerate(runs)]
    wanted = [len(run.workloads) for run in runs]
    try:
        for sharing in sharings:
            sharing.start()
        while any(wanted):
            number, event = events.get()
            if isinstance(event, _Begun):
                runs[number].begin()
            elif isinstance(event, str):
                runs[number].note(event)
            elif isinstance(event, MachineError | WorkloadResult):
                wanted[number] = 0 if isinstance(event, MachineError) else wanted[number] - 1
                yield number, event
            else:
                raise event
    finally:
        for sharing in sharings:
            sharing.end()


def _put(events: Queue[tuple[int, Event]], number: int, event: Event) -> None:
    events.put((number, event))


def _raised(result: WorkloadResult | MachineError) -> WorkloadResult:
    if isinstance(result, MachineError):
        raise result
    return result


def seconds_of(judges: Sequence[Judge]) -> dict[str, float]:
    """Returns the wall time of each stage: that of the judge that took longest, because they work at the same time."""
    return {stage: max(judge.seconds[stage] for judge in judges) for stage in judges[0].seconds}


class _Begun:
    """Says that a workload is prepared."""


Event: TypeAlias = "_Begun | WorkloadResult | str | BaseException"


class _Sharing:
    def __init__(self, run: Share, put: Callable[[Event], None]) -> None:
        self.left, self.work, self.judges, self.put = deque(run.workloads), run.work, run.judges, put
        self.unfinished = len(run.workloads)
        self.alive = len(run.judges)
        self._changed = threading.Condition()
        self._over = False

    def start(self) -> None:
        for number, judge in enumerate(self.judges):
            threading.Thread(target=self._judge, args=(number, judge), name=f"gpu {number}", daemon=True).start()

    def end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _judge(self, number: int, judge: Judge) -> None:
        """Tunes workloads with one judge until none is left or the judge fails."""
        while (workload := self._next()) is not None:
            try:
                result = self.work(judge, lambda: self.put(_Begun()), workload)
            except MachineError as error:
                if not self._leave(number, workload, str(error)):
                    self.put(error)
                return
            except BaseException as error:  # raised again in the caller's thread
                self.put(error)
                return
            if (reason := unsteady(result)) is not None and self._leave(number, workload, reason):
                return
            self._finished(result)

    def _next(self) -> Workload | None:
        """Returns the next workload. While others work, waits, because one of them may fail and leave its workload."""
        with self._changed:
            self._changed.wait_for(lambda: self.left or not self.unfinished or self._over)
            return self.left.popleft() if self.left and not self._over else None

    def _leave(self, number: int, workload: Workload, reason: str) -> bool:
        """Leaves a judge out, and its workload to the others. Returns False if there are no others."""
        with self._changed:
            if self.alive == 1 or self._over:
                return False
            self.alive -= 1
            self.left.appendleft(workload)
            self._changed.notify_all()
        self.put(f"GPU {number} is left out, and another one takes workload {workload.name}: {reason}")
        return True

    def _finished(self, result: WorkloadResult) -> None:
        self.put(result)
        with self._changed:
            self.unfinished -= 1
            self._changed.notify_all()


def unsteady(result: WorkloadResult) -> str | None:
    """Returns why the times of a result are not worth much; None if they are."""
    race = result.race or {}
    rounds, disturbed = race.get("rounds"), race.get("disturbed")
    if not isinstance(rounds, int) or not isinstance(disturbed, int) or not disturbed:
        return None
    if disturbed <= UNSTEADY * (rounds + disturbed):
        return None
    why = race.get("disturbances")
    last = f": {why[-1]}" if isinstance(why, list | tuple) and why else ""
    return f"{disturbed} of {rounds + disturbed} rounds were disturbed{last}"
