"""What the parent and the worker process say to each other: frozen records, one line of JSON each.

    parent → worker    OpenTask, then steps: Hello, PrepareInputs, CheckOutputs, RaceField, TimeRounds, RunImages,
                       ComputeTrusted
    worker → parent    Started; Running and Advanced on the way; then the step's answer, Broken or Refused

A message carries configurations, grids, arguments as specifications, outcomes and the names of files of raw bytes;
never a pickle. The pipe is one that no kernel's print reaches.

Who is judged is a `Source`: a configuration of the task as it was opened, which the worker launches through the task's
own launch function, or a `Program`, which it launches through the driver. Edited code reaches the worker only as a
`Program`, so it never runs in the process that judges it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Generic, TypeAlias, TypeVar

from tilewright.ledger.codec import from_json, to_json
from tilewright.race.protocol import Budget, RaceOutcome
from tilewright.race.rules import Policy
from tilewright.records import Checked, Configuration, Json, Value

Answer = TypeVar("Answer")

_KINDS: dict[str, type[Message]] = {}
"""The name of each kind of message → its class."""


@dataclass(frozen=True)
class Message:
    """A record that can be sent. Its subclasses are found by name when a line is read."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _KINDS[cls.__name__] = cls


@dataclass(frozen=True)
class Step(Message, Generic[Answer]):
    """A request, which names the type of its answer."""

    @property
    def answer(self) -> type[Answer]:
        raise NotImplementedError


@dataclass(frozen=True)
class Lost:
    """A step that failed: its candidate hung, crashed, broke the CUDA context, or could not be launched."""

    reason: str
    at: int | None = None
    """The candidate that was running, where the worker announced it."""


# What is judged -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Configured:
    """A configuration of the task as it was opened."""

    configuration: Configuration


@dataclass(frozen=True)
class Pointer:
    """The address of a tensor, by its name."""

    tensor: str


@dataclass(frozen=True)
class PackedNumber:
    """The bytes of a number, in hexadecimal digits."""

    data: str


@dataclass(frozen=True)
class Table:
    """The address of 64-bit numbers, row by row, in memory that is filled before the launch."""

    rows: tuple[tuple[Pointer | int, ...], ...]


@dataclass(frozen=True)
class Program:
    """A candidate as data: a cubin and how it is launched. Python code of the candidate is not needed."""

    cubin: str
    """Base64."""
    symbol: str
    grid: tuple[int, ...]
    parameters: tuple[Pointer | PackedNumber | Table, ...]
    """In the order of the kernel's parameters."""


Source: TypeAlias = Configured | Program


# From the worker ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Started(Message):
    """The task is open."""


@dataclass(frozen=True)
class Running(Message):
    """From here on ``at`` of the step's candidates runs; None: all of them."""

    at: int | None


@dataclass(frozen=True)
class Advanced(Message):
    """A sign of life of a long step."""

    rounds: int
    live: int | None = None
    """Candidates that are still timed."""
    leader: int | None = None
    """The fastest so far, by its place in the field."""


@dataclass(frozen=True)
class Broken(Message):
    """The candidate failed."""

    reason: str
    dead: bool
    """It took the process with it: a broken CUDA context is of no more use."""


@dataclass(frozen=True)
class Refused(Message):
    """The task or the request is wrong, not the candidate."""

    error: str


@dataclass(frozen=True)
class Greeting(Message):
    torch: str
    cuda_runtime: str | None
    gpu: str


@dataclass(frozen=True)
class InputsReady(Message):
    cases: tuple[str, ...]
    """What outputs are compared with, in words."""
    new: bool
    """The inputs were drawn just now, not for an earlier step."""


@dataclass(frozen=True)
class OutputsChecked(Message):
    checked: Checked


@dataclass(frozen=True)
class FieldRaced(Message):
    race: RaceOutcome
    monitor: Mapping[str, Json]
    """What else happened on the GPU (`Monitor.record`)."""
    after_timing: str | None
    """What is wrong with the winner's outputs on the buffers that were timed."""


@dataclass(frozen=True)
class RoundsTimed(Message):
    samples_us: tuple[tuple[float, ...], ...]
    """By candidate, the copy last; the r-th of each are of the same round."""
    disturbances: tuple[str, ...]
    monitor: Mapping[str, Json]
    after_timing: str | None
    """What is wrong with the first candidate's outputs on the buffers that were timed."""
    trusted_us: tuple[float, ...] | None = None


