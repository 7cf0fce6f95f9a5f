"""The process that stays on the machine where candidates run. `boot` starts it, one for each run.

    python -m tilewright.remote.agent SOCKET FOLDER LINGER [RUN]

It runs steps in a `Session`, or one command, and goes on while nobody is connected. A client that comes back gets what
it lacks. What was finished for a client that died is kept for the next client of the same run. The process ends when
it is told to, and when nobody has been connected for LINGER seconds. All its child processes end with it.

SOCKET is a path, or a name after ``@`` that all containers of a machine see. In an allocation, RUN is the folder of
the run: outcomes are kept there, too, and the file ``going-JOB`` is there until the run ends. If this process dies
before, another one starts.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import NoReturn

from tilewright.errors import MachineError, in_one_line
from tilewright.hardware.machine import OtherMachine, this_machine
from tilewright.remote import messages as said
from tilewright.remote.boot import address, is_own
from tilewright.remote.kept import KeptFile, KeptOutcome
from tilewright.remote.serving import PrintingCommand, session_of
from tilewright.remote.work import WorkFolder
from tilewright.worker.messages import Advanced, Message, PrepareInputs, Step, decode, encode
from tilewright.worker.outcome import Outcome
from tilewright.worker.session import Session

ALIVE_SECONDS = 30.0
"""A client that sends nothing for so long is gone. It sends a `Ping` every `client.PING_SECONDS`."""
ORPHAN_SECONDS = 30.0
"""In an allocation, a process whose slurmstepd was killed ends after nobody was connected for so long."""
PROGRESS_SECONDS = 0.05
"""Progress is passed on so often at most."""
MOST_PRINTED = 256 << 20
"""What a command prints is kept for clients that come back. What is beyond so many characters is left out."""
END_SECONDS = 5.0
"""A command that is told to end has so long to end its own child processes."""

PART_BYTES = 192 << 10
Request = said.OpenRequest | said.StepRequest


class Agent:
    """Serves one run.

    path: SOCKET (see above).
    folder: the folder with the task's files.
    run: the folder of the run in an allocation; None elsewhere.
    """

    def __init__(self, path: str, folder: Path, linger: float, run: Path | None = None) -> None:
        self.path, self.folder, self.linger, self.run = path, folder, linger, run
        self.file = KeptFile(None if run is None else run / "outcomes")
        self.journal: list[str] = []
        self.kept: dict[str, said.StepEnded] = {}
        """Outcomes that were finished for earlier clients, by their step and the inputs before it. Each is used once,
        so a client that measures twice gets two measurements."""
        self.attached: said.Attach | None = None
        """What the last client attached with, and the seed of the first one."""
        self.client = ""
        self._changed = threading.Condition()
        self._connection: socket.socket | None = None
        self._seen = time.monotonic()
        self._requests: Queue[tuple[str, Request]] = Queue()
        self._taken = 0  # the number of the client's last request
        self._fresh: dict[str, said.StepEnded] = {}
        self._context = self._opened = ""
        self._session: Session | None = None
        self._work: WorkFolder | None = None
        self._command: PrintingCommand | None = None
        self._brought = False
        self._room = MOST_PRINTED
        self._ending = False  # what ends from now on ends with this process, which says nothing about it
        self._copies = Path(tempfile.mkdtemp(prefix="tilewright-"))

    # Connections ------------------------------------------------------------------------------------

    def serve(self, listening: socket.socket) -> None:
        """Accepts clients until the run ends."""
        threading.Thread(target=self._run_steps, daemon=True).start()
        listening.settimeout(min(0.5, self.linger / 4))
        parent = os.getppid()
        while True:
            with suppress(TimeoutError):
                connection, _ = listening.accept()
                threading.Thread(target=self._client, args=(connection,), daemon=True).start()
            with self._changed:
                if self._connection is not None:
                    self._seen = time.monotonic()
                elif time.monotonic() - self._seen > self.linger:
                    self.release()
                elif self.run is not None and os.getppid() != parent and time.monotonic() - self._seen > ORPHAN_SECONDS:
                    self.end()  # SLURM has lost it and will not end it

    def _client(self, connection: socket.socket) -> None:
        connection.settimeout(ALIVE_SECONDS)
        with connection, connection.makefile("rw", encoding="utf-8") as lines, suppress(OSError, ValueError):
            if not is_own(connection):
                return
            attach = decode(lines.readline())
            assert isinstance(attach, said.Attach)
            with self._changed:
                if self._connection is not None and attach.client != self.client:
                    other = self.attached.whose if self.attached else ""
                    lines.write(encode(said.Busy(other)))
                    lines.flush()
                    return
                if self._connection is not None:  # the same client, whose old connection was lost
                    with suppress(OSError):
                        self._connection.shutdown(socket.SHUT_RDWR)
                self._connection = connection
                greeting = self._greeted(attach)
            try:
                lines.write(encode(greeting))
                lines.flush()
                have = attach.have if greeting.known else 0
                threading.Thread(target=self._write, args=(connection, have), daemon=True).start()
                while line := lines.readline():
                    self._take(attach.client, decode(line))
            finally:
                with self._changed:
                    if self._connection is connection:
                        self._connection, self._seen = None, time.monotonic()
                    self._changed.notify_all()

    def _greeted(self, attach: said.Attach) -> said.Attached:
        """Takes a client, and starts what it wants if it is the first."""
        place = this_machine()
        if self.run is not None:
            with suppress(OSError):
                going(self.run, "served").touch()
        new = attach.client != self.client
        resumed = self.attached is not None or self._taken_over(attach, place)
        if new:
            self.client, self._taken = attach.client, 0
            if resumed and not attach.command:
                self.journal.clear()
                self.kept |= self._fresh
                self._fresh = {}
        self.attached = self.attached or attach
        if new:
            self.attached = replace(attach, seed=self.attached.seed)
        if attach.order is not None and self._work is None:
            name = Path(self.path).name if self.run is None else self.run.name
            self._work = WorkFolder(name, self.folder, attach.order)
            threading.Thread(target=self._run_command, args=(attach, self._work), daemon=True).start()
        return said.Attached(place, self.attached.seed, resumed and new, not new)

    def _taken_over(self, attach: said.Attach, place: OtherMachine) -> bool:
        """Takes over what a process that died has finished for the run. Returns whether there was one.

        An outcome that this client has received is not used again.
        """
        if (found := self.file.load(place)) is None:
            self.file.begin(place, attach.seed)
            return False
        seed, outcomes = found
        self.kept = {each.key: each.ended for each in outcomes}
        for each in outcomes:
            received = each.client == attach.client and each.ended.number <= attach.answered
            if received and self.kept.get(each.key) is each.ended:
                del self.kept[each.key]
        self.attached = replace(attach, seed=seed)
        return True

    def _write(self, connection: socket.socket, have: int) -> None:
        """Sends the journal from line ``have`` on, while this connection is the client's."""
        with suppress(OSError):
            while True:
                with self._changed:
                    while len(self.journal) <= have and self._connection is connection:
                        self._changed.wait()
                    if self._connection is not connection:
                        return
                    lines, have = self.journal[have:], len(self.journal)
                connection.sendall("".join(lines).encode())

    def _note(self, client: str, message: Message) -> None:
        """Appends a message to the journal, unless it answers a client that is gone."""
        with self._changed:
            if client in (self.client, "") and not self._ending:
                self.journal.append(encode(message))
                self._changed.notify_all()

    def _take(self, client: str, message: Message) -> None:
        if isinstance(message, said.Brought):
            self._brought = True
        if isinstance(message, said.Quit):
            self.file.remove()
            self.release()
        if isinstance(message, said.OpenRequest | said.StepRequest):
            with self._changed:
                if client != self.client or message.number <= self._taken:
                    return
                self._taken = message.number
            self._requests.put((client, message))

    # Steps ------------------------------------------------------------------------------------------

    def _run_steps(self) -> None:
        while True:
            client, request = self._requests.get()
            if isinstance(request, said.OpenRequest):
                self._open(request)
            else:
                self._note(client, self._ended(client, request))

    def _open(self, request: said.OpenRequest) -> None:
        """Opens a task, unless the last client opened the same task: its worker is kept then."""
        opened = encode(replace(request, number=0))
        if opened == self._opened and self._session is not None:
            return
        if self._session is not None:
            self._session.close()
        (scratch := self._copies / str(request.number)).mkdir(exist_ok=True)
        worker = self.attached.worker if self.attached else ()
        self._session = session_of(self.folder, request.where, dict(request.files), scratch, worker)
        self._opened, self._context = opened, ""

    def _ended(self, client: str, request: said.StepRequest) -> said.StepEnded:
        step = decode(request.step)
        assert isinstance(step, Step)
        key = hashlib.sha256(f"{self._opened}\n{self._context}\n{request.step}".encode()).hexdigest()
        prepares = isinstance(step, PrepareInputs)
        if prepares:
            self._context = request.step
        with self._changed:
            known = None if prepares else self.kept.pop(key, None)
        if known is not None:
            known = replace(known, number=request.number)
            self.file.add(KeptOutcome(client, key, known))
            return known

        told = -PROGRESS_SECONDS

        def advanced(message: Advanced) -> None:
            nonlocal told
            if time.monotonic() - told >= PROGRESS_SECONDS:
                told = time.monotonic()
                self._note(client, said.Progressed(request.number, encode(message)))

        outcome = self._outcome(step, request.silence, advanced)
        answer = "" if outcome.answer is None else encode(outcome.answer)
        ended = said.StepEnded(request.number, outcome.status, answer, outcome.reason, outcome.at)
        if answer and not prepares:
            self.file.add(KeptOutcome(client, key, ended))
            with self._changed:
                (self._fresh if client == self.client else self.kept)[key] = ended
        return ended

    def _outcome(
        self, step: Step[Message], silence: float | None, advanced: Callable[[Advanced], None]
    ) -> Outcome[Message]:
        session = self._session
        assert session is not None, "a task is opened before a step runs"
        return Outcome.guarded(lambda: session.run(step, silence=silence, on_progress=advanced))

    # A command --------------------------------------------------------------------------------------

    def _run_command(self, attach: said.Attach, work: WorkFolder) -> None:
        """Runs a command in its work folder. All messages are kept there, for a client that comes later."""
        if work.journal.is_file():
            at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(work.journal.stat().st_mtime))
            note = f"note: this command ended at {at}, when nobody was connected; this is what it said\n"
            self._note("", said.TextPrinted(2, note))
            with self._changed:
                self.journal += work.journal.read_text(encoding="utf-8").splitlines(keepends=True)
                self._changed.notify_all()
            return
        self._note("", said.WorksIn(str(work.tree), str(work.home)))
        try:
            work.prepare()
            code = self._ran(attach, work)
            if self._ending:
                return
            with work.pack().open("rb") as packed:
                while part := packed.read(PART_BYTES):
                    self._note("", said.LeftPart(base64.b64encode(part).decode()))
        except (OSError, sqlite3.Error, tarfile.TarError, MachineError) as error:
            self._note("", said.TextPrinted(2, f"error: {in_one_line(error)}\n"))
            self._note("", said.CommandEnded(MachineError.exit_code))
            return
        ended = said.CommandEnded(code)
        with suppress(OSError):
            draft = work.journal.with_suffix(".new")
            draft.write_text("".join((*self.journal, encode(ended))), encoding="utf-8")
            draft.rename(work.journal)
        self._note("", ended)

    def _ran(self, attach: said.Attach, work: WorkFolder) -> int:
        self._command = PrintingCommand(
            [sys.executable, *starting(attach.command)], work.tree / os.path.relpath(os.getcwd(), self.folder),
            {"COLUMNS": str(attach.columns)} | work.environment(),
            self._printed,
        )  # fmt: skip
        return self._command.wait()

    def _printed(self, to: int, line: str) -> None:
        if self._room <= 0:
            return
        self._room -= len(line)
        self._note("", said.TextPrinted(to, line))
        if self._room <= 0:
            left_out = f"note: the command printed more than {MOST_PRINTED >> 20} MiB; the rest is left out\n"
            self._note("", said.TextPrinted(2, left_out))

    # The end ----------------------------------------------------------------------------------------

    def release(self) -> NoReturn:
        """Ends the run: no other process follows this one, and the allocation ends."""
        if self.run is not None:
            going(self.run).unlink(missing_ok=True)
        self.end()

    def end(self) -> NoReturn:
        """Ends all processes of the run, and this one."""
        self._ending = True
        with suppress(OSError):
            os.unlink(self.path)
        if self._command is not None and self._command.process.poll() is None:
            self._command.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._command.process.wait(END_SECONDS)
        goes_on = self.run is not None and going(self.run).exists()  # in this job again, or in another
        if self._work is not None and not goes_on and (self._brought or not self._work.is_of_use):
            self._work.remove()
        if self._session is not None:
            self._session.close(wait=False)
        shutil.rmtree(self._copies, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)  # this process leads its group, which has no others
        os._exit(0)


def going(run: Path, what: str = "going") -> Path:
    """Returns the file that is there until the run ends in this allocation. ``what``: another file for the script."""
    return run / f"{what}-{os.environ.get('SLURM_JOB_ID', '')}"


def starting(words: Sequence[str]) -> list[str]:
    """Returns the words after the interpreter that start a command: a script, or a command of Tilewright."""
    return [*words] if words[0].endswith(".py") else ["-m", "tilewright", *words]


def main() -> None:
    path, folder, linger, *run = sys.argv[1:]
    agent = Agent(path, Path(folder), float(linger), Path(run[0]) if run else None)
    if agent.run is not None and not going(agent.run).exists():
        return
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with suppress(OSError):
        os.unlink(path)  # of an agent that was killed: `boot` could not connect to it
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address(path))
    signal.signal(signal.SIGTERM, lambda *_: agent.end())
    listening.listen()
    agent.serve(listening)


if __name__ == "__main__":
    main()
