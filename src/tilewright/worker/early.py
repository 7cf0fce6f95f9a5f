"""Starts the worker process before other modules are loaded, because the process needs seconds to import torch."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence

from tilewright.hardware.gpu import detect, has_driver

WORKER = (sys.executable, "-m", "tilewright.worker.process.worker")


def spawned(command: Sequence[str] = WORKER) -> subprocess.Popen[str]:
    """Starts the process, with pipes for its messages and its errors."""
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def early_worker() -> subprocess.Popen[str] | None:
    """Starts a worker process; None if the machine has no driver."""
    if not has_driver():
        return None
    threading.Thread(target=detect, daemon=True).start()  # the driver starts up meanwhile
    return spawned()
