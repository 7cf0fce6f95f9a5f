"""Writes what a person needs to go on where `optimize` cannot: a limit that no change of the playbook eases.

A run is escalated if the cause of a workload's time is unknown, or is the schedule of its instructions, which only the
compiler decides. `escalation.md` then has the numbers, what was tried, and the next command, with and without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.hardware.diagnosis import PROFILE, Resource
from tilewright.ledger.records import Iteration, Metrics

FILE = "escalation.md"
SCHEDULE: frozenset[Resource] = frozenset(("issue slots", "conversions and special functions"))
"""Limits that depend on how the compiler orders and chooses instructions."""


def causes(final: Sequence[Metrics]) -> dict[str, str]:
    """Returns the workloads that a person must look at, each with the cause: ``unknown`` or ``scheduling``."""
    found = {}
    for metrics in final:
        if metrics.diagnosis is not None and metrics.diagnosis.limit.resource in ("unknown", *SCHEDULE):
            unknown = metrics.diagnosis.limit.resource == "unknown"
            found[metrics.workload] = "unknown" if unknown else "scheduling"
    return found


def written(task: str, where: str, final: Sequence[Metrics], iterations: Sequence[Iteration]) -> str:
    """Returns the text of `escalation.md`. ``where``: ``FILE[:TASK]``."""
    found = causes(final)
    lines = [f"# {task}: a person is needed", ""]
    for metrics in final:
        if metrics.workload in found and metrics.diagnosis is not None:
            lines += [f"## {metrics.workload}: {found[metrics.workload]}", "", str(metrics.diagnosis), ""]
            lines += [f"From {metrics.diagnosis.rung}.", ""]
            lines += [f"- {other.resource}: {other.evidence}" for other in metrics.diagnosis.others]
            lines += [f"- `{move.entry}`: {move.outcome}" for move in metrics.diagnosis.moves]
            lines.append("")
    lines += ["## What was tried", ""]
    tried = [f"{each.n}. {each.optimization}: {each.shown_status}: {each.reason}" for each in iterations[1:]]
    lines += tried or ["Nothing."]
    lines += ["", "## Next", "", "The work of each source line, without a GPU:", ""]
    lines += [f"    tilewright inspect {where} --lines"]
    lines += ["", "The stalls of each source line, on a GPU, in a program that launches the kernel:", ""]
    lines += [f"    {PROFILE} --launch-skip 5 --launch-count 3 python YOUR_PROGRAM.py", ""]
    return "\n".join(lines)
