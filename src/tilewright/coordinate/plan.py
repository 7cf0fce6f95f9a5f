"""Plans one change as seven named steps, each with its state and the id of its evidence.

    baseline → backup → prerequisites → implement → validate → correctness → finish

A plan is data: it runs nothing and edits nothing. A step begins when all steps before it are done. If a step fails, the
steps after it are left out, except `finish`, which then reverts the change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from tilewright.coordinate.priority import WorkItem
from tilewright.coordinate.routing import CATEGORIES
from tilewright.errors import RequestError, UnknownChoice
from tilewright.ledger.agent_records import STEPS, StepName
from tilewright.specialists import specialist_of
from tilewright.specialists.delegation import Delegation

StepState: TypeAlias = Literal["pending", "done", "failed", "left out"]
ABOUT: Mapping[StepName, str] = {
    "baseline": "measure the program as it is",
    "backup": "store every file that may change",
    "prerequisites": "check that the change is applicable, and that this machine can do it",
    "implement": "make the change",
    "validate": "measure again, interleaved with the version before",
    "correctness": "compare the outputs",
    "finish": "keep the change, or restore the files",
}
METRICS = ("latency before and after, with its interval", "equality of the outputs")
"""The measurements of each specialist if the user names no others."""


@dataclass(frozen=True)
class PlanStep:
    """One step. ``evidence``: the ledger id of its measurement or finding. A done step has one."""

    name: StepName
    state: StepState = "pending"
    evidence: str = ""
    reason: str = ""


@dataclass(frozen=True)
class ChangePlan:
    """The steps of one change, and the delegations to the specialists that make the change."""

    item: WorkItem
    delegations: tuple[Delegation, ...]
    steps: tuple[PlanStep, ...] = tuple(PlanStep(name) for name in STEPS)

    @property
    def next_step(self) -> PlanStep | None:
        """The step to do next; None if the plan has ended. A resumed plan continues here."""
        return next((step for step in self.steps if step.state == "pending"), None)

    @property
    def failed(self) -> PlanStep | None:
        return next((step for step in self.steps if step.state == "failed"), None)

    @property
    def reverts(self) -> bool:
        """Whether `finish` restores the files: a step after `backup` has failed."""
        return self.failed is not None and STEPS.index(self.failed.name) > STEPS.index("backup")


def plan_of(
    item: WorkItem, workload: str, *, file: str = "", metrics: Sequence[str] = METRICS,
    constraints: Sequence[str] = (), context: str = "", findings: Sequence[str] = (), category: str | None = None,
    seconds: float = math.inf,
) -> ChangePlan:  # fmt: skip
    """Makes the plan of one change: a delegation to each of its specialists, in the order of the work.

    category: the recommendation's category. Only specialists that `CATEGORIES` lists for it are allowed. With None, all
        are allowed.
    findings: the ids of the last profile's findings, which each delegation quotes.
    seconds: time limit of each delegation.
    """
    if not item.specialists:
        raise RequestError(f"'{item.text}' is for no specialist; ask tilewright route why")
    if category is not None:
        for name in item.specialists:
            check_pair(category, name)
    delegations = tuple(
        Delegation(
            specialist_of(name).name, item.text, workload, tuple(metrics), file=file,
            constraints=tuple(constraints), context=context, findings=tuple(findings), seconds=seconds,
        )
        for name in item.specialists
    )  # fmt: skip
    return ChangePlan(item, delegations)


def check_pair(category: str, specialist: str) -> None:
    """Raises RequestError if this specialist does not work on this category."""
    if category not in CATEGORIES:
        raise UnknownChoice("category", category, CATEGORIES)
    if specialist_of(specialist).name not in CATEGORIES[category]:
        right = ", then ".join(CATEGORIES[category])
        raise RequestError(f"work of the category {category} does not go to {specialist}; send it to {right}")


def done(plan: ChangePlan, name: StepName, evidence: str) -> ChangePlan:
    """Returns the plan with a done step. Raises RequestError for a step out of order, or without evidence."""
    if not evidence.strip():
        raise RequestError(f"step '{name}' has no evidence; give the id of its measurement in the ledger")
    return _changed(plan, name, PlanStep(name, "done", evidence))


def failed(plan: ChangePlan, name: StepName, reason: str, evidence: str = "") -> ChangePlan:
    """Returns the plan with a failed step. The steps after it are left out, except `finish`."""
    if not reason.strip():
        raise RequestError(f"step '{name}' failed without a reason; say what happened")
    after = _changed(plan, name, PlanStep(name, "failed", evidence, " ".join(reason.split())))
    left = f"{name} failed"
    steps = tuple(
        replace(step, state="left out", reason=left) if step.state == "pending" and step.name != "finish" else step
        for step in after.steps
    )
    return replace(after, steps=steps)


def _changed(plan: ChangePlan, name: StepName, step: PlanStep) -> ChangePlan:
    if name not in STEPS:
        raise UnknownChoice("step", name, STEPS)
    due = plan.next_step
    if due is None or due.name != name:
        now = f"the next is '{due.name}'" if due else "the plan has ended"
        raise RequestError(f"step '{name}' is out of order; {now}")
    return replace(plan, steps=tuple(step if each.name == name else each for each in plan.steps))


def lines_of(plan: ChangePlan) -> list[str]:
    """Returns the plan as text, one line for each step and each delegation's task."""
    lines = [f"{plan.item.id}: {plan.item.text} [{plan.item.impact}] by {', then '.join(plan.item.specialists)}"]
    for number, step in enumerate(plan.steps, 1):
        said = "" if step.state == "pending" else f" ({step.state}{f': {step.reason}' if step.reason else ''})"
        lines.append(f"  {number}. {step.name}: {ABOUT[step.name]}{said}")
    return lines
