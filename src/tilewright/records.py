"""The frozen records that the stages of the main path take and return.

An error in one candidate is a `Failed` with a stage and a reason. Predicted and measured times are different types.
Times are in microseconds (``us``) unless a name says ``seconds``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Literal, TypeAlias

Value: TypeAlias = int | float | bool | str | None

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
"""The values that `json` reads and writes."""

Stage: TypeAlias = Literal["launch", "front end", "compile", "machine code", "tool", "verify", "race"]
"""The stages in which a candidate can fail, in the order of the main path. At stage ``tool``, a compiler or
disassembler crashed or took too long; this says nothing about the candidate."""

TensorPath: TypeAlias = Literal[
    "none", "HMMA", "IMMA", "DMMA", "QMMA", "OMMA", "HGMMA", "QGMMA", "IGMMA", "UTCMMA", "unknown"
]
"""The kind of tensor instructions that compute a kernel's products, as read by `machine_code.cubin`."""


@dataclass(frozen=True, eq=True)
class Configuration(Mapping[str, Value]):
    """One point of a space: knob name → value. Knobs are also attributes.

    If a compiler hint has the value None, the compiler chooses its value.
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
            raise AttributeError(f"unknown knob '{knob}'; known: {', '.join(self)}") from None

    def replace(self, **changes: Value) -> Configuration:
        return Configuration(tuple((name, changes.get(name, value)) for name, value in self.items_))

    def __str__(self) -> str:
        return ",".join(f"{name}={'auto' if value is None else value}" for name, value in self.items_)


@dataclass(frozen=True)
class Workload:
    """A named set of dimensions and flags (such as ``causal``) for which the kernel is tuned."""

    name: str
    dims: Mapping[str, Value]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Failed:
    """An error in one candidate: the stage, and the reason in one line with its place in the source."""

    stage: Stage
    reason: str


@dataclass(frozen=True)
class Remark:
    """A remark of the compiler about a source line, for example the load instruction that it chose."""

    file: str
    line: int
    category: str
    """``memory`` or ``tensorcore``."""
    text: str


@dataclass(frozen=True)
class TensorMapLayout:
    """How a kernel reads and writes a tensor through a tensor map. The compiler chooses it."""

    box: tuple[int, ...]
    """Extents of the box that one copy moves. The swizzle limits the last extent. The box may be smaller than the
    block."""
    swizzle: int
    """The value in the enumeration CUtensorMapSwizzle."""
    element: int
    """The value in the enumeration CUtensorMapDataType."""
    element_bytes: int
    pairs: bool = False
    """Whether a byte holds two 4-bit elements. Extents then count the elements, not the bytes."""


@dataclass(frozen=True)
class LaunchFacts:
    """Facts that a launch needs and the cubin does not contain. The defaults are for cuTile, whose cubins contain
    everything."""

    threads: int | None = None
    """Threads per CTA; None if the cubin says how many."""
    cluster: int | None = None
    """CTAs per cluster; None if the cubin says how many."""
    shared_bytes: int = 0
    """Dynamic shared memory per CTA."""
    tensor_columns: int = 0
    """How many columns of tensor memory (TMEM, on Blackwell) one CTA allocates."""
    scratch: tuple[tuple[int, int], ...] = ()
    """Scratch buffers, whose addresses are the kernel's last parameters: bytes per CTA and alignment of each."""
    tensor_maps: tuple[TensorMapLayout, ...] = ()
    """The layout of each tensor map that the host makes. Empty if the compiler replaced the tensor maps by pointers."""
    cooperative: bool = False
    """Whether all CTAs must be resident at the same time."""
    overlaps: bool = False
    """Whether the kernel may start before the previous kernel ends (programmatic dependent launch)."""


@dataclass(frozen=True)
class Built:
    """A configuration that was compiled for one architecture."""

    configuration: Configuration
    arch: str
    cubin: bytes
    symbol: str
    seconds: float
    """Wall time of the compiler's child process."""
    remarks: tuple[Remark, ...] = ()
    cache_key: str | None = None
    """Key of the cubin in the language's own disk cache; None if it is not known."""
    facts: LaunchFacts = LaunchFacts()
    processor_seconds: float = 0.0
    """Processor time of the compiler; 0 if the cubin was not compiled here."""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)
    """All files of the compiler by their ending, such as ``ptx``, if the language's own disk cache keeps them."""


