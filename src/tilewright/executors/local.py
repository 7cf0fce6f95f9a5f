"""This machine: steps run in a worker process beside this one, which may die of them."""

from __future__ import annotations

import subprocess

from tilewright.executors.base import Executor
from tilewright.worker.session import Session


class Local(Session, Executor):
    name = "local"


EXECUTOR = Local


def local(process: subprocess.Popen[str] | None) -> Local | None:
    """The executor of a worker process that was started early; None where none was."""
    return None if process is None else Local(process=process)
