"""Runs jobs in forks of one long-lived process, for a compiler that is a Python package and slow to import.

The process (`resident_server`) imports the package once. Each job runs in its own fork and its own folder. A crash, a
hang or a memory leak therefore ends with its job, and a killed job does not stop other jobs. Budgets are in processor
time, as in `child`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tilewright.errors import CompilerMissing, ToolFailed
from tilewright.tools import resident_server
from tilewright.tools.child import PATIENCE, Finished, finished, not_started, running

START_SECONDS = 120.0
"""Limit of wall time for the process to import its package. triton needs 0.6 s on an idle machine."""


class Resident:
    """A child process that does jobs until this process ends.

    module: a file with two functions. ``prepare()`` imports the modules that every job needs. ``work(folder)`` does one
        job.
    path: folders to import from, before the interpreter's own.
    name: the name of the process in messages.
    fix: advice for the user if the process does not start, for messages.
    """

    def __init__(self, module: Path, path: tuple[Path, ...], name: str, fix: str) -> None:
        self.module, self.path, self.name, self.fix = module, path, name, fix
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        os.register_at_fork(after_in_child=self._forget)

    def begin(self) -> None:
        """Starts the process, which then imports its package. If it does not start, `run` tries again."""
        with self._lock, suppress(CompilerMissing):
            if self._control is None:
                self._start()

    def run(self, folder: Path, seconds: float, patience: float = PATIENCE) -> Finished:
        """Does one job in ``folder``, for at most ``seconds`` of processor time and ``patience`` times as much wall
        time.

        Raises CompilerMissing if the process does not start, ToolFailed if the job does not end in time.
        """
        ours, theirs = socket.socketpair()
        with ours, ours.makefile("r") as answers:
            with theirs:
                self._ask({"folder": str(folder), "seconds": seconds}, theirs)
            ours.settimeout(START_SECONDS)
            group = int(self._answer(answers.readline, "started")["group"])
            with running(group):
                ours.settimeout(seconds * patience)
                try:
                    ended = self._answer(answers.readline, "ended its job")
                except TimeoutError:
                    late = f"{seconds * patience:g} s of wall time"
                    raise ToolFailed(f"{self.name} did not end in {late}") from None
        return finished(self.name, folder, int(ended["status"]), float(ended["used"]), seconds)

    def _answer(self, line: Callable[[], str], what: str) -> dict[str, float]:
        text = line()
        if not text:
            raise ToolFailed(f"{self.name}: its process ended before it had {what}; fix: {self.fix}")
        answer: dict[str, float] = json.loads(text)
        if "failed" in answer:
            raise CompilerMissing(f"{self.name} does not start: {answer['failed']}; fix: {self.fix}")
        return answer

    def _ask(self, order: dict[str, object], answers: socket.socket) -> None:
        line = json.dumps(order).encode()
        with self._lock:
            for _ in range(2):  # if the process was killed, the second turn starts it again
                if self._control is None:
                    self._start()
                assert self._control is not None
                try:
                    socket.send_fds(self._control, [line], [answers.fileno()])
                    return
                except OSError:
                    self._control.close()
                    self._control = None
        raise ToolFailed(f"{self.name}: its process does not stay alive; fix: {self.fix}")

    def _start(self) -> None:
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = json.dumps({"module": str(self.module), "path": [str(folder) for folder in self.path]})
        command = [sys.executable, "-I", resident_server.__file__, str(theirs.fileno()), settings]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise CompilerMissing(not_started(sys.executable, error, self.fix)) from None
        finally:
            theirs.close()
        self._control = ours

    def _forget(self) -> None:
        """Clears the child process in a forked copy of this process, so that the copy starts its own."""
        self._lock = threading.Lock()
        if self._control is not None:
            self._control.close()
        self._control = self._process = None
