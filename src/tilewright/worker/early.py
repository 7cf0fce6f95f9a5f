"""Starts the worker process before other modules are loaded, because the process needs seconds if it imports torch.

`begin` starts the process before the command line is loaded. `early_worker` returns the process to the command.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tilewright.hardware.cuda_driver import has_driver

WORKER = (sys.executable, "-m", "tilewright.worker.process.worker")
WITH_TORCH = "--torch"
"""The worker's option to import torch at once, before it has opened its task."""
COMMANDS = ("tune", "optimize")
"""The commands of the command line that call `early_worker`."""

_begun: list[subprocess.Popen[str]] = []


def spawned(command: Sequence[str] = WORKER, device: int | None = None) -> subprocess.Popen[str]:
    """Starts the process, with pipes for its messages and its errors.

    device: the index of the only GPU that the process sees, among the GPUs that this process sees; None: all.
    """
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=_seeing(device))


def _seeing(device: int | None) -> dict[str, str] | None:
    if device is None:
        return None
    visible = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    return os.environ | {"CUDA_VISIBLE_DEVICES": visible[device] if visible else str(device)}


def begin(words: Sequence[str]) -> None:
    """Starts a worker process if the command line with these words may need it and the machine has a driver."""
    elsewhere = any(word == "--on" or word.startswith("--on=") for word in words)
    if words[:1] and words[0] in COMMANDS and not {"-h", "--help"} & set(words) and not elsewhere and has_driver():
        _begun.append(spawned((*WORKER, WITH_TORCH) if _needs_torch(words) else WORKER))
        atexit.register(end)
        threading.Thread(target=_detect, daemon=True).start()


def _needs_torch(words: Sequence[str]) -> bool:
    """Returns whether a file among the words seems to be a task with a trusted implementation."""
    for word in words:
        with suppress(OSError, UnicodeDecodeError):
            if ".py" in word and "trusted" in Path(word.partition(".py")[0] + ".py").read_text(encoding="utf-8"):
                return True
    return False


def early_worker() -> subprocess.Popen[str] | None:
    """Returns the worker process that `begin` started, or starts one. Returns None if the machine has no driver."""
    if not has_driver():
        return None
    return _begun.pop() if _begun else spawned()


def _detect() -> None:
    """Starts the driver, and asks NVML for its version, while other modules are loaded."""
    from tilewright.hardware.gpu import detect
    from tilewright.hardware.machine import driver_version

    if detect() is not None:
        driver_version()


def end() -> None:
    """Ends a worker process that no command has used, for example after a mistake in the options."""
    while _begun:
        _begun.pop().kill()
