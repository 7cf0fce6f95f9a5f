"""The user's side of a run on another machine: sets it up, attaches to its resident process, and stays attached."""

from __future__ import annotations

import getpass
import hashlib
import os
import platform
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Full, Queue
from typing import Any

from tilewright.errors import MachineError, in_one_line
from tilewright.hardware.machine import OtherMachine
from tilewright.remote import environment, files
from tilewright.remote import messages as said
from tilewright.remote.connection import ANSWER_SECONDS, LOOK_SECONDS, PYTHON, Connection, ConnectionLost, RefusedThere
from tilewright.worker.messages import Message, decode, encode

PING_SECONDS = 5.0
LINGER_SECONDS = 300.0
"""The run over there ends after nobody was connected for so long. A lost connection is tried again for as long."""
QUIT_SECONDS = 5.0
MOST_RENEWALS = 3
"""So many resident processes in a row may die in one step."""
BUSY_WAITS = (0.5, 1.0, 2.0)
"""Seconds between tries while another client uses the run. One that was killed is noticed soon."""
FIRST_WAIT, LONGEST_WAIT = 0.5, 20.0  # seconds between tries to connect again
MOST_RECEIVED = 100
"""So many messages wait here for the command. More wait over there."""
NEEDED_BYTES = 8 << 30
"""An environment with torch for CUDA takes about 7 GB."""


NONSENSE = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)
"""The errors of answers that are not those of `boot` and of `agent`."""
OBJECT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
"""The name of an object of git."""


class InUse(RefusedThere):
    """Another client is attached to the run."""


