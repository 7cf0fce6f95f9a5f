"""Defines the delegation that a coordinator gives to a specialist, and the specialist's answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from tilewright.errors import RequestError
from tilewright.records import Bound

Outcome: TypeAlias = Literal["applied", "rolled back", "analysed", "not applied"]


@dataclass(frozen=True)
class Delegation:
    """One job for one specialist: what to do (``task``), on which ``workload``, and under which ``constraints``.

    It names no options of tools and no files for results, because the specialist chooses its tools. Each job includes
    measuring, so a delegation without ``metrics`` raises RequestError.
    """

    specialist: str
    task: str
    """The work, such as ``write a Triton kernel for fused SiLU-mul``."""
    workload: str
    """The workload, such as ``one training step of train.py``."""
    metrics: tuple[str, ...]
    """The metrics to measure before and after, such as ``latency in µs``."""
    file: str = ""
    """The user's file that the job is about: a program, or a task as ``FILE[:TASK]``."""
    dims: Mapping[str, int] = field(default_factory=dict)
    dtype: str = ""
    flops: float | None = None
    constraints: tuple[str, ...] = ()
    """The conditions, such as ``outputs equal within the gate``."""
    context: str = ""
    """The environment of the work. All delegations of a plan contain the same text."""
    findings: tuple[str, ...] = ()
    """The ids of the profile's findings that led to this job."""
    seconds: float = math.inf
    """Time limit of the job. When it is over, a specialist returns the results that it has."""

    def __post_init__(self) -> None:
        if not any(metric.strip() for metric in self.metrics):
            raise RequestError(
                f"the delegation '{' '.join(self.task.split())}' to {self.specialist} names no metric; "
                "name what is measured before and after, such as latency"
            )

    def __str__(self) -> str:
        """The text that a model or a person gets."""
        dims = ", ".join(f"{name} = {size}" for name, size in self.dims.items())
        lines = {
            "Task": self.task,
            "File": self.file or "to be found",
            "Workload": self.workload,
            "Dimensions": dims or "those of the workload",
            "Data type": self.dtype or "that of the workload",
            "FLOP": "to be counted" if self.flops is None else f"{self.flops:.6g}",
            "Metrics": "; ".join(self.metrics),
            "Constraints": "; ".join(self.constraints) or "none",
            "Findings": ", ".join(self.findings) or "none yet",
            "Time limit": "none" if math.isinf(self.seconds) else f"{self.seconds:.0f} s",
            "Execution context": self.context or "this machine",
        }
        return "\n".join(f"{title}: {' '.join(text.split())}" for title, text in lines.items())


@dataclass(frozen=True)
class Measure:
    """One metric before and after. ``evidence``: the ledger id of the measurement. An analysis has no ``after``."""

    metric: str
    unit: str
    before: float
    after: float | None
    evidence: str

    def __post_init__(self) -> None:
        if not self.evidence:
            raise RequestError(f"{self.metric} has no evidence; give the id of its measurement in the ledger")


def light_measure(workload: str, before: tuple[Bound, float], after: tuple[Bound, float], evidence: str) -> Measure:
    """Returns the shares of the speed of light before and after, in percent.

    before, after: the bound of the version, and its measured time in µs. The metric's name says where the limit comes
    from. Raises RequestError if a time is not above 0.
    """
    shares = [bound.share(us) for bound, us in (before, after)]
    if shares[0] is None or shares[1] is None:
        raise RequestError(f"a time of {workload} is no time: {before[1]:g} and {after[1]:g} µs; measure it again")
    return Measure(f"SOL % of {workload} (limit {after[0].limit})", "%", 100 * shares[0], 100 * shares[1], evidence)


@dataclass(frozen=True)
class SpecialistAnswer:
    """The result of a specialist. ``findings``: the text of each finding, by id."""

    outcome: Outcome
    summary: str
    measures: tuple[Measure, ...]
    findings: Mapping[str, str] = field(default_factory=dict)
    patch: str = ""
    """The change as a unified diff; "" if there is none."""
    file: str = ""
    """The task file that the specialist wrote. The next delegation continues with it."""


def handed_on(delegation: Delegation, answer: SpecialistAnswer) -> Delegation:
    """Returns the next delegation of a plan. A delegation without a file gets the file that was just written."""
    return delegation if delegation.file or not answer.file else replace(delegation, file=answer.file)
