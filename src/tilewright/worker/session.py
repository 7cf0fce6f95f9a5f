"""The parent's side of the worker process: start it early, ask, wait with a limit, survive its death."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Queue

from tilewright.errors import MachineError, NoGpu, TaskError
from tilewright.hardware.gpu import detect, has_driver
from tilewright.worker.messages import Message, receive, send

START_SECONDS = 120.0
"""Importing torch and making a CUDA context takes 5 s on an idle machine."""
SILENCE_SECONDS = 30.0
"""A kernel that has not ended in this time counts as hung."""
EXIT_SECONDS = 10.0
"""Between the end of what a process says and the end of the process: it gives back the GPU's memory."""
WORKER = (sys.executable, "-m", "tilewright.worker.process.worker")


@dataclass(frozen=True)
class Lost:
    """A request that the worker did not survive: it hung, crashed, or broke its CUDA context."""

    reason: str
    at: int | None = None
    """The candidate that was running, where the worker announced it."""


class Session:
    """One worker process at a time; the next request after a loss starts another.

    ``task`` and ``files``: as `loading.load_task` takes them. Without a task the process starts all the same,
    since importing torch takes seconds, and `open` names the task when it is known.
    """

    def __init__(
        self, task: str | None = None, command: Sequence[str] = WORKER, files: Mapping[str, str] | None = None
    ) -> None:
        self.task, self.files = task, dict(files or {})
        self.silence = SILENCE_SECONDS
        self.command = tuple(command)
        self.losses = 0
        """How many worker processes were lost; what they had prepared is gone with them."""
        self._process: subprocess.Popen[str] | None = None
        self._messages: Queue[Message | None] = Queue()
        self._stderr: list[str] = []
        self._ready = False
        self._over = False
        self.start()

    def start(self) -> None:
        """Starts the process and returns at once; it imports torch while the parent compiles."""
        self._process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._messages, self._ready, self._stderr = Queue(), False, []
        threading.Thread(target=self._listen, args=(self._process, self._messages), daemon=True).start()
        self._errors = threading.Thread(target=self._keep_stderr, args=(self._process, self._stderr), daemon=True)
        self._errors.start()
        if self.task is not None:
            self._write({"task": self.task, "files": self.files})

    def open(self, task: str, files: Mapping[str, str] | None = None) -> None:
        """Names the task of a session that was started without one."""
        self.task, self.files = task, dict(files or {})
        self._write({"task": task, "files": self.files})

    def ask(
        self,
        request: Message,
        *,
        silence: float | None = None,
        on_progress: Callable[[Message], None] = lambda message: None,
    ) -> Message | Lost:
        """The answer to a request; `Lost` when the worker died or said nothing for ``silence`` seconds
        (default: the session's own).

        Raises TaskError for what is wrong with the task, NoGpu when no worker can start.
        """
        self._ensure_started()
        silence = self.silence if silence is None else silence
        try:
            if not self._write(request):
                return self._lost("the worker process is gone")
            return self._answer(silence, on_progress)
        except BaseException as error:
            # Ctrl-C or a time limit: the next request must not get this one's answer.
            if not isinstance(error, Exception):
                self._lost("interrupted")
            raise

    def _answer(self, silence: float, on_progress: Callable[[Message], None]) -> Message | Lost:
        at: int | None = None
        while True:
            try:
                message = self._messages.get(timeout=silence)
            except Empty:
                return self._lost(f"no answer for {silence:g} s: a kernel hangs", at)
            if message is None:
                return self._lost(self._last_words(), at)
            if "at" in message:
                at = message["at"]
            elif "progress" in message:
                on_progress(message["progress"])
            elif "failed" in message:
                return self._lost(message["failed"], at) if message["dead"] else Lost(message["failed"], at)
            elif "error" in message:
                raise TaskError(message["error"])
            elif "done" in message:
                answer: Message = message["done"]
                return answer
            else:
                return self._lost(f"the worker process said {message}", at)

    def close(self, wait: bool = True) -> None:
        if self._process is not None:
            self._process.kill()
            reaper = threading.Thread(target=self._process.wait, daemon=True)
            reaper.start()
            if wait:
                reaper.join()
            if self._process.stdin is not None:
                with suppress(OSError):  # what was not sent yet cannot be sent any more
                    self._process.stdin.close()
            self._process = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self.close(wait=False)  # tearing down a CUDA context takes a while, and nobody has to wait for it

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
        if message is None:
            words = self._last_words()
            self.close()
            if "No module named 'torch'" in words:
                raise NoGpu("measuring needs torch for the GPU's memory: pip install torch")
            raise MachineError(f"the worker process did not start: {words}")
        if "error" in message:
            self.close()
            raise TaskError(message["error"])
        if "started" not in message:
            self.close()
            raise MachineError(f"the worker process did not start; it said {message}")
        self._ready = True

    def _lost(self, reason: str, at: int | None = None) -> Lost:
        self.close()
        self.losses += 1
        return Lost(reason, at)

    def _last_words(self) -> str:
        process = self._process
        assert process is not None
        try:
            code = process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return "the worker process closed its channel"
        self._errors.join(1.0)
        lines = [line.strip() for line in self._stderr if line.strip()]
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return f"{lines[-1] if lines else 'no message'} ({how})"

    def _write(self, message: Message) -> bool:
        try:
            assert self._process is not None and self._process.stdin is not None
            send(self._process.stdin, message)
            return True
        except (BrokenPipeError, OSError, ValueError):
            return False

    @staticmethod
    def _listen(process: subprocess.Popen[str], messages: Queue[Message | None]) -> None:
        assert process.stdout is not None
        with process.stdout:
            try:
                while (message := receive(process.stdout)) is not None:
                    messages.put(message)
                messages.put(None)
            except ValueError as error:
                messages.put({"garbled": str(error)})

    @staticmethod
    def _keep_stderr(process: subprocess.Popen[str], lines: list[str]) -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                lines.append(line)
                del lines[:-50]


def early_session() -> Session | None:
    """A worker process for what may be measured here, started before anything else is known or loaded:
    it imports torch meanwhile. None where there is no driver."""
    if not has_driver():
        return None
    threading.Thread(target=detect, daemon=True).start()  # the driver wakes up beside what follows
    return Session()
