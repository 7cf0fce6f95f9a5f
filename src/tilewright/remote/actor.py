"""The actor that `executors.ray` starts on each GPU of a Ray cluster: it runs steps in a `Session`, or one command."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TypeVar

from tilewright.hardware.gpu import Monitor, detect
from tilewright.hardware.machine import OtherMachine, driver_version, host
from tilewright.tools import child
from tilewright.worker.early import WORKER
from tilewright.worker.messages import Advanced, Step
from tilewright.worker.outcome import Answer, Outcome
from tilewright.worker.session import Session

Item = TypeVar("Item")


class GpuActor:
    """The actor. It has one GPU, and runs steps in a `Session`. Its working directory has the files of the task.

    worker: the command of the worker process; () for the usual one.
    """

    def __init__(self, worker: Sequence[str]) -> None:
        self._worker = tuple(worker) or WORKER
        self._stack, self._session = ExitStack(), None  # type: ExitStack, Session | None
        self._advanced = deque[Advanced]()
        self._printed = deque[tuple[int, str]]()

    def place(self) -> tuple[OtherMachine, str | None]:
        """Returns this machine, and why its GPU is not free; None if it is."""
        gpu = detect()
        here = OtherMachine(socket.gethostname(), gpu, driver_version() if gpu else None, host())
        return here, Monitor().busy() if gpu else None

    def open(self, where: str, files: Mapping[str, str]) -> None:
        """``where`` and the names of ``files``: relative to the working directory. ``files``: the text of each."""
        self.close()
        copies = {}
        if files:
            folder = self._stack.enter_context(child.workplace())
            for number, (name, text) in enumerate(files.items()):
                (copy := folder / f"{number}.py").write_text(text)
                copies[str(Path.cwd() / name)] = str(copy)
        self._session = Session(str(Path.cwd() / where), self._worker, copies)
        self._stack.callback(self._session.close)

    def run(self, step: Step[Answer], silence: float | None) -> Outcome[Answer]:
        session = self._session
        assert session is not None, "a task is opened before a step runs"
        return Outcome.guarded(lambda: session.run(step, silence=silence, on_progress=self._advanced.append))

    def advanced(self) -> list[Advanced]:
        """Returns the progress since the last call."""
        return _taken(self._advanced)

    def start(self, words: Sequence[str], folder: str, columns: int) -> None:
        """Starts a Tilewright command in a folder below the working directory. It ends with this process."""
        pipe, environment = subprocess.PIPE, os.environ | {"COLUMNS": str(columns)}
        self._command = subprocess.Popen(
            [sys.executable, "-m", "tilewright", *words], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True,
            cwd=folder, env=environment, start_new_session=True,
        )  # fmt: skip
        self._stack.enter_context(child.running(self._command.pid))
        streams = enumerate((self._command.stdout, self._command.stderr), 1)
        self._readers = [threading.Thread(target=self._read, args=each, daemon=True) for each in streams]
        for reader in self._readers:
            reader.start()

    def _read(self, to: int, stream: IO[str]) -> None:
        for line in stream:
            self._printed.append((to, line))

    def printed(self) -> tuple[list[tuple[int, str]], int | None]:
        """Returns what the command printed since the last call, to 1 or 2, and its exit code; None while it runs."""
        code = self._command.poll()
        if code is not None:
            for reader in self._readers:
                reader.join()
        return _taken(self._printed), code

    def close(self) -> None:
        self._stack.close()


def _taken(items: deque[Item]) -> list[Item]:
    """Takes what is there now. Another thread may add more."""
    return [items.popleft() for _ in range(len(items))]
