"""`tilewright tune`: finds the best configuration for each workload."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tilewright.cli import config_files, shared, terminal
from tilewright.cli.exit_codes import NO
from tilewright.errors import RequestError

if TYPE_CHECKING:
    from tilewright.hardware.architectures import Board
    from tilewright.ledger.tunings import TuneLedger
    from tilewright.records import TuningResult
    from tilewright.task.task import Task

REMOVE = "fix: another folder, or remove the file"
DEFAULT_TOP = 10
DEFAULT_TIE_BAND = 0.01
"""The defaults of `tune` and of `rules.Policy`, repeated here so that `--help` does not import those modules."""

Top = Annotated[int, typer.Option(min=1, help="How many of the candidates predicted fastest are raced.")]
_STRATEGY = "What is compiled: exhaustive, halving, local, bayesian.  [default: by size]"
Strategy = Annotated[str | None, typer.Option(metavar="NAME", help=_STRATEGY)]
Seconds = Annotated[float | None, typer.Option(help="Time limit of the whole run.  [default: none]")]
_CANDIDATES = "How many configurations are compiled for each workload, at most.  [default: by strategy]"
Candidates = Annotated[int | None, typer.Option(min=1, help=_CANDIDATES)]
TieBand = Annotated[float, typer.Option(help="Times within this fraction of the fastest count as tied.")]
_SEEDS = "Add candidates from: templates, heuristics. Several: templates,heuristics."
Seeds = Annotated[str | None, typer.Option(metavar="SOURCES", help=_SEEDS)]
Shrink = Annotated[bool, typer.Option("--shrink", help="Print a space of at most eight configurations to ship.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the inputs and of the race.  [default: drawn]")]
StorePath = Annotated[
    Path | None, typer.Option(metavar="PATH", help="The ledger for the results.  [default: .tilewright/ledger.db]")
]
_INTO = "Folder for the config file of the task, which tilewright.Dispatcher reads: DIR/TASK.json."
Into = Annotated[Path | None, typer.Option(metavar="DIR", help=_INTO)]
NoStore = Annotated[bool, typer.Option("--no-store", help="Store no results.")]


def tune(
    where: shared.Where, arch: shared.Arch = None, workload: shared.Workloads = None,
    budget: shared.Budget = shared.DEFAULT_BUDGET, jobs: shared.Jobs = None, top: Top = DEFAULT_TOP,
    strategy: Strategy = None, seconds: Seconds = None, candidates: Candidates = None,
    l2: shared.L2 = "cold", launch: shared.How = "graph",
    tie_band: TieBand = DEFAULT_TIE_BAND, seeds: Seeds = None, shrink: Shrink = False, seed: Seed = None,
    fresh: shared.Fresh = False, store: StorePath = None, no_store: NoStore = False, into: Into = None,
    on: shared.On = shared.HERE, show_all: shared.All = False, as_json: shared.AsJson = False,
) -> None:  # fmt: skip
    """Finds the best configuration for each workload, with its evidence.

    With a GPU, the candidates that are predicted to be fastest are verified and raced. Without a GPU, times are
    predicted, not measured.

    Example: `tilewright tune examples/fmha.py --workload causal --top 8`
    """
    from tilewright.compile.compile import refuse_broken_task
    from tilewright.hardware.gpu import detect
    from tilewright.hardware.machine import target_at, target_of
    from tilewright.race.rules import Policy
    from tilewright.task.loading import where_is
    from tilewright.tune import tune as tuning
    from tilewright.tune.shrink import shrink as shrunk_to

    policy = Policy(l2=l2, launch=launch, tie_band=tie_band, seed=seed or 0)
    executor, ledger = shared.elsewhere(on), _ledger(store, no_store)
    target = None if executor else target_of(arch, detect())
    with (
        ledger as results, shared.resumable(results, fresh), executor or nullcontext(),
        shared.progress(as_json) as progress,
    ):  # fmt: skip
        task = shared.loaded(where)
        if target is None:
            place = executor.place(where_is(task)) if executor else None
            target = target_at(arch, place) if place else target_of(arch, detect())
        task = task.on(target.board.arch)
        task.selected(workload)
        if results:
            from tilewright.optimize.versions.leftovers import prune_killed

            prune_killed(task.file.parent if task.file else Path.cwd(), results.path.parent)
        if into is not None:
            _refuse_table(task, into)
        if target.note:
            terminal.note(target.note)
        shared.note_dropped_values(task, target.board.sm, task.selected(workload))
        refuse_broken_task(task, target.board, task.selected(workload))
        if shrink and len(task.space.every_shipped) > 1:
            raise RequestError("--shrink is for a task with one space; this one has several implementations")
        result = tuning.tune(
            task, arch=arch, workloads=workload, policy=policy, top=top, strategy=strategy, jobs=jobs, budget=budget,
            seconds=seconds, candidates=candidates, seeds=seeds, seed=seed,
            store=results, fresh=fresh, executor=executor, progress=progress,
        )  # fmt: skip
    from tilewright.tune.advice import advice  # it loads the interpreter: the first compilers do not wait for that

    known = advice(task, task.selected(workload)[0], target.board)
    for line in [str(known), *known.missing] if known else []:
        terminal.note(line)
    rows = [candidate for workload in result.workloads for candidate in workload.candidates]
    if rows and not any(candidate.code for candidate in rows):
        raise RequestError(f"{rows[0].reason} (task '{task.name}': the kernel compiles for no configuration)")
    if as_json:
        from tilewright.tune.as_json import to_json

        shown = to_json(result) | {"advice": {**vars(known), "missing": list(known.missing)} if known else None}
        if shrink:
            shown["shrunk"] = [dict(kept.configuration) for kept in shrunk_to(result).kept]
        if into is not None:
            shown["file"], _ = _write_table(task, result, target.board, into)
        shared.print_json(shown)
        if not result.measured:
            terminal.note("predicted, not measured")
    else:
        from tilewright.cli.tune_ending import last_line, next_steps, shrunk_space

        _print_tuned(result, target.note, results, show_all)
        if into is not None:
            print(*_write_table(task, result, target.board, into)[1], sep="\n")
        shrunk = shrunk_space(shrunk_to(result), task.space, len(result.workloads)) if shrink else ()
        for line in shrunk:
            terminal.stdout().print(line, soft_wrap=True, markup=False, highlight=False)  # code is not wrapped
        for line in [*next_steps(result, known, where, shrink), last_line(result)]:
            terminal.stdout().print(line, markup=False, highlight=False)
    if any(workload.best is None for workload in result.workloads):
        raise typer.Exit(NO)


def _refuse_table(task: Task, into: Path) -> None:
    """Raises RequestError, before the work, if its config file could not be written, or would replace another file."""
    from tilewright.runtime.dispatch.table import module_of

    config_files.make_folder(into)
    config_files.earlier_at(config_files.path_of(into, task.name), task.name, module_of(task), REMOVE)


def _write_table(task: Task, result: TuningResult, board: Board, into: Path) -> tuple[str | None, list[str]]:
    """Writes the config file of the task. Returns its path, and lines about it; None if no workload has a winner."""
    from tilewright.runtime.dispatch.table import table_of
    from tilewright.runtime.store.config_file import PREDICTED
    from tilewright.runtime.store.exporting import as_json

    new, path = table_of(task, result, board), config_files.path_of(into, task.name)
    if new is None:
        return None, [f"no workload has a winner: {path} is not written"]
    content, kept = config_files.merged_into(path, new, REMOVE)
    config_files.write_whole(path, as_json(content))
    lines = [config_files.written(path, len(content["rows"]), task.name, kept)]
    if predicted := sum(row["label"].endswith(PREDICTED) for row in new["rows"]):
        lines.append(f"{predicted} new rows are predicted, not measured; fix: tune on a GPU of model {board.name}")
    return str(path), lines


def _print_tuned(result: TuningResult, note: str | None, results: TuneLedger | Literal[False], show_all: bool) -> None:
    from tilewright.cli.tune_table import tuned

    console, machine = terminal.stdout(), result.machine
    console.print(f"{result.task} on {machine.gpu or machine.arch}, {machine.host}")
    console.print(tuned(result, show_all))
    if results:
        console.print(
            f"stored as run {result.run} in {results.path}" if results.is_there()
            else f"not stored: {results.path} was removed during the run"
        )  # fmt: skip
    console.print(f"{result.seconds['total']:.1f} s in all")
    if not result.measured:
        console.print(note or "no GPU here")
        console.print("predicted, not measured")


def _ledger(store: Path | None, no_store: bool) -> AbstractContextManager[TuneLedger | Literal[False]]:
    """Returns a context manager for the ledger that stores the results; its value is False with ``--no-store``."""
    if no_store and store is not None:
        raise RequestError("--store and --no-store exclude each other; give one of them")
    if no_store:
        return nullcontext(False)
    from tilewright.ledger.tunings import TuneLedger

    return TuneLedger(store, variable="--store" if store else "TILEWRIGHT_HOME")
