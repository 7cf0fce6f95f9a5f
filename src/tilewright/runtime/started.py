"""Starts programs with the startup hook, and finds the traces that `tracing` recorded in them.

`tilewright run` imports this module before it becomes the program, so it imports little.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from tilewright.errors import NoGpu, RequestError, StorageError

STARTUP = Path(__file__).parent / "startup"
"""The folder with the `sitecustomize` that every Python process of the program runs first."""

STEPS, SECONDS = (10, 15), 60.0
"""Defaults: which steps of a program are shown, and how many seconds a program without steps is recorded."""


def python_path(before: Mapping[str, str]) -> str:
    """Returns the PYTHONPATH for a program that runs with the startup hook. ``before``: its environment without the
    hook."""
    theirs = before.get("PYTHONPATH", "")
    if theirs.split(os.pathsep)[0] == str(STARTUP):
        return theirs
    return f"{STARTUP}{os.pathsep}{theirs}" if theirs else str(STARTUP)


def traced(before: Mapping[str, str], folder: Path, last: int, seconds: float, end: int = 0) -> dict[str, str]:
    """Returns the environment for a program that writes its traces into ``folder``. Raises NoGpu if there is no GPU.

    before: the program's environment without tracing.
    last: the step before which the recording ends.
    seconds: the most seconds to record.
    end: the step before which the program is ended; 0: it runs to its end.
    """
    from tilewright.hardware.gpu import detect
    from tilewright.runtime import tracing

    if detect() is None:
        raise NoGpu(
            "tracing a program needs a GPU, and there is none here; trace it where one is (torch.profiler, "
            "export_chrome_trace), and read the trace here: tilewright profile TRACE.json"
        )
    ours = {tracing.VARIABLE: str(folder), tracing.LAST_STEP: str(last), tracing.SECONDS: str(seconds)}
    if end:
        ours[tracing.END_STEP] = str(end)
    return {**before, "PYTHONPATH": python_path(before), **ours}


def trace_folder(out: Path | None = None) -> Path:
    """Makes and returns the folder for a program's traces. Default: a new folder beside the ledger.

    Raises RequestError if the folder contains traces already, and StorageError if it cannot be written.
    """
    from tilewright.ledger.file import home, make_private

    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S-%f")
    folder = (out or home() / "profiles" / stamp).resolve()
    try:
        make_private(folder) if out is None else folder.mkdir(parents=True, exist_ok=True)
        if any(folder.glob("*.json*")):
            raise RequestError(f"{folder} has traces already; choose another folder with --out")
    except OSError as error:
        raise StorageError(f"cannot write {folder}: {error.strerror}; choose another folder with --out") from error
    return folder


def recorded(folder: Path, code: int) -> tuple[list[Path], list[float]]:
    """Returns the traces that a program's processes wrote, and the times of its steps without the profiler, in µs.

    code: the exit code of the program. Raises RequestError if the program wrote no trace.
    """
    found = [path for path in sorted(folder.glob("*.json.gz")) if not path.name.startswith("part-")]
    if found:
        return found, _step_times(folder)
    if unfinished := next(folder.glob("part-*"), None):
        raise RequestError(
            f"the program ended before its trace was complete ({unfinished}); trace fewer steps: --steps"
        )
    ended = f"it ended with exit code {code}" if code else "no Python process of it used CUDA through torch"
    raise RequestError(f"the program left no trace: {ended}")


def _step_times(folder: Path) -> list[float]:
    """Returns the step times, in µs, of the first process that wrote some."""
    files = (json.loads(path.read_text()) for path in sorted(folder.glob("*.steps.json")))
    return next((times for times in files if times), [])
