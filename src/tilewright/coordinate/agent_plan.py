"""The plan of a run of `tilewright agent`: the work, the specialists who do it, and the reasons. It runs nothing.

    question → route → casebook → mode → items, ranked

If the question names a change, the mode is user-specified: there is one item, and its change is kept unless it is wrong
or clearly slower. In the other mode, autopilot finds the items itself: in an analysis, in a profile, or in the source.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.coordinate import autopilot
from tilewright.coordinate.analysis import Analysis, read_analysis_file
from tilewright.coordinate.casebook.book import casebook, remember
from tilewright.coordinate.facts import arch_here, execution_context, files_named_in, kernels_in
from tilewright.coordinate.plan import METRICS
from tilewright.coordinate.priority import WorkItem, ranked
from tilewright.coordinate.question import refuse_empty
from tilewright.coordinate.routing import Route, route
from tilewright.errors import MachineError, RequestError, TilewrightError
from tilewright.hardware.gpu import detect
from tilewright.hardware.machine import machine_of, target_of
from tilewright.ledger.agent_records import AgentFinding, AgentMode, AgentRun
from tilewright.ledger.codec import Encodable
from tilewright.ledger.file import key_of
from tilewright.program.command import ProgramCommand
from tilewright.program.reading.reach import reached_modules
from tilewright.remote import on_words
from tilewright.source.source_file import SourceFile
from tilewright.specialists import specialist_of
from tilewright.specialists.base import Need
from tilewright.specialists.delegation import Delegation


@dataclass(frozen=True)
class AgentRequest:
    """The request of the user. ``command``: the program, if the question does not name it."""

    question: str
    command: str = ""
    analysis: Path | None = None
    lossy: bool = False
    """Whether changes that change the rounding may be kept."""
    cwd: Path = field(default_factory=Path.cwd)


@dataclass(frozen=True)
class AgentPlan:
    """The plan of a run. ``dismissed``: recommendations for which there is no work, with the reason."""

    request: AgentRequest
    program: ProgramCommand
    route: Route
    mode: AgentMode
    trace: str
    """The line that records which case of the casebook (documented optimisations) was found."""
    items: tuple[WorkItem, ...]
    context: str
    """The environment of the work. Each delegation contains this text."""
    dismissed: tuple[AgentFinding, ...] = ()
    analysis: Analysis | None = None
    gpu: bool = False
    """Whether a profile comes first. Its findings then become items, too."""
    records: bool = False
    """Whether the operations of one run are recorded. What is found in them becomes items, too."""

    @property
    def missing(self) -> dict[str, tuple[Need, ...]]:
        """Specialist → the requirements that this machine does not meet."""
        names = dict.fromkeys(name for item in self.items for name in item.specialists)
        lacking = {name: tuple(need for need in specialist_of(name).needs() if not need.met) for name in names}
        return {name: needs for name, needs in lacking.items() if needs}

    @property
    def seen(self) -> tuple[str, ...]:
        """What the source shows about the question, a line each, if the question names a specialist's domain."""
        if self.mode == "autopilot" or self.program.script.suffix != ".py":
            return ()
        return tuple(line for name in self.route.specialists for line in specialist_of(name).seen(self.program.script))


def planned(request: AgentRequest) -> AgentPlan:
    """Makes the plan. Reads the program and runs nothing.

    Raises RequestError if the question is not about performance, if it names no program, or if the analysis is
    malformed.
    """
    program = program_of(request)
    chosen = classified(request, program)
    answer = casebook().ask(request.question)
    remember(answer)
    analysis = None if request.analysis is None else read_analysis_file(request.analysis)
    autopilots = analysis is not None or chosen.vague
    items, dismissed = _work(request, program, chosen, analysis) if autopilots else ([_asked(request, chosen)], ())
    return AgentPlan(
        request=request, program=program, route=chosen, mode="autopilot" if autopilots else "user-specified",
        trace=answer.trace, items=ranked(items), context=_context(program), dismissed=tuple(dismissed),
        analysis=analysis, gpu=autopilots and analysis is None and detect() is not None,
        records=autopilots and analysis is None and _uses_torch(program),
    )  # fmt: skip


def _uses_torch(program: ProgramCommand) -> bool:
    """Whether a file of the program names torch."""
    if program.script.suffix != ".py":
        return False
    return any("torch" in module.text for module in reached_modules(program.script, program.root))


def classified(request: AgentRequest, program: ProgramCommand) -> Route:
    """Returns the route of the question. Raises RequestError if the question is not about performance."""
    kernels = kernels_in(program.script) if program.script.suffix == ".py" else None
    found = route(request.question, kernels, arch_here)
    if not found.specialists:
        raise _no_question(found, program.script.name)
    return found


def program_of(request: AgentRequest) -> ProgramCommand:
    """Returns the program of a request. Raises RequestError if there is no question, or no such program."""
    refuse_empty(request.question)
    if request.command:
        return _readable(ProgramCommand.of(request.command, request.cwd))
    named = files_named_in(request.question, request.cwd)
    if len(named) > 1:
        raise RequestError(f"the question names {', '.join(named)}; name one, or add --command 'python {named[0]}'")
    if named:
        return _readable(ProgramCommand.of(named, request.cwd))
    if not (chosen := route(request.question, None, arch_here)).specialists:
        raise _no_question(chosen, "train.py")
    raise RequestError('the question names no program; add it: --command "python train.py --steps 20"')


def _readable(program: ProgramCommand) -> ProgramCommand:
    """Returns the program. Raises RequestError if Python could not read its script either."""
    if program.script.suffix == ".py":
        SourceFile.requested(program.script)
    return program