@dataclass(frozen=True)
class CodeLoop:
    """The instructions of one iteration of a loop in machine code. Instructions of inner loops are not counted."""

    inside: int | None
    """Index in `MachineCode.loops` of the enclosing loop; None for an outermost loop."""
    mix: Mapping[str, int]
    """Number of instructions by class (`machine_code.cubin.CLASSES`)."""
    copies: Mapping[str, int]
    tensor_flops: float
    """FLOP of the tensor instructions per warp. 0 if the instructions do not show their shape."""
    load_chain: int = 0
    """By how many loads one iteration lengthens a chain of dependent loads (`machine_code.chains`)."""


@dataclass(frozen=True)
class MachineCode:
    """The facts about a kernel that its cubin contains (read by `machine_code.cubin.read`)."""

    symbol: str
    sm: int
    """Compute capability as one number: 80, 90, 100, 120 and so on."""
    registers: int
    """Registers per thread at launch."""
    stack_bytes: int
    """Local memory (stack frame) per thread."""
    shared_bytes: int
    """Shared memory per CTA: the cubin's plus the dynamic shared memory of `LaunchFacts`."""
    threads: int
    """Threads per CTA."""
    cluster: int
    """CTAs per cluster; 1 if the kernel needs none."""
    local_loads: int
    local_stores: int
    tensor_path: TensorPath
    tensor_instructions: int
    copies: Mapping[str, int]
    """Global and shared copy instructions by kind and width, e.g. ``{"LDG.128": 8, "UTMALDG.2D": 2}``."""
    instructions: int
    code_hash: str
    """SHA-256 of the instructions and launch properties. Kernels with the same hash behave alike."""
    tensor_columns: int = 0
    """Columns of tensor memory per CTA. 0 if the launch does not have to know the number."""

    mix: Mapping[str, int] = field(default_factory=dict)
    """Number of instructions by class; empty in records of earlier versions."""
    tensor_flops: float = 0.0
    """FLOP per warp if each tensor instruction runs once."""
    loops: tuple[CodeLoop, ...] = ()
    """The loops, outer loops first; empty in records of earlier versions."""
    load_chain: int = 0
    """The loads in the longest chain of dependent loads, if each instruction runs once."""
    unread: str = ""
    """The reason why the instructions were not read, or "". If they were not read, ``tensor_path`` is ``unknown``, and
    counts of instructions are 0 or empty."""

    @property
    def known(self) -> dict[str, Any]:
        """Maps the name of each field to its value; to None if the field needs instructions that were not read."""
        unknown = OF_INSTRUCTIONS if self.unread else ()
        return {name: None if name in unknown else value for name, value in vars(self).items()}

    def launched_with(self, facts: LaunchFacts) -> MachineCode:
        """Returns these facts together with the facts of the launch."""
        if facts == LaunchFacts():
            return self
        return replace(
            self,
            shared_bytes=self.shared_bytes + facts.shared_bytes,
            threads=facts.threads or self.threads,
            cluster=facts.cluster or self.cluster,
            tensor_columns=facts.tensor_columns,
            code_hash=sha256(repr((self.code_hash, facts)).encode()).hexdigest(),
        )


OF_INSTRUCTIONS = frozenset(
    ("local_loads", "local_stores", "tensor_path", "tensor_instructions", "copies", "mix", "tensor_flops", "loops")
)
"""The fields of `MachineCode` that come from the instructions. The others come from the headers of the cubin."""


@dataclass(frozen=True)
class Bound:
    """The resource that limits a workload on an architecture, and why."""

    kind: Literal["memory", "balanced", "compute"]
    why: str
    intensity: float
    """FLOP of a launch for each byte of memory that the launch touches."""
    ridge: float
    """FLOP per byte at which the times for computation and for memory traffic are equal on the architecture."""
    speed_of_light_us: float
    """The shortest possible time: FLOP / tensor rate or bytes / bandwidth, whichever is longer."""
    source: str = ""
    """Where FLOP and bytes come from: counted in Tile IR, or declared in the task."""
    flops: float | None = None
    """FLOP of one launch."""
    bytes: float | None = None
    """Bytes that one launch touches."""

    def share(self, us: float) -> float | None:
        """Returns the speed of a launch that takes ``us`` µs as a share of the speed of light, from 0 to about 1; None
        if the time is 0, negative or not finite."""
        return self.speed_of_light_us / us if us > 0 and math.isfinite(us) else None

    @property
    def limit(self) -> str:
        """The speed of light in words: its time, and where it comes from."""
        return "; ".join(filter(None, (f"{self.speed_of_light_us:.4g} µs", self.why, self.source)))


@dataclass(frozen=True)
class PredictedTime:
    """A time that a model computed. ``why`` names the terms of the model."""

    us: float
    why: str


