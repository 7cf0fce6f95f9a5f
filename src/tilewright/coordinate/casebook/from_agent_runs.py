"""Makes cases from runs of `agent`: each kind of change that was kept, with its gain, or raced and dropped.

A kept change that was raced on a GPU becomes a case with all six fields of its measurement. A change that was raced and
dropped becomes a counter-signal in the case of its kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tilewright.coordinate.casebook.case import Measurement, Precedent
from tilewright.coordinate.casebook.from_ledger import markdown_of, slug_of
from tilewright.errors import StorageError
from tilewright.ledger.agent_records import AgentChange, AgentMeasurement, AgentParts, AgentRun
from tilewright.ledger.agent_runs import AgentLedger
from tilewright.ledger.file import home

RUNS = 10
"""The number of newest runs that are read. Each question reads them; one run takes some milliseconds."""


def from_agent_runs(path: Path | None = None) -> tuple[Precedent, ...]:
    """Returns the cases of the newest runs of `agent` in a ledger. Returns none if the ledger cannot be read."""
    if not (path or home() / "ledger.db").exists():
        return ()
    try:
        with AgentLedger(path) as ledger:
            names = [run.run for run in ledger.runs()][:RUNS]
            runs = [ledger.load(name) for name in names]
    except StorageError:
        return ()
    return tuple(case for run, parts in runs for case in cases_of(run, parts))


def cases_of(run: AgentRun, parts: AgentParts) -> Iterator[Precedent]:
    """Yields a case for each kind of change that a run has raced."""
    races = {each.change: each for each in parts.measurements if each.kind == "race" and each.ratio is not None}
    raced = [change for change in parts.changes if change.id in races]
    kept = {change.id for change in parts.kept}
    for name in dict.fromkeys(change.name for change in raced):
        mine = [(change, races[change.id]) for change in raced if change.name == name]
        helped = [each for each in mine if each[0].id in kept]
        yield _case(run, name, helped, [each for each in mine if each[0].id not in kept])


Raced = tuple[AgentChange, AgentMeasurement]


def _case(run: AgentRun, name: str, helped: list[Raced], dropped: list[Raced]) -> Precedent:
    measured = tuple(known for _, race in helped if (known := _measurement(run, race)) is not None)
    slug = slug_of(f"{run.task} {name} {run.machine.gpu or 'cpu'} {run.run}")
    return Precedent(
        family="runtime-execution", slug=slug, id=f"case-{slug}", maturity="verified-locally" if measured else "stub",
        bottleneck=("latency-bound",), signals=(f"program {run.task}", name.replace("_", " ")),
        architectures=(run.machine.arch,), knobs=(name,), apply_via_kind="code-change", measured=measured,
        specialists=tuple(dict.fromkeys(change.specialist for change, _ in (*helped, *dropped))),
        accuracy_risk="lossy" if any(change.risk == "lossy" for change, _ in helped) else "lossless",
        body=_body(run, name, helped, dropped), where=f"run {run.run}",
    )  # fmt: skip


def _measurement(run: AgentRun, race: AgentMeasurement) -> Measurement | None:
    """Returns the measurement with all six fields. Returns None for a measurement on a CPU."""
    if race.ratio is None or run.machine.gpu is None:
        return None
    return Measurement(metric="speed-up of a step over the version before", value=1 / race.ratio.centre,
                       gpu=run.machine.gpu, workload=" ".join(run.program), run_ref=race.id,
                       date=run.started[:10])  # fmt: skip


def _body(run: AgentRun, name: str, helped: list[Raced], dropped: list[Raced]) -> str:
    outcome = "helped" if helped else "did not help"
    parts = {
        "Applies when": f"{next(change for change, _ in (*helped, *dropped)).rationale} Program {run.task}.",
        "Counter-signals": _lines(dropped) or "None was measured.",
        "Apply via": f'tilewright agent "speed up {run.task}"',
        "Expected effect": _lines(helped) or "None: it was raced and dropped.",
        "Verify": f"- `tilewright report {run.run}`\n- `{run.reproduce}`",
        "Rollback": f"`tilewright agent --undo {run.run}`",
    }
    return markdown_of(f"{name.replace('_', ' ')} {outcome} in {run.task}", parts)


def _lines(raced: list[Raced]) -> str:
    return "\n".join(f"- {change.site}: {race.ratio} of the time before, on {race.device}" for change, race in raced)
