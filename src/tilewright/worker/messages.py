"""The messages between the parent and the worker process: frozen records, each written as one line of JSON.

    parent → worker    OpenTask, then steps: Hello, PrepareInputs, CheckOutputs, RaceField, TimeRounds, RunImages,
                       ComputeTrusted
    worker → parent    Started; Running and Advanced during a step; then the step's answer, Broken or Refused

A message may contain configurations, grids, specifications of arguments, outcomes and the names of files of raw bytes,
but never a pickle. Output of a kernel does not reach the pipe.

The candidate to judge is a `Source`. A `Configured` is a configuration of the opened task; the worker launches it
through the task's own launch function. A `Program` is launched through the driver. Edited code reaches the
worker only as a `Program`, so it never runs in the process that judges it.
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
from tilewright.records import Checked, Configuration, Json, LaunchFacts, TensorMapLayout, Value
from tilewright.worker.outcome import Status

Answer = TypeVar("Answer")

_KINDS: dict[str, type[Message]] = {}
"""Maps the name of each kind of message to its class."""


@dataclass(frozen=True)
class Message:
    """A record that can be sent. `decode` finds its subclasses by name."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _KINDS[cls.__name__] = cls


@dataclass(frozen=True)
class Step(Message, Generic[Answer]):
    """A request to the worker. ``answer``: the type of the answer."""

    @property
    def answer(self) -> type[Answer]:
        raise NotImplementedError


# Candidates ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Configured:
    """A candidate that is a configuration of the opened task."""

    configuration: Configuration


@dataclass(frozen=True)
class Pointer:
    """The address of the tensor with this name, or of ``zeros`` bytes of zeros that each launch gets for itself."""

    tensor: str
    zeros: int = 0


@dataclass(frozen=True)
class PackedNumber:
    """The bytes of a number, in hexadecimal digits."""

    data: str


@dataclass(frozen=True)
class Table:
    """The address of a table of 64-bit numbers, row by row, in memory that is filled before the launch."""

    rows: tuple[tuple[Pointer | int, ...], ...]


@dataclass(frozen=True)
class TensorMap:
    """A descriptor of a tensor (CUtensorMap). It is made before the launch, when the tensor's address is known."""

    tensor: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """The strides in elements."""
    nan: bool
    """Whether elements outside the tensor are NaN; otherwise they are 0."""
    layout: TensorMapLayout


TENSOR_MAP_BYTES = 128
Parameter: TypeAlias = Pointer | PackedNumber | Table | TensorMap


@dataclass(frozen=True)
class Program:
    """A candidate as data: a cubin, and how to launch it. The candidate's Python code is not needed."""

    cubin: str
    """The bytes in Base64."""
    symbol: str
    grid: tuple[int, ...]
    parameters: tuple[Parameter, ...]
    """The values of the kernel's parameters, in order."""
    facts: LaunchFacts = LaunchFacts()  # noqa: RUF009  (frozen)


Source: TypeAlias = Configured | Program


# From the worker ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Started(Message):
    """The answer to `OpenTask`: the task is open."""


@dataclass(frozen=True)
class Running(Message):
    """The candidate with the index ``at`` begins to run. None means all candidates of the step."""

    at: int | None


@dataclass(frozen=True)
class Advanced(Message):
    """The progress of a long step."""

    rounds: int
    live: int | None = None
    """The number of candidates that are still timed."""
    leader: int | None = None
    """The index of the fastest candidate so far."""


@dataclass(frozen=True)
class Broken(Message):
    """The answer to a step whose candidate failed."""

    reason: str
    dead: bool
    """Whether the process ends because its CUDA context is broken."""
    status: Status = "FAILED"


@dataclass(frozen=True)
class Refused(Message):
    """The answer to a step if the task or the request is wrong, not the candidate."""

    error: str
    machine: bool = False
    """Whether the task is right, but this machine lacks something."""


@dataclass(frozen=True)
class Greeting(Message):
    gpu: str
    cuda_driver: str
    """The newest CUDA that the driver supports."""


@dataclass(frozen=True)
class InputsReady(Message):
    cases: tuple[str, ...]
    """Descriptions of the references with which the outputs are compared."""
    new: bool
    """Whether the inputs were drawn for this step. If not, an earlier step drew them."""
    unverified: str = ""
    """Why nothing can be compared on this machine: the inputs or the references need too much memory."""


@dataclass(frozen=True)
class OutputsChecked(Message):
    checked: Checked


@dataclass(frozen=True)
class FieldRaced(Message):
    race: RaceOutcome
    monitor: Mapping[str, Json]
    """Other events on the GPU (`Monitor.record`), and the work before each timed launch (`InputSets.record`)."""
    after_timing: str | None
    """The mistake in the winner's outputs on the buffers that were timed; None if there is none."""


@dataclass(frozen=True)
class RoundsTimed(Message):
    samples_us: tuple[tuple[float, ...], ...]
    """The samples of each candidate; the samples of the copy are last. The r-th samples of all candidates belong to one
    round."""
    captures: tuple[int, ...]
    """The number of rounds of each capture, in order."""
    disturbances: tuple[str, ...]
    monitor: Mapping[str, Json]
    after_timing: str | None
    """The mistake in the first candidate's outputs after timing, or in its time. None if there is none."""
    trusted_us: tuple[float, ...] | None = None


@dataclass(frozen=True)
class ImagesRan(Message):
    touched_early: tuple[str, ...]
    """Outputs that the launch function wrote before the kernel ran."""
    kernels: tuple[str, ...] | None
    """The names of the kernels that the device ran, in order. None if the names are not known."""
    kernels_why: str
    """Why the names are not known."""
    declared: str
    """The exact name of the launched kernel's entry."""
    uploads: int = 0
    """Copies from the host during the launches, except the tables for lists of arrays."""


