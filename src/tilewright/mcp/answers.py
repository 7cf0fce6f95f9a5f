"""The tools that answer at once: route, plan, report and casebook. They run no program and no compiler."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.errors import RequestError
from tilewright.mcp.replies import CasebookReply, MatchingCase, PlannedItem, PlanReply, ReportReply, RouteReply, picked

if TYPE_CHECKING:
    from tilewright.coordinate.casebook.recall import Match
    from tilewright.coordinate.kernel_questions import KernelQuestion


def route(question: str, file: str | None = None, arch: str | None = None) -> RouteReply:
    """Names the specialists for a question. Raises RequestError for no question, an unknown architecture or file."""
    from tilewright.coordinate import facts, routing
    from tilewright.coordinate.question import refuse_empty
    from tilewright.hardware.architectures import architecture

    refuse_empty(question)
    kernels = facts.kernels_in(Path(file)) if file else facts.kernels_named_in(question)
    found = routing.route(question, kernels, architecture(arch).name if arch else facts.arch_here)
    return picked(RouteReply, vars(found), question=question, kernels=dict(kernels.languages) if kernels else {})


def plan(
    question: str, command: str | None = None, analysis: str | None = None, allow_lossy: bool = False
) -> PlanReply:  # fmt: skip
    """Makes the plan of `tilewright agent`. Raises RequestError if the question is not about performance or names no
    program."""
    from tilewright.coordinate import agent_plan
    from tilewright.coordinate.kernel_questions import kernel_question

    if not command and analysis is None and (asked := kernel_question(question)) is not None:
        return _new_kernel(asked)
    request = agent_plan.AgentRequest(question, command or "", Path(analysis) if analysis else None, allow_lossy)
    found = agent_plan.planned(request)
    missing = {name: tuple(f"{need.what}: {need.detail}" for need in needs) for name, needs in found.missing.items()}
    return PlanReply(
        question=question, mode=found.mode, specialists=found.route.specialists, why=found.route.why,
        casebook=found.trace, program=str(found.program),
        items=tuple(picked(PlannedItem, vars(item)) for item in found.items),
        dismissed=tuple(f"{each.text}: {each.dismissed}" for each in found.dismissed), missing=missing,
        run=agent_plan.command_line(request),
    )  # fmt: skip


def _new_kernel(asked: KernelQuestion) -> PlanReply:
    from tilewright.coordinate.casebook.book import casebook as cases

    return PlanReply(
        question=asked.question, mode="new kernel", specialists=tuple(each.specialist for each in asked.delegations),
        why=asked.why, casebook=cases().ask(asked.question).trace, program="", items=(), dismissed=(), missing={},
        run=shlex.join(["tilewright", "agent", asked.question, "--yes"]),
    )  # fmt: skip


def report(run: str = "latest") -> ReportReply:
    """Returns the evidence of a run. Raises RequestError if the ledger has no such run.

    Refuses a task file too: to find its newest run, the code of the file would have to run in this process.
    """
    if ".py" in run:
        raise RequestError(f"{run} is a file; give the name of a run, its beginning, or latest")
    from tilewright.report.report import report as evidence_of
    from tilewright.report.tune_evidence import TuneEvidence

    evidence = evidence_of(run)
    patch = None if isinstance(evidence.details, TuneEvidence) else evidence.patch
    return ReportReply(run=evidence.run, markdown=evidence.markdown(), patch=patch)


def casebook(question: str, top: int = 3) -> CasebookReply:
    """Finds documented cases for a question, and remembers the question in the statistics of the casebook."""
    from tilewright.coordinate.casebook import book

    found = book.casebook()
    answer = found.ask(question, top)
    book.remember(answer)
    return CasebookReply(trace=answer.trace, matches=tuple(map(_case, answer.matches)), problems=found.problems)


def _case(match: Match) -> MatchingCase:
    case = match.case
    facts = {"name": case.name, "title": case.title, "sections": case.shown, **vars(case)}
    return picked(MatchingCase, facts, confidence=match.confidence, measured=tuple(map(str, case.measured)))
