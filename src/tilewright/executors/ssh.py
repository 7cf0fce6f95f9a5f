"""The ssh executor: runs steps in a resident process on another machine, through the user's own ssh client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from queue import Empty
from typing import ClassVar

from tilewright.errors import MachineError, RequestError, first_line
from tilewright.executors.base import Answer, Executor, ignore
from tilewright.hardware.machine import OtherMachine
from tilewright.remote import files
from tilewright.remote import messages as said
from tilewright.remote.client import LINGER_SECONDS, NONSENSE, Remote
from tilewright.remote.command import run_command
from tilewright.remote.connection import refused_host
from tilewright.remote.files import task_there, texts_there
from tilewright.remote.ordering import ordered_command
from tilewright.task.loading import file_named
from tilewright.worker.messages import Advanced, PrepareInputs, Step, decode, encode
from tilewright.worker.outcome import Outcome
from tilewright.worker.plausible import mistake_in
from tilewright.worker.session import SILENCE_SECONDS

MOST_REASON = 4000
"""Characters of a reason that are kept."""


class Ssh(Executor):
    """Runs steps on ``host``. Everything that is needed there is brought along (`remote.client`).

    worker: the command of the worker process over there; () for the usual one.
    linger: the run over there ends after nobody was connected for so many seconds.
    mfa: as in `remote.connection.style_of`.
    """

    name = "ssh"
    frozen: float | None = None
    """How many seconds after a step's ``silence`` the resident process counts as hung; None: never."""
    choice: ClassVar[str] = "ssh:HOST"

    def __init__(
        self, host: str = "", worker: Sequence[str] = (), linger: float = LINGER_SECONDS, mfa: bool | None = None
    ) -> None:
        self.host, self.worker, self.linger, self.mfa = host, tuple(worker), linger, mfa
        self.remote: Remote | None = None

    @classmethod
    def at(cls, where: str) -> Ssh:
        if (why := refused_host(where)) is not None:
            raise RequestError(why)
        return cls(where)

    def run_of(
        self, bundle: files.Bundle, command: Sequence[str] = (), order: said.WorkOrder | None = None, store: bytes = b""
    ) -> Remote:
        """Returns a new run with these files. ``command``, ``order``, ``store``: as in `Remote`."""
        worker = () if command else self.worker
        return Remote(
            self.host, bundle, command=command, worker=worker, mfa=self.mfa, linger=self.linger, say=self.say,
            order=order, store=store,
        )  # fmt: skip

    def prepare(self, task: str) -> None:
        """Connects for a task, unless it is connected already."""
        if self.remote is None:
            file, _ = file_named(task)
            bundle = files.bundle_of(Path(file))
            self.remote = self.run_of(bundle)
            self.remote.start()
            if self.remote.resumed:
                self.say(f"taking up the run on {self.host} again; what was finished there is not repeated")

    def place(self, task: str) -> OtherMachine:
        self.prepare(task)
        assert self.remote is not None
        place = self.remote.place
        assert place is not None
        return replace(place, name=self.host)

    def seed(self) -> int:
        return super().seed() if self.remote is None else self.remote.seed

    def open(self, task: str, files: Mapping[str, str] | None = None) -> None:
        self.prepare(task)
        remote = self.remote
        assert remote is not None
        root = remote.bundle.root
        texts = tuple(texts_there(root, files).items())
        remote.send(said.OpenRequest(remote.number(), task_there(root, task), texts))

    def run(
        self, step: Step[Answer], *, silence: float | None = None, on_progress: Callable[[Advanced], None] = ignore
    ) -> Outcome[Answer]:
        """Implements `Executor.run`. While the connection is lost, waits until it is made again."""
        remote = self.remote
        assert remote is not None, "a task is opened before a step runs"
        request = said.StepRequest(remote.number(), encode(step), silence)
        remote.send(request, isinstance(step, PrepareInputs))
        patience = None if self.frozen is None else self.frozen + (SILENCE_SECONDS if silence is None else silence)
        hangs = 0
        while True:
            connections = remote.connections
            try:
                message = remote.received.get(timeout=patience)
            except Empty:
                if not remote.is_connected() or remote.connections > connections:
                    continue  # the silence of a connection counts from its beginning
                hangs += 1
                remote.kill(again=hangs == 1)
                if hangs > 1:  # the first time, nobody knows that it was the step
                    return Outcome("HANG_DETECTED", reason=f"twice, {self.host} said nothing for {patience:g} s")
                continue
            if isinstance(message, MachineError):
                self.close()
                raise message
            if isinstance(message, said.Progressed) and message.number == request.number:
                advanced = self._decoded(Advanced, message.advanced)
                self._check(step, None, advanced.leader)
                on_progress(advanced)
            elif isinstance(message, said.StepEnded) and message.number == request.number:
                remote.answered(message.number)
                return self._outcome(step, message)

    def _outcome(self, step: Step[Answer], ended: said.StepEnded) -> Outcome[Answer]:
        if not ended.answer:
            assert self.remote is not None
            if ended.status == "PASSED":
                raise self.remote.nonsense(ValueError("a step that passed without an answer"))
            self._check(step, None, ended.at)
            reason = first_line(ended.reason)[:MOST_REASON]
            return Outcome[Answer](ended.status, reason=reason, at=ended.at).raised(self.host)
        answer = self._decoded(step.answer, ended.answer)
        self._check(step, answer)
        return Outcome("PASSED", answer)

    def _check(self, step: Step[Answer], answer: Answer | None, *indices: int | None) -> None:
        """Raises MachineError for what no step of this kind says."""
        assert self.remote is not None
        if (why := mistake_in(step, answer, *indices)) is not None:
            raise self.remote.nonsense(ValueError(why))

    def _decoded(self, kind: type[Answer], line: str) -> Answer:
        """Reads a message. Raises MachineError if it is none, or another one."""
        assert self.remote is not None
        try:
            answer = decode(line)
        except NONSENSE as error:
            raise self.remote.nonsense(error) from error
        if not isinstance(answer, kind):
            raise self.remote.nonsense(TypeError(f"{type(answer).__name__}, not {kind.__name__}"))
        return answer

    def command(
        self, words: Sequence[str], task: str | None, paths: Sequence[Path] = (), files: bool = True,
        store: Path | None = None,
    ) -> int:  # fmt: skip
        """Runs a command over there, in the copy of the folder in which the user is."""
        ordered = ordered_command(words, task, paths, self.on, files, store)
        self.remote = self.run_of(ordered.bundle, ordered.words, ordered.order, ordered.store)
        return run_command(self.remote)

    def set_up(self) -> tuple[str, Sequence[tuple[str, str]]]:
        return (self.remote.stage, self.remote.found) if self.remote else super().set_up()

    def close(self, wait: bool = True) -> None:
        if self.remote is not None:
            self.remote.close()
            self.remote = None


EXECUTOR = Ssh
