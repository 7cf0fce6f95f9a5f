"""`tilewright agent`: answers a performance question with verified changes of a program."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import shared, terminal
from tilewright.cli.shared import AsJson, print_json
from tilewright.errors import MachineError, RequestError

if TYPE_CHECKING:
    from tilewright.coordinate.agent_plan import AgentPlan
    from tilewright.coordinate.kernel_questions import KernelQuestion
    from tilewright.coordinate.run_book import RunBook
    from tilewright.ledger.agent_records import AgentParts, AgentRun
    from tilewright.ledger.agent_runs import AgentLedger
    from tilewright.ledger.codec import Encodable

DEFAULT_SECONDS, DEFAULT_RUN_SECONDS = 900.0, 300.0

Question = Annotated[str | None, typer.Argument(metavar="QUESTION", help="What you want, in English.")]
Command = Annotated[
    str | None, typer.Option(metavar="LINE", help='Your command, such as "python train.py --steps 20".')
]
Analysis = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Work through this analysis.")]
Yes = Annotated[bool, typer.Option("--yes", help="Run the plan without asking.")]
Lossy = Annotated[bool, typer.Option("--allow-lossy", help="Also try changes that round differently, such as TF32.")]
Seconds = Annotated[float, typer.Option(min=1.0, help="Time limit. What does not fit into it is not tried.")]
RunSeconds = Annotated[float, typer.Option(min=1.0, help="The longest run of your program.")]
Undo = Annotated[str | None, typer.Option("--undo", metavar="RUN", help="Take back all changes of this run.")]


def agent(
    context: typer.Context,
    question: Question = None, command: Command = None, report: Analysis = None, yes: Yes = False,
    allow_lossy: Lossy = False, seconds: Seconds = DEFAULT_SECONDS, run_seconds: RunSeconds = DEFAULT_RUN_SECONDS,
    undo: Undo = None, on: shared.On = shared.HERE, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Makes a program faster: makes a plan, asks you, and tries one change at a time.

    Each change is tried on a copy of the program. A change reaches your files only if the results stay the same and the
    program is faster. Without a terminal, only the plan is shown. The same command resumes an interrupted run.

    Example: `tilewright agent "speed up train.py"`

    Example: `tilewright agent "speed up train.py" --command "python train.py --steps 20" --yes`

    A question for a new kernel needs no program. The kernel is written, checked and tuned in Tilewright's folder.

    Example: `tilewright agent "Write a TileIR kernel for fused SiLU-mul" --yes`
    """
    if undo is not None:
        undone = "--undo restores files of this machine; fix: leave --on out"
        shared.run_elsewhere(context, on, refused=undone)
        _undo(undo)
        return
    if command == "":
        raise RequestError("--command is empty; name the program, e.g. python train.py")
    from tilewright.coordinate import agent_plan
    from tilewright.coordinate.kernel_questions import kernel_question

    asked = kernel_question(question or "") if not command and report is None else None
    request = agent_plan.AgentRequest(question or "", command or "", report, allow_lossy)
    if on != shared.HERE and asked is None:
        agent_plan.program_of(request)  # a mistake in the request is found before a connection is made
    shared.run_elsewhere(context, on, None, [report])
    if asked is not None:
        _kernel(asked, yes, as_json)
        return
    plan = agent_plan.planned(request)
    if not as_json:
        for line in agent_plan.lines_of(plan):
            print(line)
        sys.stdout.flush()
    if not (yes or _agreed(as_json)):
        if as_json:
            print_json({"plan": _plan_json(plan), "run": None})
        return
    for line in () if as_json else agent_plan.analysed_here(plan):
        print(line)
    agent_plan.refuse_what_is_not_here(plan)
    run, parts = _worked(plan, seconds, run_seconds, as_json)
    if as_json:
        print_json({"plan": _plan_json(plan), "run": run, "parts": parts})
        return
    from tilewright.cli import agent_table

    for line in agent_table.lines(run, parts):
        print(line)