@dataclass(frozen=True)
class MeasuredTime:
    """A time that a clock measured. ``us`` is the median of ``samples_us``."""

    us: float
    interval_us: tuple[float, float]
    """95 % confidence interval of the median. It assumes no distribution of the samples."""
    samples_us: tuple[float, ...] = field(repr=False)


@dataclass(frozen=True)
class Screened:
    """The screen's verdict on a candidate, from its machine code."""

    code: MachineCode
    predicted: PredictedTime
    verdict: Literal["race", "last", "out"]
    """``race``: the candidate is raced. ``last``: it is raced after all candidates with ``race``. ``out``: it is not
    raced."""
    reason: str
    duplicate_of: Configuration | None = None


Correctness: TypeAlias = Literal["correct", "correct on reduced shapes", "unverified", "incorrect"]
"""The verdicts of a check, from the best to the worst. ``correct`` requires cases of the workload's full size."""


@dataclass(frozen=True)
class Checked:
    """The verdict on a candidate's outputs."""

    verdict: Correctness
    reason: str
    error: float | None = None
    """The largest ratio of an error to its tolerance. A ratio above 1 is incorrect."""
    cases: tuple[str, ...] = ()
    """Names of the cases whose outputs were compared."""

    @property
    def right(self) -> bool:
        """Whether all compared outputs were correct, at the workload's full size or at a reduced one."""
        return self.verdict in ("correct", "correct on reduced shapes")


Status: TypeAlias = Literal["raced", "predicted", "duplicate", "screened", "failed", "wrong"]


@dataclass(frozen=True)
class Candidate:
    """One row of the result: all facts about one configuration on one workload."""

    configuration: Configuration
    status: Status
    reason: str
    code: MachineCode | None = None
    compile_seconds: float | None = None
    predicted: PredictedTime | None = None
    measured: MeasuredTime | None = None
    checked: Checked | None = None


@dataclass(frozen=True)
class Searched:
    """What the search of one workload compiled, and why it stopped."""

    strategy: str
    compiled: int
    """The number of configurations with an outcome, without the ``slow`` ones. The others were never compiled."""
    of: int
    """The number of configurations of the space."""
    exact: bool
    """Whether all ``of`` are allowed. A very large space is not counted: then the constraints may refuse some."""
    why: str
    shared: int = 0
    """So many of those compiled were compiled for another workload of the run, whose machine code is the same."""
    slow: int = 0
    """So many were not compiled because they are expected to be slow."""

    @property
    def complete(self) -> bool:
        return self.exact and self.compiled >= self.of

    def __str__(self) -> str:
        of = f"{self.of:,}" if self.exact else f"at most {self.of:,}"
        shared = f" ({self.shared:,} of them for another workload)" if self.shared else ""
        slow = f"; {self.slow:,} expected to be slow (--strategy exhaustive compiles all)" if self.slow else ""
        ended = self.exact and self.compiled + self.slow >= self.of
        stopped = "" if ended else f"; strategy '{self.strategy}' stopped because {self.why}"
        return f"{self.compiled:,} of {of} configurations were compiled{shared}, the others never{slow}{stopped}"


@dataclass(frozen=True)
class WorkloadResult:
    """The result for one workload. ``best`` is one of ``candidates``. It is None if all candidates failed."""

    workload: Workload
    bound: Bound
    best: Candidate | None
    tied: tuple[Configuration, ...]
    candidates: tuple[Candidate, ...]
    shipped: Configuration
    reason: str
    """Why ``best`` is the best."""
    race: Mapping[str, Json] | None = None
    """The race's policy, A/A noise, rounds and clocks; None if nothing was measured."""
    searched: Searched | None = None
    """None in records of earlier versions, which compiled all configurations."""

    def __str__(self) -> str:
        if self.best is None:
            return f"workload {self.workload}: none, {self.reason}"
        time = self.best.measured or self.best.predicted
        how = "measured" if self.best.measured else "predicted"
        return f"workload {self.workload}: {self.best.configuration}" + (f", {time.us:.4g} µs {how}" if time else "")


@dataclass(frozen=True)
class Machine:
    """The machine that measured or predicted a result."""

    arch: str
    gpu: str | None
    """Name of the GPU as the driver reports it; None if nothing was measured."""
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
    """Name of the run in the ledger."""
    seconds: Mapping[str, float]
    """Wall seconds of each stage."""

    def __str__(self) -> str:
        head = f"{self.task} on {self.machine.gpu or self.machine.arch}"
        return "; ".join([head, *map(str, self.workloads)])
