"""Ends a run of `optimize`: checks on hostile data, measures again, writes the patch, and names the limiting cause.

If the kernel ends far from its bound, the machine code or the launch may show the cause. Such causes are spills, no
tensor cores, too few blocks, and a time that is mostly launch. If no such cause applies and changes were tried without
gain, the cause is *scheduling*. This is the order in which compiler or hardware runs instructions and blocks. Without
machine code, or if no change failed, the cause is *unknown*. For *scheduling* and *unknown*, a person is asked to look.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tilewright.ledger.records import Iteration, Metrics, still_kept
from tilewright.optimize.attempting import Variant
from tilewright.optimize.bookkeeping import Bookkeeping
from tilewright.optimize.gates.base import VariantChecker
from tilewright.optimize.optimized import Optimized
from tilewright.optimize.program_launch import in_program
from tilewright.records import Bound, MachineCode

NEAR = 1.3
"""Up to this many times the speed-of-light time, the bound itself is the cause. For comparison: on an H200, rms_norm
reaches 0.78 of the peak bandwidth, and a matrix product of 8192³ reaches 0.78 of the peak rate (bench/recorded,
2026-11-21)."""
LAUNCH_US = 8.0
"""Below this time, the launch is the cause: launch, ramp and drain on cold L2 take 5 µs (`prediction.LAUNCH_US`)."""

Cause: TypeAlias = Literal[
    "the bound", "launch", "too few blocks", "spills", "no tensor cores", "scheduling", "unknown"
]


@dataclass(frozen=True)
class FinalTime:
    """The last incumbent on one workload. ``us``: measured or predicted time. ``blocks``: CTAs in the grid."""

    workload: str
    bound: Bound
    us: float
    code: MachineCode | None
    blocks: int

    @property
    def times_the_bound(self) -> float:
        return self.us / self.bound.speed_of_light_us


@dataclass(frozen=True)
class Escalation:
    """The cause that limits the kernel on the workload that is furthest from its bound."""

    cause: Cause
    why: str
    look_at: tuple[str, ...]

    @property
    def needed(self) -> bool:
        """True if a person should look: the cause is scheduling or unknown."""
        return self.cause in ("scheduling", "unknown")


WHERE_TO_LOOK: Mapping[Cause, tuple[str, ...]] = {
    "the bound": ("fewer bytes or operations: another algorithm, a narrower dtype, fusion with a neighbour",),
    "launch": ("several of these launches in one, a CUDA graph, or fusion with a neighbour",),
    "too few blocks": ("smaller tiles, or a split of the reduction over blocks, so that every SM has work",),
    "spills": ("registers in use across the inner loop: use fewer or smaller tiles at a time",),
    "no tensor cores": ("dtypes of the operands and shape of the tile at ct.mma: do they allow tensor cores?",),
    "scheduling": (
        "stalls by cause and source line: ncu --set full --section WarpStateStats --section SourceCounters",
        "gaps between loads and the products that wait for them: tilewright inspect, the order of the loop's body",
        "the tail: blocks of unequal work, the last wave, an order of blocks that misses the L2",
    ),
    "unknown": ("a profile of the kernel: ncu --set full",),
}


def revert_incorrect_changes(run: Bookkeeping, baseline: Variant, checker: VariantChecker) -> str:
    """Reverts kept changes until the code is correct on hostile shapes and data. The last change is reverted first.

    If the untouched code is also wrong on these shapes and data, nothing more is reverted. The result is then a note
    about this, otherwise "".
    """
    while still_kept(run.iterations):
        run.setup.progress("check", 0, None, "hostile shapes and data")
        wrong = checker.incorrect(run.incumbent)
        if not wrong:
            break
        if before := checker.incorrect(baseline):
            return f"on other shapes and data the untouched code is not correct either: {before}"
        run.undo(wrong)
    return ""


def finish(run: Bookkeeping, reasons: list[str], note: str | None) -> Optimized:
    """Writes the final metrics and the patch to the ledger, and returns the result."""
    setup = run.setup
    final = setup.gate.final(run.incumbent)
    if advice := _escalated(run, final):
        reasons.append(advice)
    if undecided := sum(not iteration.decided for iteration in run.iterations):
        reasons.append(f"{undecided} not decided: the noise hid whether they are faster, so they were not kept")
    reasons += in_program(setup.builder.baseline, setup.workspace, run.incumbent, len(run.iterations))
    patch = setup.workspace.patch()
    setup.ledger.finish(setup.run.run, "; ".join(reasons), final, patch)
    folder = setup.ledger.folder(setup.run.run)
    (folder / "changes.patch").write_text(patch)
    return Optimized(setup.ledger.run(setup.run.run), tuple(run.iterations), patch, folder, note)


def _escalated(run: Bookkeeping, final: Sequence[Metrics]) -> str:
    """Returns advice for a person if the kernel ends far from its bound without a visible cause; else "".

    For predicted times there is no advice, because their distance from the bound depends on the model.
    """
    if not run.setup.gate.measured:
        return ""
    grids = run.incumbent.grids
    cases = [
        FinalTime(metrics.workload, metrics.bound, us, metrics.code, math.prod(grids[metrics.workload]))
        for metrics in final
        if metrics.bound is not None and (us := metrics.us)
    ]
    limit = escalation(run.iterations[1:], cases, run.setup.builder.board.sms) if cases else None
    if limit is None or not limit.needed:
        return ""
    return f"escalated: {limit.cause}: {limit.why}; look at {'; '.join((*run.findings(), *limit.look_at))}"


def escalation(tried: Sequence[Iteration], cases: Sequence[FinalTime], sms: int) -> Escalation:
    """Finds the cause that limits the kernel. ``tried``: iterations without the baseline. ``sms``: SMs of the GPU."""
    case = max(cases, key=lambda case: case.times_the_bound)
    visible = next(_causes(case, sms), None)
    helped = {change.entry for change in tried if change.status == "keep"}
    cause: Cause = "unknown"
    if visible is not None:
        cause, why = visible
    elif case.code is None:
        why = "its machine code is not known"
    elif any(change.entry not in helped for change in tried):
        cause, why = "scheduling", "neither the machine code nor the launch shows what the kernel waits for"
    else:
        why = "every change that was tried helped" if tried else "no change was tried"
    distance = f"{case.workload} takes {case.times_the_bound:.2f} × its bound ({case.bound.kind})"
    return Escalation(cause, f"{distance}: {why}", WHERE_TO_LOOK[cause])


def _causes(case: FinalTime, sms: int) -> Iterator[tuple[Cause, str]]:
    """Yields the causes that apply, each with its evidence, the most important first."""
    if case.times_the_bound <= NEAR:
        yield "the bound", f"{case.times_the_bound:.2f} × the speed of light"
    if case.us < LAUNCH_US:
        yield "launch", f"{case.us:.1f} µs, of which a launch is about 5"
    if case.blocks < sms:
        yield "too few blocks", f"{case.blocks} blocks on {sms} SMs"
    if (code := case.code) is not None:
        if spilled := code.local_loads + code.local_stores:
            yield "spills", f"{spilled} instructions that spill or reload registers"
        if case.bound.kind == "compute" and code.tensor_path == "none":
            yield "no tensor cores", f"{code.tensor_instructions} tensor instructions, compute-bound"
