"""How a run of `optimize` ends: a check on hostile data, the final metrics, the patch, the cause that is left.

Where the loop ends short of the bound, the cause is read off the machine code and the launch where it shows there:
spills, no tensor cores, too few blocks, a kernel that is mostly launch. What is left is *scheduling* when none of these
is so and the changes tried did not help: the order in which the compiler, or the hardware, lets instructions and blocks
run. Without machine code or without a single change tried it is *unknown*. Only these two are for a person.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tilewright.ledger.records import Iteration, Metrics, still_kept
from tilewright.optimize.attempting import Variant
from tilewright.optimize.bookkeeping import Bookkeeping
from tilewright.optimize.gates.base import Interpreting
from tilewright.optimize.optimized import Optimized
from tilewright.records import Bound, MachineCode

NEAR = 1.3
"""Times the speed of light: nearer than this, the bound itself is the cause. On an H200 rms_norm reaches 0.78 of the
peak bandwidth and a product of 8192³ 0.78 of the peak rate (bench/recorded, 2026-11-21)."""
LAUNCH_US = 8.0
"""Launch, ramp and drain on cold L2 take 5 µs (`predict.Coefficients.launch_us`), most of a time below this."""

Cause: TypeAlias = Literal[
    "the bound", "launch", "too few blocks", "spills", "no tensor cores", "scheduling", "unknown"
]


@dataclass(frozen=True)
class FinalTime:
    """How the last incumbent stands on one workload. ``us``: measured, or predicted."""

    workload: str
    bound: Bound
    us: float
    code: MachineCode | None
    blocks: int
    """CTAs of the grid."""

    @property
    def times_the_bound(self) -> float:
        return self.us / self.bound.speed_of_light_us


@dataclass(frozen=True)
class Escalation:
    """Of the workload that is furthest from its bound."""

    workload: str
    cause: Cause
    why: str
    ruled_out: tuple[str, ...]
    look_at: tuple[str, ...]

    @property
    def needed(self) -> bool:
        """Whether a person is asked: where the cause is scheduling or unknown."""
        return self.cause in ("scheduling", "unknown")


LOOK: Mapping[Cause, tuple[str, ...]] = {
    "the bound": ("fewer bytes or operations: another algorithm, a narrower dtype, fusion with a neighbour",),
    "launch": ("several of these launches in one, a CUDA graph, or fusion with a neighbour",),
    "too few blocks": ("smaller tiles, or a split of the reduction over blocks, so that every SM has work",),
    "spills": ("what lives across the inner loop: fewer or smaller tiles at a time",),
    "no tensor cores": ("the operands' dtypes at ct.mma, and the tile's extents: what keeps it off the tensor cores",),
    "scheduling": (
        "stalls by cause and source line: ncu --set full --section WarpStateStats --section SourceCounters",
        "gaps between loads and the products that wait for them: tilewright inspect, the order of the loop's body",
        "the tail: blocks of unequal work, the last wave, an order of blocks that misses the L2",
    ),
    "unknown": ("a profile of the kernel: ncu --set full",),
}


def take_back_what_is_wrong(run: Bookkeeping, baseline: Variant, interpreting: Interpreting) -> str:
    """Takes back changes that are wrong on hostile shapes and data, the last one first. Returns a note where the
    untouched code is wrong there too."""
    while still_kept(run.iterations):
        run.setup.progress("check", 0, None, "hostile shapes and data")
        wrong = interpreting.incorrect(run.incumbent)
        if not wrong:
            break
        if before := interpreting.incorrect(baseline):
            return f"on other shapes and data the untouched code is not correct, with or without a change: {before}"
        run.undo(wrong)
    return ""


def finished(run: Bookkeeping, reasons: list[str], note: str | None) -> Optimized:
    setup = run.setup
    final = setup.gate.final(run.incumbent)
    if told := _escalated(run, final):
        reasons.append(told)
    patch = setup.workspace.patch()
    setup.ledger.finish(setup.run.run, "; ".join(reasons), final, patch)
    folder = setup.ledger.folder(setup.run.run)
    (folder / "changes.patch").write_text(patch)
    return Optimized(setup.ledger.run(setup.run.run), tuple(run.iterations), patch, folder, note)


def _escalated(run: Bookkeeping, final: Sequence[Metrics]) -> str:
    """What a person should look at, where the loop ends far from the bound and the cause does not show. Empty for
    predicted times: their distance from the bound depends on the model."""
    if not run.setup.gate.measured:
        return ""
    variant, board = run.incumbent, run.setup.board
    cases = [
        FinalTime(metrics.workload, metrics.bound, us, metrics.code, math.prod(variant.grids[metrics.workload]))
        for metrics in final
        if metrics.bound is not None and (us := metrics.us)
    ]
    found = escalation(run.iterations[1:], cases, board.sms) if cases else None
    if found is None or not found.needed:
        return ""
    look_at = (*run.findings(), *found.look_at)
    return f"escalated: {found.cause}: {found.why}; look at {'; '.join(look_at)}"


def escalation(tried: Sequence[Iteration], cases: Sequence[FinalTime], sms: int) -> Escalation:
    """Why the kernel is no faster, as far as it shows. ``sms``: of the board."""
    case = max(cases, key=lambda one: one.times_the_bound)
    causes = list(_causes(case, sms))
    found = [(cause, why) for cause, is_so, why in causes if is_so]
    ruled_out = [f"{cause}: {why}" for cause, is_so, why in causes if not is_so]
    failed = list(_without_gain(tried))
    cause: Cause = "unknown"
    if found:
        cause, why = found[0]
    elif case.code is None:
        why = "its machine code is not known"
    elif failed:
        cause, why = "scheduling", "neither the machine code nor the launch shows what it waits for"
    else:
        why = "every change that was tried helped" if tried else "no change was tried"
    distance = f"{case.workload} takes {case.times_the_bound:.2f} × its bound ({case.bound.kind})"
    return Escalation(case.workload, cause, f"{distance}: {why}", (*ruled_out, *failed), LOOK[cause])


def _causes(case: FinalTime, sms: int) -> Iterator[tuple[Cause, bool, str]]:
    """Each possible cause with whether it applies and the evidence; the first that applies is the cause."""
    yield "the bound", case.times_the_bound <= NEAR, f"{case.times_the_bound:.2f} × the speed of light"
    yield "launch", case.us < LAUNCH_US, f"{case.us:.1f} µs, of which a launch is about 5"
    yield "too few blocks", case.blocks < sms, f"{case.blocks} blocks on {sms} SMs"
    if (code := case.code) is not None:
        spilled = code.local_loads + code.local_stores
        yield "spills", spilled > 0, f"{spilled} instructions that spill or reload registers"
        off = case.bound.kind == "compute" and code.tensor_path == "none"
        yield "no tensor cores", off, f"{code.tensor_instructions} tensor instructions, {case.bound.kind}-bound"


def _without_gain(tried: Sequence[Iteration]) -> Iterator[str]:
    """Each entry that never helped: how often it was tried, and the best it did."""
    helped = {change.entry for change in tried if change.status == "keep"}
    for entry in dict.fromkeys(change.entry for change in tried if change.entry not in helped):
        mine = [change for change in tried if change.entry == entry]
        gains = [change.gain for change in mine if change.gain is not None]
        best = f"at best {1 / max(gains):.3f} × the time" if gains else mine[-1].reason
        yield f"{mine[0].optimization} ({entry}): tried {len(mine)}×, {best}"
