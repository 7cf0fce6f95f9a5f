"""Blocks that wait for one another: each in a thread of its own, one running at a time.

If all blocks ran in step, a block that waits for a lock or a flag of another block would wait for ever. So a block
gives up its turn after each pass of a ``loop`` that reads memory in another order than *weak*. When all remaining
blocks have had several turns and memory has not changed, it is a deadlock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tilewright.tileir.read.tree import KernelEntry, Op
from tilewright.tileir.run.slicing import LOADS

TURNS = 4
"""Rounds without a change in memory after which it is a deadlock."""
AT_MOST = 4096
"""Blocks that may wait for one another in one run."""


def may_wait(entry: KernelEntry) -> bool:
    """Whether a block may spin until another has written."""
    return any(
        inner.name in LOADS and inner.attributes.get("memory_ordering_semantics") != "weak"
        for op in entry.walk()
        if op.name == "loop"
        for inner in op.walk()
    )


class Deadlock(Exception):
    """No block that is left can go on; ``op`` is the loop in which one of them waits."""

    def __init__(self, why: str, op: Op | None = None) -> None:
        super().__init__(why)
        self.op = op


class Turns:
    """Lets functions run in turns; `wait` is called by the one whose turn it is."""

    def __init__(self, version: Callable[[], int]) -> None:
        """``version`` changes whenever memory does."""
        self._version = version
        self._condition = threading.Condition()
        self._turn = 0
        self._alive: list[int] = []
        self._names = threading.local()
        self._idle, self._seen = 0, -1
        self._failure: BaseException | None = None

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Runs all to their end. Raises what one of them raised, or `Deadlock`."""
        self._alive = list(range(len(jobs)))
        self._turn = 0
        threads = [threading.Thread(target=self._job, args=(n, job), daemon=True) for n, job in enumerate(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def wait(self, op: Op) -> None:
        """Hands on the turn after a pass of the loop ``op``, and returns when it has come round."""
        with self._condition:
            version = self._version()
            self._idle = self._idle + 1 if version == self._seen else 0
            self._seen = version
            if self._idle > TURNS * len(self._alive):
                raise Deadlock(f"{len(self._alive)} blocks wait for one another, and memory no longer changes", op)
            self._pass_on()
            self._until_mine()

    def _job(self, number: int, job: Callable[[], None]) -> None:
        self._names.number = number
        try:
            with self._condition:
                self._until_mine()
            job()
        except BaseException as error:  # handed to the thread that waits for all
            with self._condition:
                self._failure = self._failure or error
        finally:
            with self._condition:
                self._idle = 0
                self._pass_on()
                self._alive.remove(number)
                self._condition.notify_all()

    def _until_mine(self) -> None:
        self._condition.wait_for(lambda: self._turn == self._names.number or self._failure is not None)
        if self._failure is not None:
            raise Deadlock("another block failed")

    def _pass_on(self) -> None:
        if self._turn == self._names.number:
            later = [one for one in self._alive if one > self._turn]
            others = later or [one for one in self._alive if one != self._turn]
            self._turn = others[0] if others else self._turn
            self._condition.notify_all()
