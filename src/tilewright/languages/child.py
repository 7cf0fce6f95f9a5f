"""Runs compilers as child processes with a time limit, and can end all of them."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

_running: set[subprocess.Popen[bytes]] = set()
_lock = threading.Lock()


def run(command: Sequence[str], env: Mapping[str, str], seconds: float) -> subprocess.CompletedProcess[str] | None:
    """Runs a compiler for at most ``seconds`` of wall time; None if it took longer and was killed."""
    # A process group of its own, because a compiler starts others (tileiras starts ptxas) that must be killed with it.
    process = subprocess.Popen(
        command, env=dict(env), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    with _lock:
        _running.add(process)
    try:
        _, stderr = process.communicate(timeout=seconds)
        return subprocess.CompletedProcess(command, process.returncode, stderr=stderr.decode(errors="replace"))
    except subprocess.TimeoutExpired:
        return None
    finally:
        _kill(process)
        with _lock:
            _running.discard(process)
        if process.stderr is not None:
            process.stderr.close()


def kill_all() -> None:
    """Ends every running compiler, for example after Ctrl-C."""
    with _lock:
        processes = list(_running)
    for process in processes:
        _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