def _kernel(asked: KernelQuestion, yes: bool, as_json: bool) -> None:
    """Answers a question that asks for a new kernel. With ``yes``, runs the plan without asking."""
    from tilewright.cli.kernel_answers import answered

    if not as_json:
        print(asked)
        sys.stdout.flush()
    if yes or _agreed(as_json):
        answered(asked, as_json)
    elif as_json:
        print_json({"question": asked.question, "specialists": [each.specialist for each in asked.delegations]})


def _agreed(as_json: bool) -> bool:
    if as_json or not sys.stdin.isatty():
        terminal.note("planned only: nothing was run or changed; run it with --yes")
        return False
    return typer.confirm("Run this plan?", err=True)


def _worked(plan: AgentPlan, seconds: float, run_seconds: float, as_json: bool) -> tuple[AgentRun, AgentParts]:
    """Runs a plan, or continues the interrupted run of the same plan. Returns the run and its records."""
    from tilewright.coordinate.coordinator import Coordinator, Hands
    from tilewright.coordinate.run_book import RunBook
    from tilewright.ledger.agent_runs import AgentLedger
    from tilewright.ledger.file import home
    from tilewright.optimize.versions.journal import Journal
    from tilewright.optimize.versions.leftovers import prune_killed
    from tilewright.optimize.versions.locks import in_progress
    from tilewright.program.trying import RACE_SECONDS, ProgramTrials

    root = plan.program.root
    if not os.access(root, os.W_OK):
        raise MachineError(f"{root} cannot be written, so no change could be kept; copy it to another folder")
    with AgentLedger() as ledger, shared.resumable(ledger, False), shared.progress(as_json) as bars:
        prune_killed(root, home().absolute())
        run, parts = _begun(plan, ledger)
        with in_progress(home().absolute(), run.run), Journal.open(root, run.run, home()) as journal:
            if not parts.items and not run.started:
                run = ledger.begin(run)
            race = min(RACE_SECONDS, seconds / 2)
            judge = ProgramTrials(plan.program, run_seconds=min(run_seconds, seconds), race_seconds=race, progress=bars)
            book: RunBook = RunBook(ledger, run, parts)
            done = Coordinator(plan, book, Hands(judge, journal), seconds=seconds, progress=bars).work()
        return done.run, done.parts


def _begun(plan: AgentPlan, ledger: AgentLedger) -> tuple[AgentRun, AgentParts]:
    """Returns the interrupted run of the same plan and its records. If there is none, returns a new run that has not
    started."""
    from tilewright.coordinate.agent_plan import record_of
    from tilewright.ledger.agent_records import AgentParts

    record = record_of(plan)
    if (found := ledger.resume(record.key)) is not None:
        terminal.note(f"resuming run {found[0].run}: {len(found[1].ends)} of {len(found[1].items)} items are done")
        return found
    return replace(record, run=ledger.new_name()), AgentParts()


def _undo(name: str) -> None:
    """Restores the user's files to their state before a run."""
    from tilewright.ledger.agent_runs import AgentLedger
    from tilewright.ledger.file import home
    from tilewright.optimize.versions.journal import Journal

    with AgentLedger() as ledger:
        if not ledger.runs():
            raise RequestError(f"{home()} has no run of the agent; start this in the folder of the run {name}, or set "
                               "TILEWRIGHT_HOME to the folder of its ledger")  # fmt: skip
        run, parts = ledger.load(name)
    files = dict.fromkeys(path for change in parts.kept for path in change.texts)
    if not files:
        raise RequestError(f"run {run.run} changed no file, so there is nothing to take back")
    with Journal.open(Path(run.root), run.run, home()) as journal:
        journal.revert_all()
    print(f"run {run.run} is taken back: {', '.join(files)}")


def _plan_json(plan: AgentPlan) -> dict[str, Encodable]:
    return {
        "question": plan.request.question, "mode": plan.mode, "specialists": plan.route.specialists,
        "why": plan.route.why, "casebook": plan.trace, "program": plan.program.words, "root": str(plan.program.root),
        "items": plan.items, "seen": plan.seen, "dismissed": plan.dismissed, "profile_first": plan.gpu,
        "missing": {name: [f"{need.what}: {need.detail}" for need in needs] for name, needs in plan.missing.items()},
    }  # fmt: skip
