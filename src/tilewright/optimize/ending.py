"""How a run of `optimize` ends: a check on hostile data, the final metrics, the patch, the cause that is left."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.ledger.records import Metrics, still_kept
from tilewright.optimize.attempting import Variant
from tilewright.optimize.bookkeeping import Bookkeeping
from tilewright.optimize.escalating import FinalTime, Tried, escalation
from tilewright.optimize.gates.interpreting import Interpreting
from tilewright.optimize.optimized import Optimized, us_of

FULL_CHECK_SECONDS = 60.0
"""For the last incumbent's check on hostile shapes and data, by the interpreter."""


def take_back_what_is_wrong(run: Bookkeeping, baseline: Variant, interpreting: Interpreting) -> str:
    """Takes back changes that are wrong on hostile shapes and data, the last one first. Returns a note where the
    untouched code is wrong there too."""
    while still_kept(run.iterations):
        run.setup.progress("check", 0, None, "hostile shapes and data")
        wrong = interpreting.incorrect(run.incumbent, FULL_CHECK_SECONDS)
        if not wrong:
            break
        if before := interpreting.incorrect(baseline, FULL_CHECK_SECONDS):
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
        if metrics.bound is not None and (us := us_of(metrics))
    ]
    tried = [
        Tried(past.entry, past.optimization, past.status == "keep", past.reason, 1 / past.gain if past.gain else None)
        for past in run.iterations[1:]
    ]
    found = escalation(tried, cases, board.sms) if cases else None
    if found is None or not found.needed:
        return ""
    look_at = (*run.findings(), *found.look_at)
    return f"escalated: {found.cause}: {found.why}; look at {'; '.join(look_at)}"
