"""Starts a program or a copy of it, and ends it after a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryFile

from tilewright.errors import RequestError
from tilewright.program.copies import Startable
from tilewright.tools.child import running

LONGER = 10.0
"""Seconds for which a program continues after its recording has begun. Most kinds of calls and launches occur early."""
PAUSE = 0.25


@dataclass(frozen=True)
class ProgramEnd:
    """The end of a program. ``code``: the exit code; None if the time limit was reached. ``last_line``: the last line
    of its standard error.
    """

    code: int | None
    last_line: str

    def __str__(self) -> str:
        if self.code is None:
            return "the program was ended after its time"
        return f"the program ended with exit code {self.code}{f' ({self.last_line})' if self.last_line else ''}"


def started(
    program: Startable,
    changes: Mapping[str, str],
    seconds: float,
    has_begun: Callable[[], bool],
    longer: float = LONGER,
) -> ProgramEnd:
    """Runs a program for at most ``seconds``, and for at most ``longer`` seconds after its recording has begun.

    changes: changed environment variables.
    has_begun: returns whether something was recorded.
    Raises RequestError if the program cannot be started.
    """
    environment = {**program.environment(), **changes}
    with TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                program.words, cwd=program.cwd, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=errors, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise RequestError(f"cannot start {program}: {error.strerror}") from error
        code: int | None = None
        with running(process.pid):
            try:
                code = _waited(process, seconds, has_begun, longer)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        errors.seek(0)
        lines = errors.read()[-4096:].decode("utf-8", "replace").strip().splitlines()
    return ProgramEnd(code, lines[-1].strip() if lines else "")


def _waited(
    process: subprocess.Popen[bytes], seconds: float, has_begun: Callable[[], bool], longer: float
) -> int | None:
    """Waits for the process. Returns None if the time limit was reached."""
    until, begun = time.monotonic() + seconds, False
    while time.monotonic() < until:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(PAUSE)
        if not begun and has_begun():
            begun, until = True, min(until, time.monotonic() + longer)
    return None
