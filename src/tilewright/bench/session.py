"""The parent's side of the worker process: start it early, ask, wait with a limit, survive its death."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, Queue

from tilewright.bench.channel import Message, receive, send
from tilewright.errors import MachineError, NoGpu, TaskError

START_SECONDS = 120.0
"""Importing torch and making a CUDA context takes 5 s on an idle machine."""
WORKER = (sys.executable, "-m", "tilewright.bench.worker")
SILENCE_SECONDS = 30.0
"""A kernel that has not ended in this time counts as hung."""


@dataclass(frozen=True)
class Lost:
    """A request that the worker did not survive: it hung, crashed, or broke its CUDA context."""

    reason: str
    at: int | None = None
    """The candidate that was running, where the worker announced it."""


class Session:
    """One worker process at a time; the next request after a loss starts another."""

    def __init__(self, task: str, command: Sequence[str] = WORKER) -> None:
        self.task = task
        self.command = tuple(command)
        self.losses = 0
        """How many worker processes were lost; what they had prepared is gone with them."""
        self._process: subprocess.Popen[str] | None = None
        self._messages: Queue[Message | None] = Queue()
        self._stderr: list[str] = []
        self._ready = False
        self.start()

    def start(self) -> None:
        """Starts the process and returns at once; it imports torch while the parent compiles."""
        self._process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._messages, self._ready, self._stderr = Queue(), False, []
        threading.Thread(target=self._listen, args=(self._process, self._messages), daemon=True).start()
        threading.Thread(target=self._keep_stderr, args=(self._process, self._stderr), daemon=True).start()
        self._write({"task": self.task})

    def ask(
        self,
        request: Message,
        *,
        silence: float = SILENCE_SECONDS,
        on_progress: Callable[[Message], None] = lambda message: None,
    ) -> Message | Lost:
        """The answer to a request; `Lost` when the worker died or said nothing for ``silence`` seconds.

        Raises TaskError for what is wrong with the task, NoGpu when no worker can start.
        """
        self._ensure_started()
        if not self._write(request):
            return self._lost("the worker process is gone")
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
            else:
                answer: Message = message["done"]
                return answer

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ensure_started(self) -> None:
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
        self._ready = True

    def _lost(self, reason: str, at: int | None = None) -> Lost:
        self.close()
        self.losses += 1
        return Lost(reason, at)

    def _last_words(self) -> str:
        process = self._process
        code = process.wait() if process else None
        lines = [line.strip() for line in self._stderr if line.strip()]
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
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
        try:
            while (message := receive(process.stdout)) is not None:
                messages.put(message)
        except ValueError:  # half a line from a process that died
            pass
        messages.put(None)

    @staticmethod
    def _keep_stderr(process: subprocess.Popen[str], lines: list[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            del lines[:-50]


