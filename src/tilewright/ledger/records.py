"""The records of the ledger: runs, their iterations, and the values that each iteration tried.

    RunRecord ── Iteration ─┬─ WorkloadOutcome    the value that passed the most stages, on each workload
                            └─ Attempt            every value that was tried, also those that failed

`optimize` makes these records, `ledger.py` stores them, `report/` shows them. Predicted and measured times have
different fields. A ratio is the candidate's time / another version's time, in the same rounds. Below 1, the candidate
is faster. Times are microseconds (``us``) or milliseconds (``ms``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tilewright.hardware.diagnosis import Diagnosis
from tilewright.hardware.prediction_error import ChangeKind
from tilewright.race.interval import Interval, geometric_mean
from tilewright.records import Bound, Checked, Json, Machine, MachineCode, MeasuredTime, PredictedTime

Correctness: TypeAlias = Literal["PASS", "FAIL", "unverified"]
IterationStatus: TypeAlias = Literal["keep", "revert", "crash"]
AttemptStatus: TypeAlias = Literal[
    "raced", "predicted", "duplicate", "screened", "failed", "wrong", "crashed", "tampering"
]
Risk: TypeAlias = Literal["lossless", "lossy"]

PROPOSER = "proposer"
"""The entry of iterations whose change comes from `optimize.proposing`."""
MIXED = "mixed"
"""The kind of a run whose workloads have bounds of several kinds."""


@dataclass(frozen=True, kw_only=True)
class WorkloadOutcome:
    """The result of one iteration on one workload. ``measured``, ``predicted`` and ``code`` belong to the candidate."""

    workload: str
    verdict: str
    """The decision on this workload, as a sentence."""
    ratio: Interval | None = None
    """The candidate's time / the incumbent's: from the confirmation if there was one, else from the race."""
    against_baseline: Interval | None = None
    measured: MeasuredTime | None = None
    incumbent: MeasuredTime | None = None
    baseline: MeasuredTime | None = None
    predicted: PredictedTime | None = None
    checked: Checked | None = None
    code: MachineCode | None = None


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One value of a playbook entry at one place in the code (`playbook.base.Site`), and its outcome."""

    value: str
    status: AttemptStatus
    reason: str
    code: MachineCode | None = None
    measured: Mapping[str, MeasuredTime] = field(default_factory=dict)
    """The measured time of each workload, by name. ``predicted`` has the same keys."""
    predicted: Mapping[str, PredictedTime] = field(default_factory=dict)
    diff: str = ""


@dataclass(frozen=True, kw_only=True)
class ToConfirm:
    """A correct change that is predicted to be faster. It is left out until a GPU has measured it."""

    speedup: float
    """The predicted speed-up: baseline's time / time with this change, geometric mean over the workloads."""
    kind: ChangeKind
    patch: str
    """A file with all changes up to this change."""
    command: str
    """The command that measures the patch on a machine with a GPU."""