class Remote:
    """One run on another machine.

    host: as for the command ssh.
    bundle: the files to bring.
    command: the words of a Tilewright command that runs over there as a whole; () for a run of steps.
    order, store: for a command: what it needs besides the files, and a tar with a store of tuned kernels.
    worker: the command of the worker process over there; () for the usual one.
    mfa: as in `connection.style_of`.
    say: called with remarks for the user.
    """

    packages: tuple[str, ...] = ()
    """Further requirements for the environment over there."""
    ended_well = True
    """Whether `close` saw the resident process end."""
    begins_again = False
    """Whether a command begins again if its resident process died."""

    def __init__(
        self, host: str, bundle: files.Bundle, *, command: Sequence[str] = (), worker: Sequence[str] = (),
        mfa: bool | None = None, linger: float = LINGER_SECONDS, say: Callable[[str], None] = lambda text: None,
        order: said.WorkOrder | None = None, store: bytes = b"",
    ) -> None:  # fmt: skip
        self.host, self.bundle, self.command, self.worker = host, bundle, tuple(command), tuple(worker)
        self.order, self.store = order, store
        self.mfa, self.linger, self.say = mfa, linger, say
        self.place: OtherMachine | None = None
        self.seed = secrets.randbits(31)
        self.resumed = False
        self.found: list[tuple[str, str]] = []
        """What worked while it was set up, as name and detail, in order."""
        self.stage = "connection"
        """What is being set up."""
        self.received: Queue[Message | MachineError] = Queue(MOST_RECEIVED)
        self._name, self._have = secrets.token_hex(8), 0
        self.connections = 0
        """How many connections have been made."""
        self._request: dict[str, Any] = {}
        """What `boot` needs to know about the run."""
        self._unanswered: list[str] = []
        self._needed: list[str] = []
        """The requests that opened the task and prepared the inputs."""
        self._answered = self._renewals = 0
        self._connection: Connection | None = None
        self._sending = threading.Lock()
        self._ended = threading.Event()
        self._number = 0

    # Setting up -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connects, brings what is missing, and attaches. Raises MachineError, in one line, if that fails."""
        for wait in (*BUSY_WAITS, None):
            connection = self.connected()
            try:
                self._set_up(connection)
                self._attach(connection)
                break
            except BaseException as error:
                connection.close(QUIT_SECONDS)  # over there, what was begun ends first
                if isinstance(error, NONSENSE):
                    raise self.nonsense(error) from error
                if wait is None or not isinstance(error, InUse):
                    raise
                time.sleep(wait)
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._ping, daemon=True).start()

    def nonsense(self, error: BaseException) -> MachineError:
        """Returns the error for an answer that is not one of Tilewright's."""
        return MachineError(
            f"{self.host} does not answer as Tilewright does ({in_one_line(error)}); fix: see what it prints at login, "
            f"or whether it is the machine that you mean: ssh {self.host}"
        )

    def connected(self) -> Connection:
        """Returns a new connection."""
        return Connection(self.host, self.mfa)

    def meet(self, connection: Connection, hello: str) -> None:
        """Connects to the resident process over there, which is started if it does not run."""
        connection.request("attach", **self._request, hello=hello)

    def _set_up(self, connection: Connection) -> None:
        code, tar = files.code()
        self.found.clear()
        self.stage = "connection"
        facts = connection.request("facts", code=code, root=self.bundle.root_key)
        python = ".".join(map(str, facts["python"]))
        self._worked(f"{self.host} is {facts['node']}, Python {python} ({facts['executable']})", "files")
        if not facts["code"]:
            connection.request("put", [tar], kind="code", key=code, size=len(tar))
        self._bring_files(connection, facts)
        if self.order is not None and self.store:
            connection.request("put", [self.store], kind="store", key=self.order.store, size=len(self.store))
        self._worked(f"{facts['cache']}, {facts['free'] / 1e9:.0f} GB free", "environment")
        made = "" if connection.python else prepared(connection, facts, self.say, self.packages)
        env = f"{facts['cache']}/env/{made}" if made else f"{connection.settings[PYTHON]}: {connection.python}"
        self._worked(env, "resident process")
        cwd = self.bundle.folder
        who = f"{getpass.getuser()}@{platform.node()}:{self.bundle.root}"
        parts = [who, self.bundle.key, code, made, connection.python, cwd, *self.command, "", *self.worker]
        self._request = {
            "run": hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16], "environment": made,
            "python": facts["executable"] if connection.python else "", "code": code, "work": self.bundle.key,
            "cwd": cwd, "linger": self.linger,
        }  # fmt: skip

    def _worked(self, detail: str, then: str) -> None:
        self.found.append((self.stage, detail))
        self.stage = then

    def _bring_files(self, connection: Connection, facts: dict[str, Any]) -> None:
        bundle = self.bundle
        if connection.request("has", kind="files", key=bundle.key)["there"]:
            return
        if bundle.tree and not facts["git"]:
            raise MachineError(f"{self.host} has no git, which unpacks the task's files; fix: install git there")
        last = str(facts["last"])
        packed = bundle.packed(last if OBJECT.fullmatch(last) else "")
        connection.request(
            "files", [packed, bundle.tar], key=bundle.key, root=bundle.root_key, tree=bundle.tree,
            bundle=len(packed), tar=len(bundle.tar),
        )  # fmt: skip

    def _attach(self, connection: Connection) -> None:
        whose = f"{getpass.getuser()} on {platform.node()}, process {os.getpid()}"
        columns = shutil.get_terminal_size((120, 24)).columns
        seen = self._name, whose, self._have, self.seed
        hello = said.Attach(*seen, self.command, self.worker, columns, self._answered, self.order)
        self.meet(connection, encode(hello).rstrip("\n"))
        line = connection.readline(ANSWER_SECONDS)
        greeting = decode(line) if line is not None else None
        if isinstance(greeting, said.Busy):
            raise InUse(
                f"this run on {self.host} is in use by {greeting.whose}; fix: wait until that command ends, or end it"
            )
        if not isinstance(greeting, said.Attached):
            raise connection.failure(line or "")
        if (why := greeting.place.mistake()) or not 0 <= greeting.seed < 1 << 31:
            raise self.nonsense(ValueError(why or f"the seed {greeting.seed}"))
        if self.place is not None and not greeting.known:
            self._renew(greeting.place)
        self.place, self.seed, self.resumed = greeting.place, greeting.seed, greeting.resumed
        self._worked(f"ends {self.linger:g} s after the last connection", self.stage)
        with self._sending:
            self._connection, self.connections = connection, self.connections + 1
            for request in self._unanswered:
                connection.write(request)

    def _renew(self, place: OtherMachine) -> None:
        """Begins again with a resident process that replaces one that died. Raises RefusedThere if too many died, or if
        it has a GPU of another model: times of both cannot be compared.
        """
        before, now = (each.gpu.name if each and each.gpu else "no GPU" for each in (self.place, place))
        if before != now:
            raise RefusedThere(
                f"the run on {self.host} cannot go on: {place.name} has {now}, and the run began on {before}; fix: ask "
                "for one model only, and run the same command again"
            )
        self._renewals += 1
        if self._renewals > MOST_RENEWALS or (self.command and not self.begins_again):
            raise RefusedThere(f"the run on {self.host} died; fix: run the same command again")
        ran = "the command goes on from what it has finished" if self.command else "the step that it ran is repeated"
        self.say(f"the resident process on {self.host} died and was replaced; {ran}")
        with self._sending:
            self._have = 0
            self._unanswered[:0] = [each for each in self._needed if each not in self._unanswered]

    # Talking ----------------------------------------------------------------------------------------

    def number(self) -> int:
        self._number += 1
        return self._number

    def send(self, request: said.OpenRequest | said.StepRequest, prepares: bool = False) -> None:
        """Sends a request. It is sent again if the connection is lost before `answered`.

        prepares: whether later steps need what this one prepares.
        """
        with self._sending:
            line = encode(request)
            self._unanswered.append(line)
            if isinstance(request, said.OpenRequest):
                self._needed = [line]
            elif prepares:
                self._needed = [*self._needed[:1], line]
            if self._connection is not None:
                self._connection.write(line)

    def is_connected(self) -> bool:
        return self._connection is not None

    def kill(self, again: bool) -> None:
        """Ends a resident process that hangs. Another one replaces it. ``again``: what was asked of it is repeated."""
        raise MachineError(f"the resident process on {self.host} hangs; fix: end it there")

    def answered(self, number: int) -> None:
        """Says that all requests up to this one were answered."""
        with self._sending:
            self._unanswered.clear()
            self._answered, self._renewals = number, 0

    def brought(self) -> None:
        """Says that what the command left is here."""
        with self._sending:
            if self._connection is not None:
                self._connection.write(encode(said.Brought()))

    def close(self) -> None:
        """Ends the run over there and the connection. It can be called twice."""
        if self._ended.is_set():
            return
        self._ended.set()
        with self._sending:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.write(encode(said.Quit()))
            self.ended_well = connection.close(QUIT_SECONDS)  # it ends when the process over there does

    def _listen(self) -> None:
        """Passes on what arrives. Connects again if the connection is lost."""
        while (connection := self._connection) is not None:
            while (line := connection.readline()) is not None:
                self._have += 1
                try:
                    self._pass_on(decode(line))
                except NONSENSE as error:
                    self._pass_on(self.nonsense(error))
                    return
            if self._ended.is_set():
                return
            try:
                self._again(connection)
            except (MachineError, *NONSENSE) as error:
                self._pass_on(error if isinstance(error, MachineError) else self.nonsense(error))
                return

    def _pass_on(self, message: Message | MachineError) -> None:
        """Waits while there is no room. After `close`, nobody makes room, and what has none is left out: the process
        over there must not wait for a reader, or it does not end."""
        while True:
            ended = self._ended.is_set()
            with suppress(Full):
                return self.received.put(message, not ended, LOOK_SECONDS)
            if ended:
                return None

    def _again(self, lost: Connection) -> None:
        """Replaces a lost connection. Raises MachineError if that is impossible, or takes longer than the run lasts."""
        reason = str(lost.failure())
        with self._sending:
            self._connection = None
        until, wait = time.monotonic() + self.linger, FIRST_WAIT
        self.say(f"{reason}; the run goes on there, connecting again")
        while not self._ended.wait(wait):
            connection = None
            try:
                connection = self.connected()
                self._attach(connection)
                if self._ended.is_set():  # `close` did not see this connection
                    connection.write(encode(said.Quit()))
                    connection.close(5.0)
                return
            except RefusedThere:
                raise
            except MachineError as error:
                if connection is not None:
                    connection.close()
                if time.monotonic() > until:
                    minutes = f"{self.linger / 60:g} minutes"
                    kept = f"the run ends there after {minutes}; before that, the same command takes it up again"
                    raise ConnectionLost(f"{error}; {kept}") from None
                wait = min(2 * wait, LONGEST_WAIT)
        raise ConnectionLost("closed")

    def _ping(self) -> None:
        while not self._ended.wait(PING_SECONDS):
            with self._sending:
                if self._connection is not None:
                    self._connection.write(encode(said.Ping()))


