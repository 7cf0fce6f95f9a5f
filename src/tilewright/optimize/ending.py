"""Ends a run of `optimize`: checks on hostile data, measures again, writes the patch, and names what limits the kernel.

Every workload gets a diagnosis (`hardware.diagnosis`): the resource that limits it, the numbers behind that, and what
became of each change of the playbook that would ease it, or that the user named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.hardware.diagnosis import Move
from tilewright.ledger.records import Iteration, Metrics, still_kept
from tilewright.optimize import escalation
from tilewright.optimize.attempting import Variant
from tilewright.optimize.bookkeeping import Bookkeeping
from tilewright.optimize.gates.base import VariantChecker
from tilewright.optimize.optimized import Optimized
from tilewright.optimize.program_launch import in_program
from tilewright.playbook.base import EntryDescription


def revert_incorrect_changes(run: Bookkeeping, baseline: Variant, checker: VariantChecker) -> str:
    """Reverts kept changes until the code is correct on hostile shapes and data, or wrong only where the untouched code
    is wrong, too. The last change is reverted first.

    Returns a note about such cases, otherwise "".
    """
    while still_kept(run.iterations):
        run.setup.progress("check", 0, None, "hostile shapes and data")
        wrong = checker.wrong_cases(run.incumbent)
        own = next((reason for case, reason in wrong.items() if not checker.wrong_cases(baseline, case)), "")
        if own:
            run.undo(own)
        else:
            first = next(iter(wrong.values()), "")
            return f"on other shapes and data the untouched code is not correct either: {first}" if wrong else ""
    return ""


def finish(run: Bookkeeping, reasons: list[str], note: str | None) -> Optimized:
    """Writes the final metrics and the patch to the ledger, and returns the result."""
    setup = run.setup
    final = tuple(_with_moves(run, metrics) for metrics in setup.gate.final(run.incumbent))
    reasons += filter(None, [limit_of(final), *run.findings()])
    if undecided := sum(not iteration.decided for iteration in run.iterations):
        reasons.append(f"{undecided} not decided: the noise hid whether they are faster, so they were not kept")
    folder = setup.ledger.folder(setup.run.run)
    if found := escalation.causes(final):
        (folder / escalation.FILE).write_text(
            escalation.written(setup.run.task, setup.run.where, final, run.iterations), encoding="utf-8"
        )
        named = ", ".join(f"{workload} ({cause})" for workload, cause in found.items())
        reasons.append(f"a person is needed for {named}: {folder / escalation.FILE}")
    reasons += in_program(setup.builder.baseline, setup.workspace, run.incumbent, len(run.iterations))
    patch = run.end("; ".join(reasons), final)
    (folder / "changes.patch").write_text(patch)
    return Optimized(setup.ledger.run(setup.run.run), tuple(run.iterations), patch, folder, note)


def limit_of(final: Sequence[Metrics]) -> str:
    """Returns the limit of the workload that is furthest from its speed of light, in a few words; "" at the bound."""
    known = [(metrics.diagnosis, metrics.workload) for metrics in final if metrics.diagnosis is not None]
    diagnosis, workload = min(known, key=lambda each: each[0].share, default=(None, ""))
    if diagnosis is None or diagnosis.at_the_bound:
        return ""
    return f"{workload}, at {diagnosis.share:.0%} of the speed of light, is limited by {diagnosis.limit.resource}"


def _with_moves(run: Bookkeeping, metrics: Metrics) -> Metrics:
    """Adds what became of each change that the user named, or that would ease the limit if the bound is not reached."""
    diagnosis, named = metrics.diagnosis, run.setup.options.only
    if diagnosis is None:
        return metrics
    eased = "" if diagnosis.at_the_bound else diagnosis.limit.resource
    entries = [each for each in run.setup.entries if each.about.id in named or eased in each.about.eases]
    if not entries:
        return metrics
    waiting, ruled_out = {proposal.entry for proposal in run.ranked()}, [*run.ruled_out]
    for iteration in run.iterations:
        ruled_out += iteration.ruled_out
    moves = [
        Move(
            entry.about.id,
            outcome_of(entry.about, run.iterations, ruled_out, entry.about.id in waiting, run.why_not(entry)),
        )
        for entry in entries
    ]
    return replace(metrics, diagnosis=replace(diagnosis, moves=tuple(moves)))


def outcome_of(
    about: EntryDescription, iterations: Sequence[Iteration], ruled_out: Sequence[str], waiting: bool, why_not: str = ""
) -> str:
    """Returns what became of an entry in a run, with the reason.

    ruled_out: sites that left no variant to judge, as the iterations list them.
    waiting: whether the entry has a site that was not tried.
    why_not: why the entry has no site in this kernel, if it knows the reason (`Entry.why_not`).
    """
    for iteration in reversed(iterations):
        if iteration.entry == about.id:
            value = f" ({iteration.value})" if iteration.value else ""
            return f"{TRIED[iteration.shown_status]}{value}: {iteration.reason}"
    for text in ruled_out:
        if text.startswith(f"{about.name}: "):
            return f"not possible: {text.removeprefix(f'{about.name}: ')}"
    if waiting:
        return "not tried: the run ended before"
    if why_not:
        return f"does not apply here: {why_not}"
    if about.risk == "lossy":
        return "not tried: it rounds differently, so it needs --allow-lossy"
    return f"does not apply here; it is for: {about.when}"


TRIED = {"keep": "kept", "revert": "reverted", "crash": "failed", "waits": "waits for a GPU"}