@dataclass(frozen=True, kw_only=True)
class GainParts:
    """The parts of a kept gain: of the structure of the code, and of the hints that were added to it.

    Both are factors from the races of one field, against one incumbent. The confirmed gain of the iteration is measured
    again, so it differs a little from their product. None if the structure was not raced alone.
    """

    hints: str
    """The hints that were added, such as ``occupancy=4, latency=2``."""
    of_structure: float | None = None
    """The incumbent's time / the time of the structure at the incumbent's hints."""
    of_hints: float | None = None
    """The time of the structure at the incumbent's hints / the time of the kept version."""
    not_separated: str = ""
    """Why there are no factors."""

    def __str__(self) -> str:
        if self.of_structure is None or self.of_hints is None:
            return f"not separated from {self.hints}: the structure alone was not raced ({self.not_separated})"
        structure = f"{self.of_structure:.2f}× (the structure at the incumbent's hints)"
        return f"in the race {structure} × {self.of_hints:.2f}× ({self.hints})"


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """One playbook entry at one place in the code: the values tried, the outcome, and the reason for it."""

    n: int
    """The number of the iteration. 0 is the untouched code."""
    optimization: str
    """Short text for the table; ``baseline`` for iteration 0."""
    correctness: Correctness
    status: IterationStatus
    reason: str
    decided: bool = True
    """False if the noise hid whether the change is faster. Such a change is not kept."""
    entry: str = ""
    """Name of the playbook's entry, such as ``tile_load``; "" for the baseline."""
    site: str = ""
    value: str = ""
    latency_ms: float | None = None
    """The geometric mean of the candidate's measured medians over the workloads."""
    interval_ms: tuple[float, float] | None = None
    """The 95 % interval of ``latency_ms``."""
    predicted_ms: float | None = None
    """The geometric mean of the predicted times over the workloads."""
    why_chosen: str = ""
    diff: str = ""
    """Unified diff against the incumbent."""
    commit: str | None = None
    outcomes: tuple[WorkloadOutcome, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    comparison: str = ""
    """A description of the changes in Tile IR and machine code."""
    seconds: float = 0.0
    risk: Risk = "lossless"
    environment: Mapping[str, Json] = field(default_factory=dict)
    """The conditions of the measurement: clocks, temperature, A/A noise and so on."""
    to_confirm: ToConfirm | None = None
    gain_parts: GainParts | None = None
    """None if the change is not kept, or if no hints were added to it; also in records of earlier versions."""
    ruled_out: tuple[str, ...] = ()
    """Proposals without a variant that could be judged, with the reasons."""

    @property
    def shown_status(self) -> str:
        """The status in words: what a prediction alone does not keep waits for a GPU, and is not called reverted."""
        return "waits" if self.to_confirm is not None else self.status

    @property
    def by_proposer(self) -> bool:
        """Whether a proposer was asked for the change."""
        return self.entry == PROPOSER

    @property
    def tampering(self) -> str:
        """What a proposal reached for besides a faster kernel, such as the reference; "" if nothing."""
        return next((attempt.reason for attempt in self.attempts if attempt.status == "tampering"), "")

    @property
    def unusable(self) -> bool:
        """Whether a proposal left nothing to judge: no answer, no patch, or one that was refused."""
        return self.by_proposer and self.commit is None

    @property
    def gain(self) -> float | None:
        """The incumbent's time / the candidate's, geometric mean over the workloads. None if not measured."""
        ratios = [outcome.ratio.centre for outcome in self.outcomes if outcome.ratio is not None]
        mean = geometric_mean(ratios)
        return None if mean is None else 1 / mean


def still_kept(iterations: Sequence[Iteration]) -> list[Iteration]:
    """Returns the iterations whose changes are in the branch: kept, and not reverted later."""
    undone = {iteration.commit for iteration in iterations if iteration.status == "revert"}
    return [each for each in iterations if each.n > 0 and each.status == "keep" and each.commit not in undone]


def left_to_confirm(iterations: Sequence[Iteration]) -> list[tuple[int, str, ToConfirm]]:
    """Returns number, name and evidence of the changes that wait for a GPU. The best predicted change is first."""
    found = [(each.n, each.optimization, each.to_confirm) for each in iterations if each.to_confirm is not None]
    return sorted(found, key=lambda change: -change[2].speedup)


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The baseline or the last version of a run on one workload."""

    workload: str
    measured: MeasuredTime | None = None
    predicted: PredictedTime | None = None
    against_baseline: Interval | None = None
    bound: Bound | None = None
    flops: float | None = None
    """FLOP of one launch, counted in this version's Tile IR or declared."""
    bytes: float | None = None
    """Bytes that one launch touches."""
    code: MachineCode | None = None
    mix: Mapping[str, int] = field(default_factory=dict)
    """Instructions by class (`cubin.instruction_mix`)."""
    diagnosis: Diagnosis | None = None
    """The resource that limits this version, and in a final version what became of the changes that would ease it. None
    in records of earlier versions."""

    @property
    def us(self) -> float | None:
        """The time in µs: measured in a measured run, otherwise predicted."""
        time = self.measured or self.predicted
        return time.us if time else None


@dataclass(frozen=True, kw_only=True)
class BaseRun:
    """The fields that all runs of `tune` and `optimize` have. ``run`` and ``started`` are set when the run begins."""

    key: str
    """The key (`file.key_of`). If this run is unfinished, a later command with the same key resumes the run."""
    task: str
    machine: Machine
    measured: bool
    language: str = ""
    """The language of the kernel; "" in runs of earlier versions."""
    classification: Mapping[str, Json] = field(default_factory=dict)
    """The class of a Triton kernel (`inspect.kernel_class.classification`). Empty for other languages."""
    where: str = ""
    """``FILE:TASK``, as in the command."""
    board: str = ""
    bandwidth_gbs: float = 0.0
    """Peak DRAM bandwidth of the GPU in GB/s. Together with `Bound.ridge` it gives both roofs of the roofline."""
    dtype: str = ""
    """The dtype of the products, which sets the compute roof."""
    seed: int | None = None
    policy: Mapping[str, Json] = field(default_factory=dict)
    """Thresholds, confidence, and how races measure."""
    reproduce: str = ""
    """The command that repeats this run."""
    run: str = ""
    """The name of the run. Names sort by time."""
    started: str = ""
    finished: str | None = None
    """Time in ISO 8601 (UTC), as for ``started``. None while the run is unfinished."""


@dataclass(frozen=True, kw_only=True)
class RunRecord(BaseRun):
    """One run of `optimize`. Until the run ends, ``final`` and ``patch`` are empty and ``stop_reason`` is None."""

    kernel: str
    baseline: tuple[Metrics, ...]
    options: Mapping[str, Json] = field(default_factory=dict)
    noise: Mapping[str, Interval] = field(default_factory=dict)
    """The A/A ratio of this machine for each workload: the same code raced against itself."""
    environment: Mapping[str, Json] = field(default_factory=dict)
    branch: str | None = None
    """The branch with the kept changes. None if the run ended without any."""
    base_commit: str | None = None
    confirm: str = ""
    """For a predicted run, the command that measures it on a GPU."""
    stop_reason: str | None = None
    final: tuple[Metrics, ...] = ()
    patch: str = ""
    """Unified diff from the baseline to the last version."""

    @property
    def kind(self) -> str:
        """The bound of the baseline: memory, balanced, compute or `MIXED`; "" if unknown."""
        kinds = {metrics.bound.kind for metrics in self.baseline if metrics.bound is not None}
        return MIXED if len(kinds) > 1 else next(iter(kinds), "")


@dataclass(frozen=True, kw_only=True)
class TuneRun(BaseRun):
    """One run of `tune`. See `BaseRun` for the other fields."""

    top: int | None = None
    """The number of candidates, the best predicted first, that are verified and raced."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall seconds of each stage."""


@dataclass(frozen=True)
class RunOverview:
    """A summary of a run of `tune` or `optimize`."""

    run: str
    command: str
    task: str
    where: str
    """``FILE:TASK``; "" in runs of earlier versions."""
    kernel: str
    key: str
    arch: str
    gpu: str | None
    measured: bool
    started: str
    finished: str | None
    """The time of the end; None while the run can be resumed."""
    stop_reason: str | None
    iterations: int
    """The number of iterations, including the baseline; 0 for a run of `tune`."""
    kept: int
    """The number of kept changes. The baseline does not count."""
    workloads: tuple[str, ...]
    """The workloads that `tune` has finished, in order."""
    merged_from: str | None = None
    """The ledger from which the run was copied; None for a run of this ledger."""


@dataclass(frozen=True)
class EntryHistory:
    """The success of one entry of the playbook in earlier runs."""

    entry: str
    tries: int
    keeps: int
    gain: float | None
    """The incumbent's time / the candidate's time, geometric mean over the kept changes. None if no change was kept."""