@dataclass(frozen=True)
class ImagesRan(Message):
    touched_early: tuple[str, ...]
    """Outputs that the launch function wrote before the kernel ran."""
    kernels: tuple[str, ...] | None
    """The kernels that the device ran, in order; None where that is not known."""
    kernels_why: str
    """Why it is not known."""
    declared: str
    """What the name of the launched kernel begins with."""


@dataclass(frozen=True)
class TrustedWritten(Message):
    outputs: tuple[str, ...]


# From the parent ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenTask(Message):
    """The task that judges everything. ``where`` and ``files``: as `loading.load_task` takes them."""

    where: str
    files: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Hello(Step[Greeting]):
    answer = Greeting


@dataclass(frozen=True)
class PrepareInputs(Step[InputsReady]):
    """Buffers, drawn inputs and float64 references of a workload; what follows runs on them."""

    workload: str
    seed: int
    passing: bool = False
    """The seed does not come back, so its inputs are not kept long."""
    answer = InputsReady


@dataclass(frozen=True)
class CheckOutputs(Step[OutputsChecked]):
    source: Source
    answer = OutputsChecked


@dataclass(frozen=True)
class RaceField(Step[FieldRaced]):
    sources: tuple[Source, ...]
    costs: tuple[tuple[int, ...], ...]
    """What each occupies; of the tied the cheapest wins."""
    shipped: int | None
    """The place of the one that wins ties."""
    policy: Policy
    careful: bool = False
    """One launch at a time, each announced: finds the one that hangs."""
    answer = FieldRaced


@dataclass(frozen=True)
class TimeRounds(Step[RoundsTimed]):
    """Rounds of all sources, and of a second copy of one of them: the A/A check of the same rounds."""

    sources: tuple[Source, ...]
    budget: Budget
    policy: Policy
    copied: int | None = None
    """The place of the one that is timed twice."""
    benchmark: bool = False
    """The trusted implementation is timed too, and what is clearly slow leaves after a few rounds."""
    answer = RoundsTimed


@dataclass(frozen=True)
class TensorFile:
    """A tensor as a file of raw bytes, row by row."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str


@dataclass(frozen=True)
class ImageFile(TensorFile):
    """A tensor and the memory round it as a file of raw bytes."""

    strides: tuple[int, ...]
    """In elements."""
    offset: int
    """Bytes before the first element."""


@dataclass(frozen=True)
class RunImages(Step[ImagesRan]):
    """Launches on memory images, whose bytes come back in their files."""

    configuration: Configuration
    dims: Mapping[str, Value]
    images: tuple[ImageFile, ...]
    alias: Mapping[str, str]
    """Output → the input whose memory it shares."""
    outputs: tuple[str, ...]
    launches: int = 1
    place: int = 0
    """0 or 1: images of equal sizes lie at the same addresses if it is equal, else at others."""
    profile: bool = False
    """Name the kernels that ran."""
    exact: bool = False
    """Each tensor gets an allocation that ends with its last element, for a tool that watches allocations."""
    fresh: tuple[str, ...] = ()
    """Tensors whose bytes are not uploaded: to such a tool nobody has written them."""
    answer = ImagesRan


@dataclass(frozen=True)
class RunOnce(Message):
    """For a process that lives for one run (`worker.process.once`)."""

    task: str
    addresses: str
    """The file that takes the tensors' addresses."""
    images: RunImages


@dataclass(frozen=True)
class ComputeTrusted(Step[TrustedWritten]):
    """The trusted implementation's outputs, written to ``files``."""

    dims: Mapping[str, Value]
    inputs: tuple[TensorFile, ...]
    files: Mapping[str, str]
    """Output → file."""
    device: str
    answer = TrustedWritten


# On the pipe --------------------------------------------------------------------------------------


def encode(message: Message) -> str:
    """One line of JSON."""
    return json.dumps({"message": type(message).__name__, **to_json(message)}, allow_nan=False) + "\n"


def decode(line: str) -> Message:
    """The message that `encode` wrote. Raises ValueError for anything else."""
    said = json.loads(line)
    kind = _KINDS.get(str(said.pop("message", ""))) if isinstance(said, dict) else None
    if kind is None:
        raise ValueError(f"not a message: {line[:80].strip()}")
    return from_json(kind, said, defaults=True)


def send(pipe: IO[str], message: Message) -> None:
    pipe.write(encode(message))
    pipe.flush()


def receive(pipe: IO[str]) -> Message | None:
    """The next message, or None when the other side is gone, perhaps in the middle of one.

    Raises ValueError for a line that is no message.
    """
    line = pipe.readline()
    return decode(line) if line.endswith("\n") else None


def private_stdout() -> IO[str]:
    """This process's stdout as a channel of its own; whatever prints goes to stderr from now on."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return channel
