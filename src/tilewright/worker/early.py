"""Starts the worker process before anything else is loaded, because importing torch takes it seconds."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence

from tilewright.hardware.gpu import detect, has_driver

WORKER = (sys.executable, "-m", "tilewright.worker.process.worker")


def spawned(command: Sequence[str] = WORKER) -> subprocess.Popen[str]:
    """The process, with pipes for messages and for what it complains of."""
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def early_worker() -> subprocess.Popen[str] | None:
    """A worker process for what may be measured here. None where there is no driver."""
    if not has_driver():
        return None
    threading.Thread(target=detect, daemon=True).start()  # the driver wakes up beside what follows
    return spawned()
