"""The frozen records of the ledger: a run, its iterations, and what each of them tried.

    RunRecord ── Iteration ─┬─ WorkloadOutcome    the value that went furthest, on each workload
                            └─ Attempt            every value that was tried, also what failed

The loop makes them, `ledger.py` keeps them, `report/` shows them. Predicted and measured times have
fields of their own everywhere. A ratio is the candidate's time over another version's, paired by rounds:
below 1 is faster. Times are microseconds (``us``) or milliseconds (``ms``), as the name says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tilewright.race.stats import Interval, geometric_mean
from tilewright.records import Bound, Checked, Json, Machine, MachineCode, MeasuredTime, PredictedTime

Correctness: TypeAlias = Literal["PASS", "FAIL", "unverified"]
IterationStatus: TypeAlias = Literal["keep", "revert", "crash"]
AttemptStatus: TypeAlias = Literal["raced", "predicted", "duplicate", "screened", "failed", "wrong", "crashed"]
Risk: TypeAlias = Literal["lossless", "lossy"]

MIXED = "mixed"
"""The kind of a run whose workloads have bounds of several kinds."""


@dataclass(frozen=True, kw_only=True)
class WorkloadOutcome:
    """One workload of one iteration. ``code`` and both times are the candidate's."""

    workload: str
    verdict: str
    """What the decision says of this workload, in words."""
    ratio: Interval | None = None
    """Candidate over incumbent, from the confirmation (or from the race where there was none)."""
    against_baseline: Interval | None = None
    measured: MeasuredTime | None = None
    incumbent: MeasuredTime | None = None
    baseline: MeasuredTime | None = None
    predicted: PredictedTime | None = None
    checked: Checked | None = None
    code: MachineCode | None = None


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One value of the entry at the site, and how far it came."""

    value: str
    status: AttemptStatus
    reason: str
    code: MachineCode | None = None
    measured: Mapping[str, MeasuredTime] = field(default_factory=dict)
    """By workload."""
    predicted: Mapping[str, PredictedTime] = field(default_factory=dict)
    """By workload."""
    diff: str = ""
    """Against the incumbent."""


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """One entry at one site: what was tried, what came of it, and why it was kept or not."""

    n: int
    """0 is the untouched code."""
    optimization: str
    """Short text for the table; ``baseline`` at 0."""
    correctness: Correctness
    status: IterationStatus
    reason: str
    entry: str = ""
    """Name of the playbook's entry, such as ``tile_load``."""
    site: str = ""
    value: str = ""
    latency_ms: float | None = None
    """Measured: geometric mean over the workloads of the candidate's medians."""
    interval_ms: tuple[float, float] | None = None
    """95 %, of `latency_ms`."""
    predicted_ms: float | None = None
    """Geometric mean over the workloads of the predicted times."""
    why_chosen: str = ""
    diff: str = ""
    """Unified, against the incumbent."""
    commit: str | None = None
    outcomes: tuple[WorkloadOutcome, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    comparison: str = ""
    """What changed in Tile IR and in the machine code, in words."""
    seconds: float = 0.0
    risk: Risk = "lossless"
    environment: Mapping[str, Json] = field(default_factory=dict)
    """Of this iteration: clocks, temperature, A/A noise, and so on."""
    ruled_out: tuple[str, ...] = ()
    """The causes that the search excluded, for a person who continues from here."""

    @property
    def gain(self) -> float | None:
        """Incumbent over candidate, geometric mean over the workloads; None where nothing was measured."""
        ratios = [outcome.ratio.centre for outcome in self.outcomes if outcome.ratio is not None]
        mean = geometric_mean(ratios)
        return None if mean is None else 1 / mean


def still_kept(iterations: Sequence[Iteration]) -> list[Iteration]:
    """The changes that the branch holds: kept, and not taken back since."""
    undone = {iteration.commit for iteration in iterations if iteration.status == "revert"}
    return [iteration for iteration in iterations[1:] if iteration.status == "keep" and iteration.commit not in undone]


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """One version on one workload: of the baseline, or of the version that the run ends with."""

    workload: str
    measured: MeasuredTime | None = None
    predicted: PredictedTime | None = None
    against_baseline: Interval | None = None
    bound: Bound | None = None
    flops: float | None = None
    """FLOP of one launch, as counted in this version's Tile IR (or as declared)."""
    bytes: float | None = None
    """Bytes that one launch touches."""
    code: MachineCode | None = None
    mix: Mapping[str, int] = field(default_factory=dict)
    """Instructions by class (`instruction_mix.py`)."""

    @property
    def us(self) -> float | None:
        """Its measured time, or else its predicted one: a run has only times of one kind."""
        time = self.measured or self.predicted
        return time.us if time else None


@dataclass(frozen=True, kw_only=True)
class BaseRun:
    """What the runs of `tune` and `optimize` have in common. ``run`` and ``started`` are filled when it begins."""

    key: str
    """What makes two runs the same (`file.key_of`)."""
    task: str
    machine: Machine
    measured: bool
    where: str = ""
    """``FILE:TASK``, as the command takes it."""
    board: str = ""
    """Name of the GPU's board, measured or predicted for."""
    bandwidth_gbs: float = 0.0
    """Peak DRAM bandwidth of the board; with `Bound.ridge` it gives both roofs."""
    dtype: str = ""
    """Of the products; the roof of arithmetic is this dtype's."""
    seed: int | None = None
    policy: Mapping[str, Json] = field(default_factory=dict)
    """Thresholds, confidence, and how the races measure."""
    reproduce: str = ""
    """The command that makes this run again."""
    run: str = ""
    """Identifier; sorts by time."""
    started: str = ""
    """ISO 8601, UTC; so is `finished`."""
    finished: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunRecord(BaseRun):
    """One run of `optimize`. Until it has finished, ``final`` and ``patch`` are empty and ``stop_reason`` is None."""

    kernel: str
    baseline: tuple[Metrics, ...]
    options: Mapping[str, Json] = field(default_factory=dict)
    """Of the command."""
    noise: Mapping[str, Interval] = field(default_factory=dict)
    """By workload: the A/A ratio of this machine, the same code raced against itself."""
    environment: Mapping[str, Json] = field(default_factory=dict)
    branch: str | None = None
    base_commit: str | None = None
    confirm: str = ""
    """Of a predicted run: the command that measures it on a GPU."""
    stop_reason: str | None = None
    final: tuple[Metrics, ...] = ()
    patch: str = ""
    """Unified, from the baseline to what the run ends with."""

    @property
    def kind(self) -> str:
        """The bound of the baseline: memory, balanced, compute or mixed; "" where none is known."""
        kinds = {metrics.bound.kind for metrics in self.baseline if metrics.bound is not None}
        return MIXED if len(kinds) > 1 else next(iter(kinds), "")


@dataclass(frozen=True, kw_only=True)
class TuneRun(BaseRun):
    """One run of `tune`."""

    top: int | None = None
    """How many of the best predicted are verified and raced."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall seconds of each stage."""


@dataclass(frozen=True)
class RunOverview:
    """One line about a run of `tune` or `optimize`."""

    run: str
    command: str
    task: str
    where: str
    """The task's file and name, as `load_task` takes them; "" in runs of earlier versions."""
    kernel: str
    key: str
    arch: str
    gpu: str | None
    measured: bool
    started: str
    finished: str | None
    """None while the run can be resumed."""
    stop_reason: str | None
    iterations: int
    """With the baseline; 0 for a run of `tune`."""
    kept: int
    """Without the baseline."""
    workloads: tuple[str, ...]
    """Those that `tune` has done, in the order in which they were."""


@dataclass(frozen=True)
class EntryHistory:
    """What earlier runs say about one entry of the playbook."""

    entry: str
    tries: int
    keeps: int
    gain: float | None
    """Geometric mean over the kept ones of incumbent over candidate; None where none was kept."""
