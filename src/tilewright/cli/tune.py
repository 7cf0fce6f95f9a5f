"""`tilewright tune`: finds the best configuration for each workload."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tilewright.cli import shared, terminal
from tilewright.errors import RequestError

if TYPE_CHECKING:
    from tilewright.hardware.architectures import Board
    from tilewright.ledger.tunings import TuneLedger
    from tilewright.task.task import Task

DEFAULT_TOP = 10
DEFAULT_TIE_BAND = 0.01
"""The defaults of `tune` and of `rules.Policy`, repeated here so that `--help` does not import those modules."""

Top = Annotated[int, typer.Option(min=1, help="How many of the candidates predicted fastest are raced.")]
_STRATEGY = (
    "What is compiled: exhaustive (all), halving, local, bayesian.  "
    "[default: by size, without what is expected to be slow]"
)
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
    where: shared.Where, arch: shared.Archs = None, workload: shared.Workloads = None,
    budget: shared.Budget = shared.DEFAULT_BUDGET, jobs: shared.Jobs = None, top: Top = DEFAULT_TOP,
    strategy: Strategy = None, seconds: Seconds = None, candidates: Candidates = None,
    l2: shared.L2 = "cold", launch: shared.How = "graph",
    tie_band: TieBand = DEFAULT_TIE_BAND, seeds: Seeds = None, shrink: Shrink = False, seed: Seed = None,
    fresh: shared.Fresh = False, store: StorePath = None, no_store: NoStore = False, into: Into = None,
    on: shared.Ons = None, show_all: shared.All = False, as_json: shared.AsJson = False,
) -> None:  # fmt: skip
    """Finds the best configuration for each workload, with its evidence.

    With a GPU, the candidates that are predicted to be fastest are verified and raced. Without a GPU, times are
    predicted, not measured. Several architectures, or several kinds of GPU, are tuned at once.

    Example: `tilewright tune examples/fmha.py --workload causal --top 8`
    """
    from tilewright.race.rules import Policy
    from tilewright.tune import tune as tuning
    from tilewright.tune.run import TuneOptions
    from tilewright.tune.workload_search import Limits

    policy, limits = Policy(l2=l2, launch=launch, tie_band=tie_band, seed=seed or 0), Limits(seconds, candidates)
    options = TuneOptions(workload, policy, top, strategy, limits, seeds, jobs, budget, seed, fresh)
    archs = (None,) if arch is None else shared.architectures(arch)
    executors, ledger = [shared.elsewhere(each) for each in on or [shared.HERE]], _ledger(store, no_store)
    with (
        ledger as results, shared.resumable(results, fresh), tuning.closed_at_end(executors),
        shared.progress(as_json) as progress,
    ):  # fmt: skip
        task = shared.loaded(where)
        kinds = tuning.gpu_kinds(task, archs, executors)
        task.selected(workload)  # a name that is no workload's is refused before anything is written
        if results:
            from tilewright.optimize.versions.leftovers import prune_killed

            prune_killed(task.file.parent if task.file else Path.cwd(), results.path.parent)
        if into is not None:
            from tilewright.runtime.dispatch.table import prepare_table

            prepare_table(task, into)
        for target in (kind.target for kind in kinds):
            if target.note:
                terminal.note(target.note)
            _examine(task.on(target.board.arch), target.board, workload, shrink)
        found = tuning.tune_kinds(task, kinds, options, results, progress)
    from tilewright.cli.tune_output import TuneOutput  # the first compilers do not wait for what it loads

    code = TuneOutput(where, shrink, into, results, show_all, as_json).print(task, kinds, found, workload)
    if code:
        raise typer.Exit(code)


def _examine(task: Task, board: Board, workload: list[str] | None, shrink: bool) -> None:
    """Notes and refuses, before the work, what is wrong with the task on one kind of GPU."""
    from tilewright.compile.compile import refuse_broken_task

    selected = task.selected(workload)
    shared.note_dropped_values(task, board.sm, selected)
    refuse_broken_task(task, board, selected)
    if shrink and len(task.space.every_shipped) > 1:
        raise RequestError("--shrink is for a task with one space; this one has several implementations")


def _ledger(store: Path | None, no_store: bool) -> AbstractContextManager[TuneLedger | Literal[False]]:
    """Returns a context manager for the ledger that stores the results; its value is False with ``--no-store``."""
    if no_store and store is not None:
        raise RequestError("--store and --no-store exclude each other; give one of them")
    if no_store:
        return nullcontext(False)
    from tilewright.ledger.tunings import TuneLedger

    return TuneLedger(store, variable="--store" if store else "TILEWRIGHT_HOME")
