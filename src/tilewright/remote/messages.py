"""The messages between `client.Remote` and the resident process over there (`agent`), each one line of JSON.

    client → agent    Attach first; then OpenRequest, StepRequest, Ping, Brought, Quit
    agent → client    Busy, or Attached; then Progressed, StepEnded for steps,
                      or WorksIn, TextPrinted, LeftPart, CommandEnded for a command

Everything after `Attached` is numbered by its place in the agent's journal. A client whose connection was lost attaches
again with the number of lines that it has, and gets the lines that it lacks. Requests carry numbers too: one that the
agent has already is ignored, so a client may send a request again if it does not know whether it arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.hardware.machine import OtherMachine
from tilewright.worker.messages import Message
from tilewright.worker.outcome import Status


@dataclass(frozen=True)
class Checkout:
    """The commit that is checked out on the user's machine.

    commit: the content of git's object, in Base64.
    branch: its branch; "" if there is none.
    repository: the key of the repository over there that has its files.
    taken: the names of branches that exist here, which a command must not take.
    author: the user's name and address for commits; "" if git knows none.
    """

    commit: str
    branch: str
    repository: str
    taken: tuple[str, ...]
    author: tuple[str, str]


@dataclass(frozen=True)
class WorkOrder:
    """What a command needs besides its files.

    root, home: the user's folder that was brought, and Tilewright's folder here.
    on: what the user gave for ``--on``.
    store: the key of the store of tuned kernels that was brought; "" if the command needs none.
    checkout: None outside a repository.
    """

    root: str
    home: str
    on: str
    store: str = ""
    checkout: Checkout | None = None


@dataclass(frozen=True)
class Attach(Message):
    """Begins a connection.

    client: a random name of the client process, and where it runs.
    have: how many lines of the journal this client has.
    answered: the number of the last step whose outcome this client has.
    seed: the seed for a new run.
    command: the words of a Tilewright command that runs over there as a whole; () for a run of steps.
    worker: the command of the worker process; () for the usual one.
    order: for a command.
    """

    client: str
    whose: str
    have: int
    seed: int
    command: tuple[str, ...] = ()
    worker: tuple[str, ...] = ()
    columns: int = 80
    answered: int = 0
    order: WorkOrder | None = None


@dataclass(frozen=True)
class Busy(Message):
    """The answer to `Attach` while another client is connected. ``whose``: that client."""

    whose: str


@dataclass(frozen=True)
class Attached(Message):
    """The answer to `Attach`.

    seed: the seed of the run.
    resumed: whether the run is older than this client.
    known: whether this client was attached before.
    """

    place: OtherMachine
    seed: int
    resumed: bool
    known: bool


@dataclass(frozen=True)
class OpenRequest(Message):
    """Opens a task. ``where``: relative to the folder of the files. ``files``: pairs of an editable file, relative as
    well, and the text to load instead.
    """

    number: int
    where: str
    files: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class StepRequest(Message):
    """``step``: the step as a line. ``silence``: as in `executors.base.Executor.run`."""

    number: int
    step: str
    silence: float | None


@dataclass(frozen=True)
class Ping(Message):
    """Says that the client is there. It is sent every few seconds."""


@dataclass(frozen=True)
class Brought(Message):
    """Says that what the command left has arrived, so it is no longer needed over there."""


@dataclass(frozen=True)
class Quit(Message):
    """Ends the run and all its processes at once."""


@dataclass(frozen=True)
class Progressed(Message):
    """``advanced``: an `Advanced` message as a line."""

    number: int
    advanced: str


@dataclass(frozen=True)
class StepEnded(Message):
    """The outcome of a step. ``answer``: the answer as a line; "" if there is none."""

    number: int
    status: Status
    answer: str
    reason: str
    at: int | None


@dataclass(frozen=True)
class WorksIn(Message):
    """The folders over there that stand for ``root`` and ``home`` of the `WorkOrder`."""

    tree: str
    home: str


@dataclass(frozen=True)
class TextPrinted(Message):
    """Text that a command printed. ``to``: 1 for stdout, 2 for stderr."""

    to: int
    text: str


@dataclass(frozen=True)
class LeftPart(Message):
    """A part of the tar with what the command left, in Base64."""

    data: str


@dataclass(frozen=True)
class CommandEnded(Message):
    """``code``: the exit code."""

    code: int
