"""The slurm executor: runs steps in a resident process in one allocation of a SLURM cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tilewright.errors import RequestError
from tilewright.executors.ssh import Ssh
from tilewright.remote import files, job_spec, on_words
from tilewright.remote.allocation import Allocated
from tilewright.remote.client import LINGER_SECONDS, Remote
from tilewright.remote.messages import WorkOrder
from tilewright.worker.session import START_SECONDS

FROZEN_SECONDS = START_SECONDS + 60.0
"""The resident process replaces a worker that hangs. If it says nothing for so much longer, it hangs itself."""


class Slurm(Ssh):
    """Runs steps on a cluster. One allocation serves the whole run, and ends with it.

    spec: what to ask for.
    frozen: how many seconds after a step's ``silence`` the resident process counts as hung, too.
    Other arguments: as for `Ssh`.
    """

    name = "slurm"
    choice: ClassVar[str] = "slurm[:PARTITION]"

    def __init__(
        self, spec: job_spec.JobSpec, worker: Sequence[str] = (), linger: float = LINGER_SECONDS,
        frozen: float = FROZEN_SECONDS,
    ) -> None:  # fmt: skip
        super().__init__(spec.host or "this machine", worker, linger, spec.mfa_style)
        self.spec, self.frozen = spec, frozen

    @classmethod
    def at(cls, where: str) -> Slurm:
        if any(word.partition(":")[0] == cls.name for word in on_words()):
            raise RequestError(
                "this command runs in the allocation of a run, which gets no second one; fix: leave --on out, and the "
                "command shares the allocation"
            )
        return cls(job_spec.read(where))

    def run_of(
        self, bundle: files.Bundle, command: Sequence[str] = (), order: WorkOrder | None = None, store: bytes = b""
    ) -> Remote:
        worker = () if command else self.worker
        return Allocated(
            self.spec, bundle, command=command, worker=worker, linger=self.linger, say=self.say, order=order,
            store=store,
        )  # fmt: skip


EXECUTOR = Slurm
