"""The typed results of the tools. Times are in microseconds (µs); measured and predicted times are different fields.

A reply is short, because an agent reads all of it. The file `Job.file` holds the whole result of a job. Many fields
have the names that the command prints with ``--json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, TypeVar

from tilewright.records import Value

Reply = TypeVar("Reply")

Names: TypeAlias = tuple[str, ...]


def picked(kind: type[Reply], data: Mapping[str, Any], **others: Any) -> Reply:
    """Makes a record from the fields of the same names in ``data``. ``others``: the fields that ``data`` lacks."""
    names = (field.name for field in fields(kind) if field.name not in others)  # type: ignore[arg-type]
    return kind(**{name: data[name] for name in names}, **others)


@dataclass(frozen=True, kw_only=True)
class DoctorCheck:
    """One thing that Tilewright uses. ``ok``: whether it works; null if this machine does not need it."""

    name: str
    ok: bool | None
    detail: str
    fix: str
    required: bool


@dataclass(frozen=True, kw_only=True)
class DoctorReply:
    """What works on this machine. ``ok``: whether inspecting and predicting work. ``measures``: whether times can be
    measured here."""

    ok: bool
    measures: bool
    verdict: str
    checks: tuple[DoctorCheck, ...]


@dataclass(frozen=True, kw_only=True)
class InspectedRow:
    """The machine code of one configuration. ``local_stores``: spills. ``speed_of_light_us``: the shortest possible
    time."""

    config: Mapping[str, Value]
    arch: str
    workload: str
    status: str
    reason: str
    registers: int | None
    local_stores: int | None
    shared_bytes: int | None
    tensor_path: str | None
    predicted_us: float | None
    speed_of_light_us: float
    bound: str


@dataclass(frozen=True, kw_only=True)
class InspectReply:
    """The configurations, the shortest predicted time first. ``left_out``: how many more the file of the job has."""

    rows: tuple[InspectedRow, ...]
    left_out: int


@dataclass(frozen=True, kw_only=True)
class TaskVerdict:
    """The verdict on one task. ``reproduce``: the command that runs only the smallest failing case."""

    task: str
    verdict: str
    reason: str
    engine: str
    seed: int
    cases: int
    unverified: Names
    findings: Names
    reproduce: str | None


@dataclass(frozen=True, kw_only=True)
class CheckReply:
    """The worst verdict, and the verdicts on the task and on the task of its gradient."""

    verdict: str
    tasks: tuple[TaskVerdict, ...]


@dataclass(frozen=True, kw_only=True)
class TunedConfiguration:
    """A configuration with its evidence. ``speed_of_light``: the measured speed as a share of the greatest possible."""

    config: Mapping[str, Value]
    status: str
    reason: str
    measured_us: float | None
    interval_us: tuple[float, ...] | None
    predicted_us: float | None
    speed_of_light: float | None
    verdict: str


@dataclass(frozen=True, kw_only=True)
class WorkloadReply:
    """The result for one workload. ``shipped``: the configuration that the task ships today; null if it has no outcome.
    ``candidates``: how many configurations have an outcome."""

    workload: str
    best: TunedConfiguration | None
    reason: str
    tied: tuple[Mapping[str, Value], ...]
    shipped: TunedConfiguration | None
    candidates: int


@dataclass(frozen=True, kw_only=True)
class TuneReply:
    """The best configuration of each workload. ``run``: the name of the run for the tool `report`. ``config_file``:
    what `into` asked for; null if no workload has a winner."""

    task: str
    run: str
    gpu: str | None
    arch: str
    measured: bool
    note: str | None
    workloads: tuple[WorkloadReply, ...]
    config_file: str | None = None


@dataclass(frozen=True, kw_only=True)
class TriedChange:
    """One change that was tried: its outcome, and why."""

    n: int
    optimization: str
    correctness: str
    status: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class OptimizeReply:
    """The changes that were tried and kept. ``speedup``: earlier time / new time. ``patch``: what was kept, for
    `git apply`. ``run``: the name of the run for the tool `report`."""

    task: str
    run: str
    measured: bool
    note: str | None
    speedup: float | None
    kept: Names
    iterations: tuple[TriedChange, ...]
    stop_reason: str | None
    branch: str | None
    patch: str


@dataclass(frozen=True, kw_only=True)
class KernelShare:
    """One kernel of a profile. ``share``: its share of the GPU's busy time, from 0 to 1."""

    name: str
    share: float
    count: int
    total_us: float


