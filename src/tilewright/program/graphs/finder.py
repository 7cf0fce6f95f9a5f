"""Finds what prevents the capture of a program's step, from its source alone.

The rules follow tensors through the functions of the step (`step`, `values`). Code outside of the step may read values,
print and wait: it stays outside of the graph.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.program.graphs.hazards import CaptureHazard, HazardKind
from tilewright.program.graphs.rules import capture, replay
from tilewright.program.graphs.step import Found, ProgramStep, StepFunction
from tilewright.program.reading.module import ReadModule

RULES: dict[Callable[[StepFunction, ProgramStep], Found], HazardKind] = {
    capture.host_reads: "host-read", capture.synchronisations: "synchronisation",
    replay.random_states: "random-state", capture.data_branches: "data-branch", capture.data_shapes: "data-shape",
    capture.host_tensors: "host-tensor", replay.changed_addresses: "changed-address",
    replay.baked_values: "baked-value", replay.streams: "stream", replay.optimizers: "optimizer",
    replay.host_draws: "random-state",
}  # fmt: skip
"""Rule → the kind of what it finds. Of several on one line, the first counts."""


def hazards_in(step: ProgramStep) -> tuple[CaptureHazard, ...]:
    """Returns what prevents the capture of a step, in the order of the files and lines, at most one for each line."""
    found: dict[tuple[ReadModule, int], CaptureHazard] = {}
    for function in step.functions:
        for rule in RULES:
            for node, what in rule(function, step):
                line = int(getattr(node, "lineno", 1))
                hazard = CaptureHazard(RULES[rule], function.module.path, line, what, function.forward)
                found.setdefault((function.module, line), hazard)
    order = {module: n for n, module in enumerate(step.modules)}
    return tuple(found[key] for key in sorted(found, key=lambda key: (order[key[0]], key[1])))
