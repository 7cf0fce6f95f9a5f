"""A run in an allocation of a SLURM cluster: the same resident process, in a job that the run keeps to its end.

The job outlives lost connections and killed clients, and ends with the run. One that a failed node or a preemption took
is replaced, and the run goes on with what was finished.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from tilewright.errors import MachineError
from tilewright.remote import files, login
from tilewright.remote.client import LINGER_SECONDS, QUIT_SECONDS, InUse, Remote
from tilewright.remote.connection import CACHE, PYTHON, Connection, ConnectionLost, RefusedThere
from tilewright.remote.job_spec import JobSpec
from tilewright.remote.messages import WorkOrder

REPLACED = {
    "NODE_FAIL": "its node failed",
    "PREEMPTED": "a job with a higher priority took its place",
    "BOOT_FAIL": "its node did not boot",
    "COMPLETED": "nobody was connected for too long",
    "COMPLETING": "it ends",
    "GONE": "it ended some time ago",
}
"""The states in which an allocation is replaced by another, and why."""
MOST_REPLACED = 5
"""So many allocations in a row may be lost in one step."""
STARTS = 3
"""So often a run tries to reach a new resident process."""


class Allocated(Remote):
    """One run in an allocation. ``spec``: what to ask for. Other arguments: as for `Remote`."""

    begins_again = True

    def __init__(
        self, spec: JobSpec, bundle: files.Bundle, *, command: Sequence[str] = (), worker: Sequence[str] = (),
        linger: float = LINGER_SECONDS, say: Callable[[str], None] = lambda text: None, order: WorkOrder | None = None,
        store: bytes = b"",
    ) -> None:  # fmt: skip
        super().__init__(
            spec.host or "this machine", bundle, command=command, worker=worker, mfa=spec.mfa_style, linger=linger,
            say=say, order=order, store=store,
        )  # fmt: skip
        self.spec, self.packages = spec, spec.packages
        self.job = ""
        """The number of the job; "" before there is one."""
        self._replaced, self._asked_for = 0, False
        self._asking: Connection | None = None

    def start(self) -> None:
        """Connects as `Remote.start` does. An allocation that it asked for ends if that fails."""
        try:
            for left in reversed(range(STARTS)):
                try:
                    return super().start()
                except ConnectionLost:
                    if not left:
                        raise
        except InUse:
            self.job = ""
            raise
        except BaseException:
            if self._asked_for:
                self._at_the_side("end")
            self.job = ""
            raise

    def connected(self) -> Connection:
        outside = None if self.spec.container_image else self.spec.python  # the login node has not what a container has
        given = {PYTHON: outside, CACHE: self.spec.remote_work_dir}
        environ = {**os.environ, **{name: value or "" for name, value in given.items()}}
        self._asking = Connection(self.host, self.mfa, environ, here=not self.spec.host)
        self._asking.python = self.spec.python or ""
        self._asking.settings = {PYTHON: "python in job_spec.json", CACHE: "remote_work_dir in job_spec.json"}
        return self._asking

    def meet(self, connection: Connection, hello: str) -> None:
        if self.job:
            self._check(self._told(connection, "state", run=self._request["run"], job=self.job))
        if not self.job:
            self.stage = "allocation"
            found = self._told(connection, "allocate", asked=self.spec.asked, linger=self.linger, **self._about())
            self.job, self._asked_for = str(found["job"]), bool(found["new"])
            self._worked(f"job {self.job} on {found['node']}", "resident process")
        try:
            self._told(connection, "attach", run=self._request["run"], job=self.job, hello=hello)
        except RefusedThere as error:  # the step of one that died may be in the way
            self._at_the_side("kill")
            raise ConnectionLost(str(error)) from None

    def kill(self, again: bool) -> None:
        self.say(f"nothing was heard from the resident process on {self.host}: it is ended and replaced")
        with self._sending:
            self._renewals = 0
            if not again:
                self._unanswered.clear()
                self._needed = self._needed[:1]
            connection = self._connection
        self._at_the_side("kill")
        if connection is not None:
            connection.process.kill()

    def answered(self, number: int) -> None:
        super().answered(number)
        self._replaced = 0

    def close(self) -> None:
        if self._ended.is_set():
            return
        lost = self._connection is None
        super().close()
        if self._asking is not None:  # it may be waiting in the queue
            self._asking.close(QUIT_SECONDS)
        if self.job and (lost or not self.ended_well):
            self._at_the_side("end")

    def _about(self) -> dict[str, Any]:
        names = ("run", "environment", "python", "work", "cwd")
        found = {name: self._request[name] for name in names}
        return {**found, "python": self.spec.python} if self.spec.container_image else found

    def _told(self, connection: Connection, what: str, **values: Any) -> dict[str, Any]:
        note = self.say if what == "allocate" else None
        return connection.request("slurm", (), note, code=self._request["code"], what=what, **values)

    def _at_the_side(self, what: str) -> None:
        """Does something through a connection of its own, as far as possible."""
        with suppress(MachineError):
            connection = self.connected()
            try:
                self._told(connection, what, job=self.job)
            finally:
                connection.close(1.0)

    def _check(self, found: dict[str, Any]) -> None:
        """Forgets an allocation that ended. Raises RefusedThere if it is not to be replaced."""
        state = str(found["state"])
        if state in ("RUNNING", "SUSPENDED"):
            return
        self._renewals = 0
        if state in login.LIVE:
            self.say(f"job {self.job} was put back into the queue ({found['reason']}); the run waits for it")
            self.job = ""  # `login.allocate` finds it by its name
            return
        self._replaced += 1
        if state not in REPLACED or self._replaced > MOST_REPLACED:
            raise RefusedThere(self._ending(state, found))
        self.say(f"the allocation (job {self.job}) is gone: {REPLACED[state]} ({state}); the run asks for another")
        self.job = ""

    def _ending(self, state: str, found: dict[str, Any]) -> str:
        again = "the same command goes on with what was finished"
        what, job = f"the run on {self.host} ended", f"job {self.job}"
        if state == "TIMEOUT":
            return f"{what}: the walltime {self.spec.walltime} of {job} is over; fix: a longer walltime; {again}"
        if state == "CANCELLED":
            return f"{what}: somebody cancelled {job}; fix: ask who if it was not you; {again}"
        if state == "OUT_OF_MEMORY":
            return f"{what}: {job} used more memory than it had; fix: cpus_per_task, which often brings memory; {again}"
        if state in REPLACED:
            why = f"the last one because {REPLACED[state]}"
            return f"{what}: {MOST_REPLACED} allocations in a row were lost, {why}; {again}"
        if str(found["code"]).startswith(f"{login.NOT_SHARED}:"):
            return (
                f"{what}: the compute node {found['node']} does not see the files that were brought; fix: set "
                "remote_work_dir in job_spec.json to a folder that login and compute nodes share"
            )
        return f"{what}: {job} is {state} ({found['reason']}, exit code {found['code']}): {found['log']}"
