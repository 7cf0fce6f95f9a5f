"""The frozen records that the stages exchange.

A stage takes records and returns records. What goes wrong with one candidate is a `Failed`
with a stage and a reason, never a number. Predicted and measured times are different types.
Times are in microseconds (``us``) unless a name says ``seconds``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Value: TypeAlias = int | float | bool | str | None

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
"""What `json` reads and writes."""

Stage: TypeAlias = Literal["launch", "front end", "compile", "machine code", "verify", "race"]
"""The stages at which a candidate can fail, in the order of the main path."""

TensorPath: TypeAlias = Literal["none", "HMMA", "IMMA", "DMMA", "QMMA", "OMMA", "HGMMA", "QGMMA", "IGMMA", "UTCMMA"]
"""The tensor-core instruction family that carries the products (`machine_code.py`)."""


@dataclass(frozen=True, eq=True)
class Configuration(Mapping[str, Value]):
    """One point of a space: knob name → value. Hashable; also readable as attributes.

    ``None`` as the value of a compiler hint means that the compiler chooses.
    """

    items_: tuple[tuple[str, Value], ...]

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> Configuration:
        return cls(tuple(values.items()))

    def __getitem__(self, knob: str) -> Value:
        for name, value in self.items_:
            if name == knob:
                return value
        raise KeyError(knob)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items_)

    def __len__(self) -> int:
        return len(self.items_)

    def __getattr__(self, knob: str) -> Any:
        if knob.startswith("__") or knob == "items_":
            raise AttributeError(knob)
        try:
            return self[knob]
        except KeyError:
            known = ", ".join(self)
            raise AttributeError(f"unknown knob '{knob}'; known: {known}") from None

    def replace(self, **changes: Value) -> Configuration:
        return Configuration(tuple((name, changes.get(name, value)) for name, value in self.items_))

    def __str__(self) -> str:
        return ",".join(f"{name}={_text(value)}" for name, value in self.items_)


def _text(value: Value) -> str:
    return "auto" if value is None else str(value)


@dataclass(frozen=True)
class Workload:
    """A named set of dimensions (and flags such as ``causal``) that the kernel must serve."""

    name: str
    dims: Mapping[str, Value]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Failed:
    """A candidate that did not get through ``stage``, and why (one line, with the source line)."""

    stage: Stage
    reason: str


@dataclass(frozen=True)
class Remark:
    """One thing that the compiler says of one source line, e.g. the load instruction it chose."""

    file: str
    line: int
    category: str
    """``memory`` or ``tensorcore``."""
    text: str


@dataclass(frozen=True)
class Built:
    """A configuration compiled for one architecture: the output of `compile.build`."""

    configuration: Configuration
    arch: str
    cubin: bytes
    symbol: str
    seconds: float
    """Wall time of the compiler's child process."""
    remarks: tuple[Remark, ...] = ()
    cache_key: str | None = None
    """Key of the cubin in the front end's own disk cache, where that is known."""


@dataclass(frozen=True)
class MachineCode:
    """What a cubin says about its kernel, without running it (`machine_code.read`)."""

    symbol: str
    sm: int
    """Compute capability as one number: 80, 90, 100, 120 …"""
    registers: int
    """Registers per thread at launch."""
    stack_bytes: int
    """Local memory (stack frame) per thread."""
    shared_bytes: int
    """Static shared memory per CTA."""
    threads: int
    """Threads per CTA."""
    cluster: int
    """CTAs per cluster; 1 where the kernel needs none."""
    local_loads: int
    local_stores: int
    tensor_path: TensorPath
    tensor_instructions: int
    copies: Mapping[str, int]
    """Global and shared copy instructions by kind and width, e.g. ``{"LDG.128": 8, "UTMALDG.2D": 2}``."""
    instructions: int
    code_hash: str
    """SHA-256 of the instructions and launch properties: equal hash, equal behaviour."""


@dataclass(frozen=True)
class Bound:
    """What limits a workload on an architecture, and why."""

    kind: Literal["memory", "balanced", "compute"]
    why: str
    intensity: float
    """FLOP per byte of memory that is touched."""
    ridge: float
    """FLOP per byte at which the architecture's tensor rate and bandwidth meet."""
    speed_of_light_us: float
    """The larger of work over rate and bytes over bandwidth."""
    source: str = ""
    """Where work and bytes come from: counted in Tile IR, or declared."""
    flops: float | None = None
    """FLOP of one launch."""
    bytes: float | None = None
    """Bytes that one launch touches."""


@dataclass(frozen=True)
class PredictedTime:
    """A time out of a model, never out of a clock; ``why`` names the terms."""

    us: float
    why: str


@dataclass(frozen=True)
class MeasuredTime:
    """A time out of a clock. ``us`` is the median of ``samples_us``."""

    us: float
    interval_us: tuple[float, float]
    """Distribution-free 95 % interval of the median."""
    samples_us: tuple[float, ...] = field(repr=False)


@dataclass(frozen=True)
class Screened:
    """What reading the machine code decided about a candidate."""

    code: MachineCode
    predicted: PredictedTime
    verdict: Literal["race", "last", "out"]
    """``last`` races only when nothing better is left; ``out`` never."""
    reason: str
    duplicate_of: Configuration | None = None


@dataclass(frozen=True)
class Checked:
    """The verdict on a candidate's outputs."""

    verdict: Literal["correct", "incorrect", "unverified"]
    reason: str
    error: float | None = None
    """Largest error over its allowance: above 1 is incorrect."""
    cases: tuple[str, ...] = ()
    """What was compared, in words."""


Status: TypeAlias = Literal["raced", "predicted", "duplicate", "screened", "failed", "wrong"]


@dataclass(frozen=True)
class Candidate:
    """One row of the result: everything known about one configuration on one workload."""

    configuration: Configuration
    status: Status
    reason: str
    code: MachineCode | None = None
    compile_seconds: float | None = None
    predicted: PredictedTime | None = None
    measured: MeasuredTime | None = None
    checked: Checked | None = None


@dataclass(frozen=True)
class WorkloadResult:
    """The outcome of one workload; ``best`` is one of ``candidates``, or None if all failed."""

    workload: Workload
    bound: Bound
    best: Candidate | None
    tied: tuple[Configuration, ...]
    candidates: tuple[Candidate, ...]
    shipped: Configuration
    reason: str
    """Why ``best`` is the best."""
    race: Mapping[str, Json] | None = None
    """How it was measured: policy, A/A noise, rounds, clocks; None where nothing was measured."""


@dataclass(frozen=True)
class Machine:
    """Where the measuring (or the predicting) happened."""

    arch: str
    gpu: str | None
    """Marketing name of the GPU; None where nothing was measured."""
    driver: str | None
    host: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class TuningResult:
    task: str
    machine: Machine
    measured: bool
    workloads: tuple[WorkloadResult, ...]
    run: str
    """Identifier of the run in the store."""
    seconds: Mapping[str, float]
    """Wall seconds of each stage."""
