"""Loads the versions of a proposal at the same time, and records each loading.

A version's code may kill the whole process, for example if the machine runs out of memory. A version that was being
loaded alone is the culprit, and a resumed run does not load it. If several were being loaded, each of them is suspect:
a resumed run loads the suspects alone, one after the other (`Ledger.loading`, `Ledger.suspects`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

from tilewright.errors import MachineError, TaskError
from tilewright.task.task import Task
from tilewright.tools.child import ToolPool

POLL_SECONDS = 0.1
"""How often the waiting thread runs an instruction of Python. Only then can another thread's exception arrive."""

Outcome = Task | Exception


class RecordLoading(Protocol):
    def __call__(self, version: str, together: bool) -> AbstractContextManager[None]:
        """Makes the ``with`` block in which a version with this digest is loaded, perhaps together with others."""


def unrecorded(version: str, together: bool) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class Load:
    """A version to load. ``run`` loads it; it is called in another thread."""

    digest: str
    run: Callable[[], Task]


@dataclass(frozen=True)
class Loader:
    """Loads versions in threads, and records the loadings in the calling thread.

    threads: the most versions that are loaded at the same time.
    interrupt: makes the loadings that are running fail at once.
    suspects: the digests of the versions that are loaded alone.
    """

    threads: int
    interrupt: Callable[[], object]
    record: RecordLoading = unrecorded
    suspects: Collection[str] = ()

    def outcomes(self, loads: Sequence[Load]) -> list[Outcome]:
        """Returns the task of each version, or the error of its loading. Raises MachineError."""
        alone: dict[int, Load] = {}
        together: dict[int, Load] = {}
        seen = {*self.suspects}
        for place, load in enumerate(loads):
            (alone if load.digest in seen else together)[place] = load
            seen.add(load.digest)
        found = self._loaded(together, self.threads) | self._loaded(alone, 1)
        return [found[place] for place in range(len(loads))]

    def _loaded(self, loads: Mapping[int, Load], threads: int) -> dict[int, Outcome]:
        waiting, together = deque(loads), min(threads, len(loads)) > 1
        found: dict[int, Outcome] = {}
        running: dict[Future[Task], tuple[int, ExitStack]] = {}
        finished = SimpleQueue[Future[Task]]()
        with ExitStack() as records, ToolPool(threads, "loading", self.interrupt) as pool:
            while waiting or running:
                while waiting and len(running) < threads:
                    place, record = waiting.popleft(), records.enter_context(ExitStack())
                    try:
                        record.enter_context(self.record(loads[place].digest, together))
                    except TaskError as error:
                        found[place] = error
                        continue
                    future = pool.submit(loads[place].run)
                    running[future] = place, record
                    future.add_done_callback(finished.put)
                with suppress(Empty):
                    future = finished.get(timeout=POLL_SECONDS)
                    place, record = running.pop(future)
                    record.close()
                    found[place] = _outcome(future)
        return found


def _outcome(future: Future[Task]) -> Outcome:
    try:
        return future.result()
    except MachineError:
        raise
    except Exception as error:
        return error
