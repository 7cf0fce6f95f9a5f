"""Makes cases from measurements of `optimize`: each kind of change that was kept, with its gain, or reverted.

A kept and measured change becomes a case with all six fields of its measurement. A change that was measured and
reverted becomes a counter-signal in the case of its kind. Predictions are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tilewright.coordinate.casebook.case import Measurement, Precedent
from tilewright.errors import StorageError
from tilewright.ledger.file import home
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.records import Iteration, RunRecord, still_kept
from tilewright.ledger.runs import LedgerFile

RUNS = 50
"""The number of newest runs that are read."""
FAMILY = "kernel-and-fusion"
BOUNDS = {"memory": "memory-bound", "compute": "compute-bound"}


def from_ledger(path: Path | None = None) -> tuple[Precedent, ...]:
    """Returns the cases of the newest runs of `optimize` in a ledger. Returns none if the ledger cannot be read."""
    if not (path or home() / "ledger.db").exists():
        return ()
    try:
        with LedgerFile(path) as file:
            names = [run.run for run in file.runs() if run.command == "optimize" and run.measured][:RUNS]
        with Ledger(path) as ledger:
            runs = [(ledger.run(name), tuple(ledger.iterations(name))) for name in names]
    except StorageError:
        return ()
    return tuple(case for run, iterations in runs for case in cases_of(run, iterations))


def cases_of(run: RunRecord, iterations: Iterable[Iteration]) -> Iterator[Precedent]:
    """Yields a case for each kind of change of a measured run that was kept, or measured and reverted."""
    if not run.measured:
        return
    every = list(iterations)
    kept = [one for one in still_kept(every) if one.entry and one.gain is not None]
    reverted = [one for one in every if one.entry and one.status == "revert" and one.decided and one.gain is not None]
    for entry in dict.fromkeys(one.entry for one in (*kept, *reverted)):
        mine = [one for one in kept if one.entry == entry]
        yield _case(run, entry, mine, [one for one in reverted if one.entry == entry])


def _case(run: RunRecord, entry: str, kept: list[Iteration], reverted: list[Iteration]) -> Precedent:
    measured = tuple(known for one in kept if (known := _measurement(run, one)) is not None)
    slug = slug_of(f"{run.task} {entry} {run.machine.gpu or run.machine.arch} {run.run}")
    bound = BOUNDS.get(run.kind, "latency-bound")
    return Precedent(
        family=FAMILY, slug=slug, id=f"case-{slug}", maturity="verified-locally" if measured else "stub",
        bottleneck=(bound,), signals=(bound, f"kernel {run.kernel}"), architectures=(run.machine.arch,),
        knobs=(entry,), apply_via_kind="kernel-change", measured=measured,
        accuracy_risk="lossy" if any(one.risk == "lossy" for one in kept) else "lossless",
        body=_body(run, entry, kept, reverted), where=f"run {run.run}",
    )  # fmt: skip


def _measurement(run: RunRecord, one: Iteration) -> Measurement | None:
    """Returns the measurement with all six fields. Returns None if a field is unknown."""
    workloads = ", ".join(outcome.workload for outcome in one.outcomes if outcome.ratio is not None)
    date, gpu = run.started[:10], run.machine.gpu
    if one.gain is None or not (gpu and workloads and run.run and date):
        return None
    metric = "speed-up over the version before, geometric mean"
    reference = f"run {run.run}, iteration {one.n}"
    return Measurement(metric=metric, value=one.gain, gpu=gpu, workload=workloads, run_ref=reference, date=date)


def _body(run: RunRecord, entry: str, kept: list[Iteration], reverted: list[Iteration]) -> str:
    outcome = "helped" if kept else "did not help"
    parts = {
        "Applies when": f"The kernel {run.kernel} of task {run.task} on {run.machine.gpu or run.machine.arch}.",
        "Counter-signals": _lines(reverted) or "None was measured.",
        "Apply via": f"tilewright optimize {run.where or run.task} --only {entry}",
        "Expected effect": _lines(kept) or "None: it was measured and reverted.",
        "Verify": f"- `tilewright report {run.run}`\n- `{run.reproduce or f'tilewright optimize {run.where}'}`",
        "Rollback": "`optimize` reverts what is not faster beyond the noise.",
    }
    return markdown_of(f"{entry.replace('_', ' ')} {outcome} in {run.task}", parts)


def _lines(iterations: list[Iteration]) -> str:
    return "\n".join(f"- iteration {one.n}: {one.gain:.3f}×, {one.optimization}: {one.reason}" for one in iterations)


def markdown_of(title: str, sections: Mapping[str, str]) -> str:
    """Returns the body of a case. ``sections``: title of a section → its text."""
    return f"# {title}\n\n" + "\n\n".join(f"## {name}\n{text}" for name, text in sections.items()) + "\n"


def slug_of(text: str) -> str:
    """Turns a string into a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
