"""P-22, last row: what was ruled out, and what a person should look at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.ledger.records import Iteration, IterationStatus, WorkloadOutcome
from tilewright.optimize.ending import FinalTime, escalation
from tilewright.race.stats import Interval
from tilewright.records import Bound, MachineCode

CODE = MachineCode(
    symbol="k", sm=90, registers=64, stack_bytes=0, shared_bytes=0, threads=128, cluster=1, local_loads=0,
    local_stores=0, tensor_path="HGMMA", tensor_instructions=8, copies={}, instructions=400, code_hash="x",
)  # fmt: skip
COMPUTE = Bound("compute", "", 500.0, 206.0, 100.0)
MEMORY = Bound("memory", "", 2.0, 206.0, 100.0)
SLOW = FinalTime("w", COMPUTE, 300.0, CODE, 1000)


def tried(entry: str, optimization: str, status: IterationStatus, reason: str, ratio: float | None = None) -> Iteration:
    measured = None if ratio is None else Interval(ratio, ratio, ratio, 0.95, 100)
    outcomes = (WorkloadOutcome(workload="w", verdict="", ratio=measured),)
    return Iteration(
        n=1, optimization=optimization, correctness="PASS", status=status, reason=reason, entry=entry, outcomes=outcomes
    )


TRIED = (
    tried("B", "persistent blocks", "revert", "no gain", 1.01),
    tried("B", "persistent blocks", "revert", "no gain", 0.999),
    tried("G", "tile sizes", "keep", "5 % less time", 0.95),
    tried("F", "allow_tma", "revert", "does not compile"),
)


@pytest.mark.parametrize(
    ("case", "cause"),
    [
        (SLOW, "scheduling"),
        (replace(SLOW, us=110.0), "the bound"),
        (replace(SLOW, us=6.0, bound=replace(MEMORY, speed_of_light_us=1.0)), "launch"),
        (replace(SLOW, blocks=100), "too few blocks"),
        (replace(SLOW, code=replace(CODE, local_stores=4)), "spills"),
        (replace(SLOW, code=replace(CODE, tensor_path="none", tensor_instructions=0)), "no tensor cores"),
        (replace(SLOW, bound=MEMORY, code=replace(CODE, tensor_path="none")), "scheduling"),
        (replace(SLOW, code=None), "unknown"),
    ],
)
def test_what_shows_is_no_matter_for_a_person(case: FinalTime, cause: str) -> None:
    found = escalation(TRIED, [case], 132)
    assert found.cause == cause
    assert found.needed == (cause in ("scheduling", "unknown"))
    assert found.look_at


def test_without_a_change_tried_the_cause_is_unknown() -> None:
    assert escalation((), [SLOW], 132).cause == "unknown"


def test_the_workload_furthest_from_its_bound_is_told_of() -> None:
    found = escalation(TRIED, [SLOW, replace(SLOW, workload="worst", us=900.0)], 132)
    assert "worst takes 9.00 × its bound (compute)" in found.why