def _no_question(found: Route, script: str) -> RequestError:
    why = found.why.removeprefix("no performance question: ")
    return RequestError(f'no performance question: {why}; ask, for example, "speed up {script}"')


def _asked(request: AgentRequest, chosen: Route) -> WorkItem:
    return WorkItem("Q1", request.question, "High", specialists=chosen.specialists)


def _work(
    request: AgentRequest, program: ProgramCommand, chosen: Route, analysis: Analysis | None
) -> tuple[Sequence[WorkItem], Sequence[AgentFinding]]:
    if analysis is not None:
        return autopilot.items_of_analysis(analysis, str(request.analysis))
    sites = autopilot.items_of_source(program.script, request.question, constraints_of(request), _context(program))
    closed = autopilot.files_left_out(program.script)
    if detect() is None:
        return sites, closed
    return (*sites, *autopilot.items_of_kernels(program.python_files(), program.root)), closed


def constraints_of(request: AgentRequest) -> tuple[str, ...]:
    """Returns the conditions that each change must meet."""
    rounding = ("lossy changes are allowed",) if request.lossy else ()
    return ("outputs equal within the gate", *rounding)


def _context(program: ProgramCommand) -> str:
    return f"{execution_context()}; command: {program}; folder: {program.cwd}"


def refuse_what_is_not_here(plan: AgentPlan) -> None:
    """Raises MachineError if no specialist of the plan can work, because this machine does not meet their
    requirements."""
    if plan.mode == "autopilot":
        return
    missing = plan.missing
    lacking = {name: missing.get(name, ()) for name in plan.route.specialists if name != "profiling"}
    if lacking and all(lacking.values()) and "profiling" not in plan.route.specialists:
        said = "; ".join(f"{name} needs {needs[0].what} ({needs[0].detail})" for name, needs in lacking.items())
        raise MachineError(f"this machine cannot do that: {said}; run it on a machine that meets these needs")


def analysed_here(plan: AgentPlan) -> Iterator[str]:
    """Yields what specialists find about the program although this machine does not meet their needs, a line each.

    They may run a copy of the program.
    """
    for name in plan.missing if plan.mode == "user-specified" else ():
        specialist = specialist_of(name)
        if specialist.analyses_anywhere:
            program = plan.program
            asked = Delegation(
                name, plan.request.question, str(program), METRICS, str(program.script), context=plan.context
            )
            try:
                found = specialist.answer(asked)
            except TilewrightError as error:
                yield f"{name}: {error}"
                continue
            yield f"{name}: {found.summary}"
            yield from (f"  {text}" for text in found.findings.values())


def record_of(plan: AgentPlan) -> AgentRun:
    """Returns the ledger's record of a new run."""
    request, program = plan.request, plan.program
    key: dict[str, Encodable] = {
        "question": request.question, "words": program.words, "cwd": str(program.cwd), "lossy": request.lossy,
        "analysis": str(plan.analysis or ""), "agent": 1,
    }  # fmt: skip
    target = target_of(None, detect())
    return AgentRun(
        key=key_of(key), task=program.script.name, machine=machine_of(target), measured=True,
        board=target.board.name, where=str(program.script), reproduce=command_line(request),
        question=request.question, mode=plan.mode, program=program.words, root=str(program.root),
        specialists=plan.route.specialists, why=plan.route.why, trace=plan.trace,
        bottleneck=plan.analysis.bottleneck if plan.analysis else "",
        bottleneck_evidence=plan.analysis.evidence if plan.analysis else "",
        context=plan.context, options={"lossy": request.lossy},
    )  # fmt: skip


def command_line(request: AgentRequest) -> str:
    """Returns the command that repeats the run."""
    words = ["tilewright", "agent", request.question]
    words += ["--command", request.command] if request.command else []
    words += ["--report", str(request.analysis)] if request.analysis else []
    words += ["--allow-lossy"] if request.lossy else []
    return shlex.join([*words, "--yes", *on_words()])


def lines_of(plan: AgentPlan) -> Iterator[str]:
    """Yields the lines of the plan for a person."""
    yield f"Question: {plan.request.question}"
    yield f"Route: {', then '.join(plan.route.specialists)} ({plan.route.why})"
    yield plan.trace
    yield f"Program: {plan.program} in {plan.program.cwd}"
    yield f"Mode: {plan.mode}"
    if plan.gpu:
        yield "First: a profile; each of its findings becomes an item, or is dismissed with its evidence"
    if plan.records:
        yield "Also: one run that records the operations of the program; each of its findings belongs to an item"
    if plan.items:
        yield "Plan:"
    elif plan.gpu or plan.records:
        more = "the profile" if plan.gpu else "the recorded run"
        yield f"Plan: nothing that would make this program faster was found in its source; {more} may find more"
    else:
        yield "Plan: nothing that would make this program faster was found in its source, so it is not run"
    for number, item in enumerate(plan.items, 1):
        yield f"  {number}. {item.id} [{item.impact}] {item.text} ({', then '.join(item.specialists)})"
    for line in plan.seen:
        yield f"  in the source: {line}"
    for each in plan.dismissed:
        yield f"  left out: {each.text}: {each.dismissed}"
    if not (plan.items or plan.gpu or plan.records):
        return
    if detect() is None:
        yield "No GPU here: the program is measured on this CPU, if it runs on one."
    for name, needs in plan.missing.items():
        if name == autopilot.MEASURES:
            continue
        yield f"  {name} lacks here: {'; '.join(f'{need.what} ({need.detail})' for need in needs)}"
    yield "Each change: baseline, backup, prerequisites, implement, validate, correctness, finish."
    yield "A change is judged on a copy of the program; what is not faster and right never reaches your files."