@dataclass(frozen=True, kw_only=True)
class GpuFigures:
    """The figures of one GPU: a share from 0 to 1 or milliseconds, as the unit in the name says; null: not measured."""

    gpu: str
    board: str
    figures: Mapping[str, float | None]
    kernels: tuple[KernelShare, ...]


@dataclass(frozen=True, kw_only=True)
class LostTime:
    """A cause of lost time. ``impact``: the share of the GPU's time that it concerns. ``places``: lines of the
    program's source that may be the cause."""

    level: str
    impact: float
    text: str
    advice: str
    specialist: str
    places: Names


@dataclass(frozen=True, kw_only=True)
class ProfileReply:
    """Where the time of a program goes, the greatest loss first. ``steps_us``: the times of its steps without the
    profiler."""

    gpus: tuple[GpuFigures, ...]
    findings: tuple[LostTime, ...]
    steps_us: tuple[float, ...]
    traces: Names


Verb: TypeAlias = Literal["doctor", "inspect", "check", "tune", "optimize", "profile"]
JobState: TypeAlias = Literal["running", "done", "failed", "cancelled", "lost"]
JobReply: TypeAlias = DoctorReply | InspectReply | CheckReply | TuneReply | OptimizeReply | ProfileReply

REPLIES: Mapping[Verb, type[JobReply]] = {
    "doctor": DoctorReply, "inspect": InspectReply, "check": CheckReply, "tune": TuneReply, "optimize": OptimizeReply,
    "profile": ProfileReply,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The state of a job: long work in a process of its own, which goes on if the client or the server ends.

    state: running; done (`job_wait` has the result); failed (`error` says why); cancelled; lost (its process was
        killed).
    progress: the stage, and how much of it is done. best: the best result so far.
    log: the file with what the job printed. next: what to do next.
    """

    job: str
    verb: str
    state: JobState
    seconds: float
    progress: str
    best: str
    error: str | None
    log: str
    next: str


@dataclass(frozen=True, kw_only=True)
class Job(JobStatus):
    """A job with its result. ``file``: the file with the whole result as JSON."""

    arguments: Mapping[str, Any]
    result: JobReply | None
    file: str | None


@dataclass(frozen=True, kw_only=True)
class ProposeReply:
    """What a job of `optimize` asks for. ``request``: the incumbent's files, the diagnosis, the history with the reason
    of each failure, what may be edited, and the form of an answer; null while the job works, or after its end."""

    job: str
    state: JobState
    progress: str
    request: Mapping[str, Any] | None
    next: str


@dataclass(frozen=True, kw_only=True)
class RouteReply:
    """The specialists for a question in the order of their work; none if it is not about performance."""

    question: str
    specialists: Names
    why: str
    alternatives: Names
    arch: str | None
    kernels: Mapping[str, Names]


@dataclass(frozen=True, kw_only=True)
class PlannedItem:
    """One change to try. ``impact`` and ``effort``: High, Medium or Low."""

    id: str
    text: str
    impact: str
    effort: str
    specialists: Names


@dataclass(frozen=True, kw_only=True)
class PlanReply:
    """The plan for a question; nothing was run. ``casebook``: which documented case matches. ``missing``: what a
    specialist needs and this machine lacks. ``run``: the command with which a person runs the plan."""

    question: str
    mode: Literal["user-specified", "autopilot", "new kernel"]
    specialists: Names
    why: str
    casebook: str
    program: str
    items: tuple[PlannedItem, ...]
    dismissed: Names
    missing: Mapping[str, Names]
    run: str


@dataclass(frozen=True, kw_only=True)
class ReportReply:
    """The evidence of one run, as Markdown. ``patch``: its changes; null for a run of `tune`."""

    run: str
    markdown: str
    patch: str | None


@dataclass(frozen=True, kw_only=True)
class MatchingCase:
    """A documented optimisation that matches. ``measured``: its effects, each with GPU, workload and date."""

    name: str
    title: str
    confidence: str
    maturity: str
    accuracy_risk: str
    sections: Mapping[str, str]
    measured: Names


@dataclass(frozen=True, kw_only=True)
class CasebookReply:
    """The matching cases, the best first. ``trace``: the line that records question and answer."""

    trace: str
    matches: tuple[MatchingCase, ...]
    problems: Names
