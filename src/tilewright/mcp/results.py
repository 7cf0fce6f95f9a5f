"""Makes the typed replies of jobs from the JSON that the commands print with ``--json``.

A reply leaves out what an agent rarely needs, such as all but the best candidates. The whole JSON is in a file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilewright.mcp.replies import (
    CheckReply,
    DoctorCheck,
    DoctorReply,
    GpuFigures,
    InspectedRow,
    InspectReply,
    KernelShare,
    LostTime,
    OptimizeReply,
    ProfileReply,
    TaskVerdict,
    TriedChange,
    TunedConfiguration,
    TuneReply,
    WorkloadReply,
    picked,
)

if TYPE_CHECKING:
    from tilewright.profile.figures import Profile

ROWS, KERNELS = 10, 8
"""How many configurations and how many kernels of a GPU a reply has."""


def examined(whole: Mapping[str, Any]) -> DoctorReply:
    return picked(DoctorReply, whole, checks=tuple(picked(DoctorCheck, each) for each in whole["checks"]))


def inspected(whole: Sequence[Mapping[str, Any]]) -> InspectReply:
    by_time = sorted(whole, key=lambda row: math.inf if row["predicted_us"] is None else row["predicted_us"])
    rows = tuple(picked(InspectedRow, row) for row in by_time[:ROWS])
    return InspectReply(rows=rows, left_out=len(whole) - len(rows))


def checked(tasks: Sequence[Mapping[str, Any]], worst: str) -> CheckReply:
    return CheckReply(verdict=worst, tasks=tuple(map(_verdict, tasks)))


def _verdict(task: Mapping[str, Any]) -> TaskVerdict:
    findings = (f"{each['kind']}: {each['message']} [{each['location']}]" for each in task["findings"])
    return picked(
        TaskVerdict, task, cases=len(task["cases"]), findings=tuple(findings), unverified=tuple(task["unverified"])
    )


def tuned(whole: Mapping[str, Any]) -> TuneReply:
    machine = whole["machine"]
    workloads = tuple(map(_tuned_workload, whole["workloads"]))
    return picked(
        TuneReply, whole, gpu=machine["gpu"], arch=machine["arch"], workloads=workloads, config_file=whole.get("file")
    )


def _tuned_workload(whole: Mapping[str, Any]) -> WorkloadReply:
    shipped = next((each for each in whole["candidates"] if each["config"] == whole["shipped"]), None)
    return picked(
        WorkloadReply, whole, best=_configuration(whole["best"]), shipped=_configuration(shipped),
        tied=tuple(whole["tied"]), candidates=len(whole["candidates"]),
    )  # fmt: skip


def _configuration(found: Mapping[str, Any] | None) -> TunedConfiguration | None:
    if found is None:
        return None
    interval = found["interval_us"]
    return picked(TunedConfiguration, found, interval_us=tuple(interval) if interval else None)


def optimized(whole: Mapping[str, Any], patch: str) -> OptimizeReply:
    iterations = tuple(picked(TriedChange, each) for each in whole["iterations"])
    return picked(OptimizeReply, whole, kept=tuple(whole["kept"]), iterations=iterations, patch=patch)


def profiled(found: Profile) -> ProfileReply:
    gpus = (
        GpuFigures(
            gpu=gpu.label, board=gpu.board,
            figures={f"{name} [{figure.unit}]" if figure.unit else name: figure.value
                     for name, figure in gpu.figures.items()},
            kernels=tuple(picked(KernelShare, vars(row)) for row in gpu.kernels[:KERNELS]),
        )
        for gpu in found.gpus
    )  # fmt: skip
    return ProfileReply(
        gpus=tuple(gpus), findings=tuple(picked(LostTime, vars(each)) for each in found.findings),
        steps_us=found.steps_us, traces=tuple(each.file for each in found.traces),
    )  # fmt: skip
