"""Jobs: long work in processes of their own, which go on when the client or the server ends.

The folder of a job is ``jobs/NAME`` beside the ledger. Every server with the same folder sees the same jobs.

    request.json    the command and its arguments
    running         the file that the process locks while it lives. It is also the standard input of the process
    pid             the number of the process and of its process group
    progress.json   the latest progress
    outcome.json    how the job ended, with the typed reply
    result.json     the whole result
    log             what the process printed

Files are replaced as a whole, so a reader never sees half of one. A job without a lock and without an outcome was
killed from outside: it is ``lost``.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from tilewright.errors import RequestError, StorageError, UnknownChoice
from tilewright.ledger.codec import from_json
from tilewright.ledger.file import home, make_private, utc_now
from tilewright.mcp.replies import REPLIES, Job, JobReply, JobState, Verb

LATEST = "latest"
"""The name that means the newest job."""
SHOWN = 8
TERM_SECONDS, KILL_SECONDS = 10.0, 5.0
"""How long a cancelled job may take to end, and how long a killed one."""
LOOK_SECONDS = 0.1
"""The time between two looks at a job."""

_NEXT: Mapping[JobState, str] = {
    "running": "job_wait waits for it; job_cancel ends it",
    "done": "file has the whole result",
    "failed": "correct the cause, then start it again",
    "cancelled": "job_start starts it again; finished work is not repeated",
    "lost": "its process was killed; job_start starts it again, finished work is not repeated",
}


class Jobs:
    """The jobs in a folder; by default the folder ``jobs`` beside the ledger."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = (folder or home() / "jobs").absolute()

    def names(self) -> list[str]:
        """Returns the names of all jobs, the newest first."""
        found = (path.parent.name for path in self._folder.glob("*/request.json") if path.parent.name[0] != ".")
        return sorted(found, key=lambda name: name.partition("-")[2], reverse=True)

    def start(self, verb: Verb, arguments: Mapping[str, Any]) -> str:
        """Starts a job in the current folder, and returns its name.

        verb, arguments: a function of `work.VERBS`, and its keyword arguments.
        Raises StorageError if the folder of the jobs cannot be written.
        """
        name = f"{verb}-{utc_now():%Y%m%d-%H%M%S-%f}-{secrets.token_hex(2)}"
        try:
            make_private(self._folder.parent)
            hidden = self._folder / f".{name}"  # seen by others only when it is complete and locked
            hidden.mkdir(parents=True)
            write(hidden / "request.json", {"verb": verb, "arguments": dict(arguments), "started": time.time()})
            with (hidden / "running").open("w+b") as lock, (hidden / "log").open("wb") as log:
                fcntl.flock(lock, fcntl.LOCK_EX)  # the child shares this lock, and holds it until it ends
                folder = hidden.rename(self._folder / name)
                process = subprocess.Popen(
                    [sys.executable, "-m", "tilewright", "mcp", "--job", str(folder)],
                    stdin=lock, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
                write(folder / "pid", process.pid)
        except OSError as error:
            why = f"cannot write {error.filename or self._folder}: {error.strerror}"
            raise StorageError(f"{why}; set TILEWRIGHT_HOME to a directory that you can write") from error
        threading.Thread(target=process.wait, daemon=True).start()  # so that no zombie is left
        return name

    def again(self, name: str) -> str:
        """Starts an ended job again, and returns the name of the new job. Raises RequestError if it still runs."""
        folder = self._named(name)
        if self.job(folder.name).state == "running":
            raise RequestError(f"{folder.name} still runs; job_wait waits for it, job_cancel ends it")
        request = read(folder / "request.json")
        return self.start(request["verb"], request["arguments"])

    def job(self, name: str = LATEST) -> Job:
        """Returns the state of a job. Raises UnknownChoice if there is no such job."""
        folder = self._named(name)
        running = _locked(folder)  # before the outcome is read: the job writes it while it holds the lock
        request, outcome, shown = (read(folder / f"{part}.json") for part in ("request", "outcome", "progress"))
        state: JobState = outcome.get("state", "running" if running else "lost")
        error, result = outcome.get("error"), None
        if state == "done":
            result, error = _reply(request["verb"], outcome["reply"], folder)
        whole = folder / "result.json"
        return Job(
            job=folder.name, verb=request["verb"], arguments=request["arguments"], state=state,
            seconds=round(outcome.get("ended", time.time()) - request["started"], 1),
            progress="" if outcome else shown.get("text", "starting"), best=shown.get("best", ""), error=error,
            result=result, file=str(whole) if whole.exists() else None, log=str(folder / "log"), next=_NEXT[state],
        )  # fmt: skip

    def cancel(self, name: str) -> Job:
        """Ends a job and its children, and returns its state. An ended job is left as it is."""
        folder = self._named(name)
        if _locked(folder):
            if not _signalled(folder, signal.SIGTERM, TERM_SECONDS):
                _signalled(folder, signal.SIGKILL, KILL_SECONDS)
            if not (folder / "outcome.json").exists():  # killed, or ended before it could write
                write(folder / "outcome.json", {"state": "cancelled", "ended": time.time()})
        return self.job(folder.name)

    def _named(self, name: str) -> Path:
        known = self.names()
        if not known:
            raise RequestError(f"no job was started in {self._folder}; check, tune, optimize and profile start one")
        if name == LATEST:
            name = known[0]
        if name not in known:
            raise UnknownChoice("job", name, known[:SHOWN])
        return self._folder / name


def write(file: Path, data: object) -> None:
    """Replaces a file by ``data`` as JSON."""
    new = file.with_name(f".{file.name}.{os.getpid()}")
    new.write_text(json.dumps(data), encoding="utf-8")
    new.replace(file)


@contextmanager
def turn(folder: Path, waiting: Callable[[], object]) -> Iterator[None]:
    """Waits until no other job of the same folder is in such a block: jobs that measure would disturb each other.

    waiting: called if there is another one.
    """
    with (folder.parent / ".turn").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read(file: Path) -> dict[str, Any]:
    """Reads a file of JSON; returns {} if there is none."""
    with suppress(FileNotFoundError):
        return cast("dict[str, Any]", json.loads(file.read_text(encoding="utf-8")))
    return {}


def _locked(folder: Path) -> bool:
    """Returns whether the process of a job lives."""
    with (folder / "running").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def _signalled(folder: Path, number: int, seconds: float) -> bool:
    """Sends a signal to a job, and returns whether it ends within ``seconds``. SIGKILL goes to its process group."""
    send = os.killpg if number == signal.SIGKILL else os.kill
    with suppress(ProcessLookupError, FileNotFoundError):
        send(int((folder / "pid").read_text()), number)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not _locked(folder):
            return True
        time.sleep(LOOK_SECONDS)
    return False


def _reply(verb: Verb, data: Any, folder: Path) -> tuple[JobReply | None, str | None]:
    """Returns the typed reply of a job. If another version of Tilewright wrote an unknown one, returns why."""
    try:
        return from_json(REPLIES[verb], data, defaults=True), None
    except (ValueError, KeyError) as error:
        return None, f"another version of Tilewright wrote this result ({error}); read {folder / 'result.json'}"
