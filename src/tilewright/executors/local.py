"""The local executor: runs steps in a worker process on this machine."""

from __future__ import annotations

import subprocess

from tilewright.executors.base import Executor
from tilewright.worker.session import Session


class Local(Session, Executor):
    name = "local"


EXECUTOR = Local


def local(process: subprocess.Popen[str] | None) -> Local | None:
    """Returns an executor for a worker process that was started early. Returns None if ``process`` is None."""
    return None if process is None else Local(process=process)
