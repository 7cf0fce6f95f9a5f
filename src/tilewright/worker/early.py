"""Starts the worker process before other modules are loaded, because the process needs seconds to import torch.

`begin` starts the process before the command line is loaded. `early_worker` gives it to the command.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
import threading
from collections.abc import Sequence

from tilewright.hardware.cuda_driver import has_driver

WORKER = (sys.executable, "-m", "tilewright.worker.process.worker")
COMMANDS = ("tune", "optimize")
"""The commands of the command line that call `early_worker`."""

_begun: list[subprocess.Popen[str]] = []


def spawned(command: Sequence[str] = WORKER) -> subprocess.Popen[str]:
    """Starts the process, with pipes for its messages and its errors."""
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def begin(words: Sequence[str]) -> None:
    """Starts a worker process if the command line with these words may need it and the machine has a driver."""
    if words[:1] and words[0] in COMMANDS and not {"-h", "--help"} & set(words) and has_driver():
        _begun.append(spawned())
        atexit.register(end)
        threading.Thread(target=_detect, daemon=True).start()


def early_worker() -> subprocess.Popen[str] | None:
    """Returns the worker process that `begin` started, or starts one. Returns None if the machine has no driver."""
    if not has_driver():
        return None
    return _begun.pop() if _begun else spawned()


def _detect() -> None:
    """Starts the driver while other modules are loaded."""
    from tilewright.hardware.gpu import detect

    detect()


def end() -> None:
    """Ends a worker process that no command has used, for example after a mistake in the options."""
    while _begun:
        _begun.pop().kill()
