"""What `agent` and `actor` do alike on the machine where candidates run: they open sessions, and start commands."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from tilewright.worker.early import WORKER
from tilewright.worker.session import Session

MOST_AT_ONCE = 1 << 20
"""A longer line of a command is passed on in parts."""


def session_of(root: Path, where: str, texts: Mapping[str, str], scratch: Path, worker: Sequence[str]) -> Session:
    """Returns a session for the task ``where``, whose name and those of ``texts`` are relative to ``root``.

    texts: the text of each edited file. The copies are written into the folder ``scratch``.
    worker: the command of the worker process; () for the usual one.
    """
    copies = {}
    for number, (name, text) in enumerate(texts.items()):
        (copy := scratch / f"{number}.py").write_text(text)
        copies[str(root / name)] = str(copy)
    return Session(str(root / where), tuple(worker) or WORKER, copies)


class PrintingCommand:
    """A command that runs. ``printed`` is called, in other threads, with 1 or 2 and each line that it prints there.

    variables: further variables of its environment.
    own_session: whether the command leads a process group of its own.
    """

    def __init__(
        self, words: Sequence[str], folder: Path, variables: Mapping[str, str], printed: Callable[[int, str], object],
        own_session: bool = False,
    ) -> None:  # fmt: skip
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace", cwd=folder,
            env=os.environ | variables, start_new_session=own_session,
        )  # fmt: skip

        def read(to: int, stream: IO[str]) -> None:
            while line := stream.readline(MOST_AT_ONCE):
                printed(to, line)

        streams = enumerate((self.process.stdout, self.process.stderr), 1)
        self._readers = [threading.Thread(target=read, args=each, daemon=True) for each in streams]
        for reader in self._readers:
            reader.start()

    def wait(self) -> int:
        """Waits until it has ended, and its last line was printed. Returns the exit code."""
        code = self.process.wait()
        for reader in self._readers:
            reader.join()
        return code
