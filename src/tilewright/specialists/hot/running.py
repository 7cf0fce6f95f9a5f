"""Starts a program, or a copy of it, and ends it after a time."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryFile

from tilewright.errors import RequestError
from tilewright.program.copies import Startable
from tilewright.tools.child import running


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended. ``code``: None if its time was up. ``last_line``: of its standard error."""

    code: int | None
    last_line: str

    def __str__(self) -> str:
        if self.code is None:
            return "the program was ended after its time"
        return f"the program ended with exit code {self.code}{f' ({self.last_line})' if self.last_line else ''}"


def started(program: Startable, changes: Mapping[str, str], seconds: float) -> ProgramEnd:
    """Runs a program for at most ``seconds``. ``changes``: variables of its environment.

    Raises RequestError if it cannot be started.
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
        with running(process.pid), suppress(subprocess.TimeoutExpired):
            try:
                code = process.wait(seconds)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        errors.seek(0)
        lines = errors.read()[-4096:].decode("utf-8", "replace").strip().splitlines()
    return ProgramEnd(code, lines[-1].strip() if lines else "")