@dataclass(frozen=True)
class TrustedWritten(Message):
    outputs: tuple[str, ...]


# From the parent ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenTask(Message):
    """Opens the task by which all candidates are judged. ``where``: ``FILE`` or ``FILE:TASK``. ``files``: pairs of an
    editable file and the copy to load instead.
    """

    where: str
    files: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Hello(Step[Greeting]):
    answer = Greeting


@dataclass(frozen=True)
class PrepareInputs(Step[InputsReady]):
    """Prepares buffers, inputs and float64 references of a workload for the following steps."""

    workload: str
    seed: int
    passing: bool = False
    """Whether the seed is used only once. Its inputs are then soon removed."""
    answer = InputsReady


@dataclass(frozen=True)
class CheckOutputs(Step[OutputsChecked]):
    source: Source
    answer = OutputsChecked


@dataclass(frozen=True)
class RaceField(Step[FieldRaced]):
    sources: tuple[Source, ...]
    costs: tuple[tuple[int, ...], ...]
    """The cost of each candidate. If times tie, the candidate with the lowest cost wins."""
    shipped: int | None
    """The index of the shipped candidate, which wins ties."""
    policy: Policy
    careful: bool = False
    """Whether to announce and run the candidates one at a time, to find the candidate that hangs."""
    answer = FieldRaced


@dataclass(frozen=True)
class TimeRounds(Step[RoundsTimed]):
    """Times all sources in the same rounds. A second copy of one source is also timed, as an A/A check."""

    sources: tuple[Source, ...]
    budget: Budget
    """The limits for all captures together."""
    policy: Policy
    copied: int | None = None
    """The index of the source that is timed twice."""
    benchmark: bool = False
    """Whether to time the trusted implementation too, and to drop slow candidates after a few rounds."""
    captures: int = 1
    """How often all code is loaded and captured anew, in random order. Each capture gets an equal share of the budget.
    When the budget's seconds are over, captures continue only until the budget's least number of rounds is reached."""
    answer = RoundsTimed


@dataclass(frozen=True)
class TensorFile:
    """A tensor as a file of raw bytes, in row-major order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str


@dataclass(frozen=True)
class ImageFile(TensorFile):
    """A tensor and the memory around it as a file of raw bytes."""

    strides: tuple[int, ...]
    """The strides in elements."""
    offset: int
    """Bytes before the first element."""


@dataclass(frozen=True)
class RunImages(Step[ImagesRan]):
    """Launches a kernel on memory images (padded buffers that hold the tensors), and writes their bytes back to the
    files.
    """

    configuration: Configuration
    dims: Mapping[str, Value]
    images: tuple[ImageFile, ...]
    alias: Mapping[str, str]
    """Maps an output to the input whose memory the output shares."""
    outputs: tuple[str, ...]
    launches: int = 1
    place: int = 0
    """0 or 1. Images of equal sizes have equal addresses in runs with equal ``place``, and different addresses in runs
    with different ``place``."""
    profile: bool = False
    """Whether to report the names of the kernels that ran."""
    exact: bool = False
    """Whether the allocation of each tensor ends with the tensor's last element, for a tool that checks allocations."""
    fresh: tuple[str, ...] = ()
    """Tensors whose bytes are not uploaded. A tool that checks memory then sees them as uninitialised."""
    answer = ImagesRan


@dataclass(frozen=True)
class RunOnce(Message):
    """The request to a process that ends after one run (`worker.process.once`)."""

    task: str
    addresses: str
    """The file to which the tensors' addresses are written."""
    images: RunImages


@dataclass(frozen=True)
class ComputeTrusted(Step[TrustedWritten]):
    """Computes the outputs of the trusted implementation and writes them to ``files``."""

    dims: Mapping[str, Value]
    inputs: tuple[TensorFile, ...]
    files: Mapping[str, str]
    """Maps an output to its file."""
    device: str
    answer = TrustedWritten


# On the pipe --------------------------------------------------------------------------------------

MOST_LINE = 512 << 20
"""The longest lines have the machine code of all candidates of a step."""


def encode(message: Message) -> str:
    """Writes a message as one line of JSON."""
    return json.dumps({"message": type(message).__name__, **to_json(message)}, allow_nan=False) + "\n"


def decode(line: str) -> Message:
    """Reads a line that `encode` wrote. Raises ValueError for any other line."""
    try:
        said = json.loads(line)
        kind = _KINDS.get(str(said.pop("message", ""))) if isinstance(said, dict) else None
        if kind is None:
            raise ValueError(f"not a message: {line[:80].strip()}")
        return from_json(kind, said, defaults=True)
    except RecursionError:
        raise ValueError(f"not a message, but nested too deep: {line[:80].strip()}") from None


def send(pipe: IO[str], message: Message) -> None:
    pipe.write(encode(message))
    pipe.flush()


def receive(pipe: IO[str], most: int = MOST_LINE) -> Message | None:
    """Returns the next message. Returns None if the other side closed the pipe, even in the middle of a message.

    most: the most characters of a line.
    Raises ValueError for a line that is longer, or not a message.
    """
    line = pipe.readline(most)
    if len(line) == most and not line.endswith("\n"):
        raise ValueError(f"a line of more than {most >> 20} MiB")
    return decode(line) if line.endswith("\n") else None


def private_stdout() -> IO[str]:
    """Returns the stdout of this process for messages. All other output to stdout goes to stderr from now on."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return channel
