"""The parent's side of the worker process: starts it, sends steps, waits for answers, and replaces it when it dies."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue
from typing import Any, TypeVar

from tilewright.errors import MachineError, NoGpu, TaskError
from tilewright.worker import messages as said
from tilewright.worker.early import WORKER, spawned
from tilewright.worker.messages import Advanced, Message, OpenTask, Step, encode, receive
from tilewright.worker.outcome import Outcome, Status

START_SECONDS = 120.0  # loading a task that imports torch takes 5 s on an idle machine
SILENCE_SECONDS = 30.0  # a kernel that runs longer counts as hung
STEP_SECONDS = 3600.0  # the longest that a step may take, also if it makes progress
EXIT_SECONDS = 10.0  # from a process's last message to its end; meanwhile the GPU's memory is freed
MOST_ANSWER = 64 << 20  # characters; the longest answers have the times of all candidates of a race
MOST_UNREAD = 10_000  # messages that nobody has asked for; then the process waits
MOST_STDERR = 1 << 16  # characters of one line that are kept
Answer = TypeVar("Answer")
Entered = TypeVar("Entered", bound="Session")


@dataclass(frozen=True)
class Garbled(Message):
    """A line from the worker that is not a message."""

    line: str


class Session:
    """Runs steps in a worker process. After a process is lost, the next step starts a new process.

    task: ``FILE`` or ``FILE:TASK``; without a task, the process waits for `open`.
    files: maps the absolute path of an editable file to the absolute path of the copy to load instead.
    process: a worker that was started before (`early.early_worker`).
    device: the index of the GPU among the visible ones; None: the first.
    """

    def __init__(
        self, task: str | None = None, command: Sequence[str] = WORKER, files: Mapping[str, str] | None = None,
        process: subprocess.Popen[str] | None = None, device: int | None = None,
    ) -> None:  # fmt: skip
        self.device = device
        self.task, self.files = task, dict(files or {})
        self.silence, self.limit = SILENCE_SECONDS, STEP_SECONDS
        self._words = tuple(command)
        self.losses = 0  # the number of lost worker processes; their prepared inputs are lost, too
        self._process: subprocess.Popen[str] | None = None
        self._messages: Queue[Message | None] = Queue()
        self._stderr: list[str] = []
        self._ready = False
        self._over = False
        self.start(process)

    def start(self, process: subprocess.Popen[str] | None = None) -> None:
        """Starts the process and returns at once. The process loads its modules while the parent compiles."""
        self._process = process or spawned(self._words, self.device)
        self._messages, self._ready, self._stderr = Queue(MOST_UNREAD), False, []
        threading.Thread(target=self._listen, args=(self._process, self._messages), daemon=True).start()
        self._errors = threading.Thread(target=self._keep_stderr, args=(self._process, self._stderr), daemon=True)
        self._errors.start()
        if self.task is not None:
            self.open(self.task, self.files)

    def open(self, task: str, files: Mapping[str, str] | None = None) -> None:
        """Sends the task to a session that was started without a task."""
        self.task, self.files = task, dict(files or {})
        self._write(OpenTask(task, tuple(self.files.items())))

    def run(
        self, step: Step[Answer], *, silence: float | None = None,
        on_progress: Callable[[Advanced], None] = lambda advanced: None,
    ) -> Outcome[Answer]:  # fmt: skip
        """Returns the outcome of a step: without an answer if the worker died, or sent nothing for ``silence`` seconds.

        Raises TaskError if the task is wrong, and NoGpu or MachineError if no worker can start.
        """
        self._ensure_started()
        silence, at = self.silence if silence is None else silence, None
        until = time.monotonic() + self.limit
        try:
            if not self._write(step):
                return self._lost("the worker process is gone")
            while True:
                left = until - time.monotonic()
                try:
                    message = self._messages.get(timeout=max(0.0, min(silence, left)))
                except Empty:
                    if left < silence:
                        return self._lost(f"not finished after {self.limit:g} s", at, "TIMEOUT")
                    return self._lost(f"no answer for {silence:g} s: a kernel hangs", at, "HANG_DETECTED")
                if isinstance(message, said.Running):
                    at = message.at
                elif isinstance(message, Advanced):
                    on_progress(message)
                elif isinstance(message, step.answer):
                    return Outcome("PASSED", message)
                else:
                    return self._failed(message, at)
        except BaseException as error:
            if not isinstance(error, Exception):  # after Ctrl-C, the next step must not receive the answer to this step
                self._lost("interrupted", status="CANCELLED")
            raise

    def _failed(self, message: Message | None, at: int | None) -> Outcome[Any]:
        """Returns the outcome for a message that ends a step without an answer.

        message: the process's last message; None if the process closed its channel.
        Raises TaskError if the task is wrong, MachineError if this machine lacks something.
        """
        if isinstance(message, said.Refused):
            raise (MachineError if message.machine else TaskError)(message.error)
        if message is None:
            return self._lost(self._last_words(), at)
        if not isinstance(message, said.Broken):
            return self._lost(f"the worker process said {message}", at)
        status: Status = "FAILED" if message.status == "PASSED" else message.status
        if message.dead:
            return self._lost(message.reason, at, status)
        return Outcome(status, reason=message.reason, at=at)

    def close(self, wait: bool = True) -> None:
        if self._process is not None:
            self._process.kill()
            reaper = threading.Thread(target=self._process.wait, daemon=True)
            reaper.start()
            if wait:
                reaper.join()
            if self._process.stdin is not None:
                with suppress(OSError):  # the buffer may hold a message that can no longer be sent
                    self._process.stdin.close()
            self._process = None

    def __enter__(self: Entered) -> Entered:
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self.close(wait=False)  # ending a CUDA context takes a while

    def _ensure_started(self) -> None:
        if self._over:
            raise MachineError("the session with the worker process has ended")
        if self._process is None:
            self.start()
        if self._ready:
            return
        try:
            message = self._messages.get(timeout=START_SECONDS)
        except Empty:
            self.close()
            raise MachineError(f"the worker process did not start within {START_SECONDS:g} s") from None
        self._ready = isinstance(message, said.Started)
        if self._ready:
            return
        words = f": {self._last_words()}" if message is None else f"; it said {message}"
        self.close()
        if message is None and "No module named 'torch'" in words:
            raise NoGpu("measuring this task needs torch; fix: pip install torch")
        if isinstance(message, said.Refused):
            raise TaskError(message.error)
        raise MachineError(f"the worker process did not start{words}")

    def _lost(self, reason: str, at: int | None = None, status: Status = "FAILED") -> Outcome[Any]:
        self.close()
        self.losses += 1
        return Outcome(status, reason=reason, at=at)

    def _last_words(self) -> str:
        process = self._process
        assert process is not None
        try:
            code = process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return "the worker process closed its channel"
        self._errors.join(EXIT_SECONDS)
        lines = [line.strip() for line in self._stderr if line.strip()]
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return f"{lines[-1] if lines else 'no message'} ({how})"

    def _write(self, message: Message) -> bool:
        try:
            assert self._process is not None and self._process.stdin is not None
            self._process.stdin.write(encode(message))
            self._process.stdin.flush()
            return True
        except (BrokenPipeError, OSError, ValueError):
            return False

    @staticmethod
    def _listen(process: subprocess.Popen[str], messages: Queue[Message | None]) -> None:
        assert process.stdout is not None
        with process.stdout:
            try:
                while (message := receive(process.stdout, MOST_ANSWER)) is not None:
                    _put(messages, message, process)
                _put(messages, None, process)
            except ValueError as error:
                _put(messages, Garbled(str(error)), process)

    @staticmethod
    def _keep_stderr(process: subprocess.Popen[str], lines: list[str]) -> None:
        assert process.stderr is not None
        with process.stderr:
            while line := process.stderr.readline(MOST_STDERR):
                lines.append(line)
                del lines[:-50]


def _put(messages: Queue[Message | None], message: Message | None, process: subprocess.Popen[str]) -> None:
    """Waits while there is no room, unless the process has ended and nobody takes anything any more."""
    while True:
        try:
            return messages.put(message, timeout=1.0)
        except Full:
            if process.poll() is not None:
                return