def prepared(
    connection: Connection, facts: dict[str, Any], say: Callable[[str], None], packages: Sequence[str] = ()
) -> str:
    """Makes the environment over there if there is none for these versions. Returns its key."""
    wanted = (*environment.requirements(), *packages)
    python, machine = facts["python"], facts["machine"]
    key = environment.key(wanted, python, machine)
    if connection.request("has", kind="env", key=key)["there"]:
        return key
    if facts["free"] < NEEDED_BYTES:
        free = f"{facts['free'] / 1e9:.1f} GB free in {facts['cache']}"
        say(f"{connection.host} has {free}; an environment takes up to 8 GB")
    say(f"making an environment on {connection.host}, once for these versions; it takes minutes")
    try:
        connection.request("env", note=_EveryFewSeconds(say), key=key, requirements=wanted, size=0)
    except RefusedThere as error:
        if not error.offline:
            raise
        say(f"{connection.host} reaches no package index; bringing the wheels from here")
        brought = environment.wheels(wanted, python, machine)
        connection.request(
            "env", [brought], note=_EveryFewSeconds(say), key=key, requirements=wanted, size=len(brought)
        )
    return key


class _EveryFewSeconds:
    """Passes on one line every few seconds."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say, self._last = say, time.monotonic()

    def __call__(self, line: str) -> None:
        if time.monotonic() - self._last > PING_SECONDS:
            self._last = time.monotonic()
            self.say(line)
