"""The verdict of a check, its JSON, and the command that repeats a failing case.

``correct`` means that every workload was compared and no mistake was found. One wrong case makes the verdict
``incorrect``. Cases that were not compared are listed with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from tilewright.ledger.codec import Encodable
from tilewright.printable import plural
from tilewright.records import Configuration, Correctness
from tilewright.space.union import IMPLEMENTATION
from tilewright.verify.cases import shell_word
from tilewright.verify.examining import Examiner, Result
from tilewright.verify.planning import Planned, Scope

if TYPE_CHECKING:
    from tilewright.tileir.watch.findings import Finding

WORDS = get_args(Correctness)  # from the best to the worst


@dataclass(frozen=True)
class Verdict:
    """The result of a check."""

    verdict: Correctness
    reason: str
    engine: str
    task: str
    seed: int
    configurations: tuple[Configuration, ...]
    results: tuple[Result, ...]
    unverified: tuple[str, ...]  # cases that were not compared, each with its reason
    findings: tuple[Finding, ...]
    yardstick: str  # the implementation whose error sets the allowed error
    smallest: Result | None  # the smallest failing case
    shipped: Configuration
    seconds: float
    tools: tuple[str, ...] = ()  # one line from each other tool that watched a case

    def __str__(self) -> str:
        return f"{self.task}: {self.verdict}, {self.reason}"


def report(
    examiner: Examiner, scope: Scope, planned: Sequence[Planned], results: Sequence[Result],
    skipped: Sequence[tuple[Planned, str]], smallest: Result | None, seconds: float,
) -> Verdict:  # fmt: skip
    """Returns the verdict of all cases. ``results``: cases that ran. ``skipped``: the other cases, each with its
    reason."""
    task, (word, reason) = examiner.task, _word(examiner, planned, results, skipped)
    if examiner.engine.stand_in and word != "unverified":
        reason = f"{examiner.engine.stand_in}; {reason}"
    return Verdict(
        word, reason, examiner.engine.name, task.name, scope.seed, tuple(scope.configurations), tuple(results),
        tuple(_not_compared(examiner, results, skipped)), _findings(results), examiner.reference.yardstick, smallest,
        task.space.shipped, seconds,
    )  # fmt: skip


def _word(
    examiner: Examiner, planned: Sequence[Planned], results: Sequence[Result], skipped: Sequence[tuple[Planned, str]]
) -> tuple[Correctness, str]:
    wrong = [result for result in results if result.verdict == "incorrect"]
    if wrong:
        more = f" (and {len(wrong) - 1} more case{'s' if len(wrong) > 2 else ''})" if len(wrong) > 1 else ""
        return "incorrect", f"{wrong[0].case.described}: {wrong[0].reason}{more}"
    reasons = {
        (result.configuration, result.case): result.reason for result in results if result.verdict == "unverified"
    }
    reasons |= {(step.configuration, step.case): reason for step, reason in skipped}
    missed = [step for step in planned if step.covers and (step.configuration, step.case) in reasons]
    for step in missed:
        if step.case.run != "own shape":
            return "unverified", f"{', '.join(step.covers)}: {reasons[step.configuration, step.case]}"
    right = sum(result.verdict == "correct" for result in results)
    beside = f", {len(reasons)} not compared" if reasons else ""
    said = f"{plural(right, 'case')}{beside}"
    if missed:
        step = missed[0]
        return "correct on reduced shapes", f"{said}; {step.covers[0]}: {reasons[step.configuration, step.case]}"
    workloads = examiner.task.workloads
    own = {name for step in planned for name in step.covers if step.case.sizes == workloads.get(name)}
    names = dict.fromkeys(name for step in planned for name in step.covers if name in workloads and name not in own)
    if names:
        were = "was" if len(names) == 1 else "were"
        return "correct on reduced shapes", f"{said}; {', '.join(names)} {were} run at reduced size only"
    alone = ", the requested one" if all("asked for" in step.covers for step in planned) else ""
    return "correct", f"{said}{alone}"


def _not_compared(examiner: Examiner, results: Sequence[Result], skipped: Sequence[tuple[Planned, str]]) -> list[str]:
    named = [f"{result.case.described}: {result.reason}" for result in results if result.verdict == "unverified"]
    named += [f"{step.case.described}: {reason}" for step, reason in skipped]
    if examiner.uncounted:
        named.append("which kernels ran: the engine cannot tell on this machine")
    if not examiner.task.deterministic:
        named.append("whether two runs are bit-equal: the task declares that it is not deterministic")
    return named


def _findings(results: Sequence[Result]) -> tuple[Finding, ...]:
    unique: dict[object, Finding] = {}
    for result in results:
        for finding in result.findings:
            unique.setdefault((finding.kind, finding.location, finding.tensor), finding)
    return tuple(unique.values())


def worst(verdicts: Sequence[Verdict]) -> str:
    return max((verdict.verdict for verdict in verdicts), key=WORDS.index)


def command(verdict: Verdict, where: str, options: Sequence[str] = ()) -> str | None:
    """Returns the shell command that runs only the smallest failing case; None if no case failed."""
    failed = verdict.smallest
    if failed is None:
        return None
    words = ["tilewright", "check", where, "--case", str(failed.case), *options]
    if failed.configuration != verdict.shipped or IMPLEMENTATION in failed.configuration:
        words += ["--config", str(failed.configuration)]
    return " ".join(shell_word(word) for word in words)


def to_json(verdict: Verdict, where: str, options: Sequence[str] = ()) -> dict[str, Encodable]:
    """Returns the verdict as JSON. Scripts rely on these names."""
    return {
        **{name: getattr(verdict, name) for name in ("verdict", "reason", "engine", "task", "seed")},
        "configurations": [dict(configuration) for configuration in verdict.configurations],
        "yardstick": verdict.yardstick,
        "tools": list(verdict.tools),
        "cases": [_result(result) for result in verdict.results],
        "unverified": list(verdict.unverified),
        "findings": [_finding(finding) for finding in verdict.findings],
        "reproduce": command(verdict, where, options),
        "seconds": round(verdict.seconds, 3),
    }


def all_to_json(verdicts: Sequence[Verdict], where: str, options: Sequence[str] = ()) -> dict[str, Encodable]:
    """Returns the output of `check --json`: the verdict of the task, with the verdict of its backward task inside."""
    first, *others = verdicts
    backward = to_json(others[0], beside(where, others[0]), options) if others else None
    return {**to_json(first, where, options), "verdict": worst(verdicts), "backward": backward}


def beside(where: str, verdict: Verdict) -> str:
    """Returns ``FILE:TASK`` for the verdict's task, with the file of ``where`` (``FILE`` or ``FILE:TASK``)."""
    file, _, _ = where.rpartition(":")
    return f"{file if file and Path(file).is_file() else where}:{verdict.task}"


def _result(result: Result) -> dict[str, Encodable]:
    case, compared, error = result.case, result.error, None
    if compared is not None:
        of_element = vars(compared.error)
        error = {
            "output": compared.output, "worst": compared.error.worst, "allowed": compared.allowed.worst,
            "why": compared.allowed.why, **{name: of_element[name] for name in ("index", "got", "wanted")},
            "trusted": compared.trusted,
        }  # fmt: skip
    return {
        "case": str(case),
        "dims": case.sizes,
        **{name: value for name, value in vars(case).items() if name != "dims"},
        "configuration": dict(result.configuration),
        "verdict": result.verdict,
        "reason": result.reason,
        "error": error,
        "findings": [_finding(finding) for finding in result.findings],
        "seconds": round(result.seconds, 3),
    }


def _finding(finding: Finding) -> dict[str, Encodable]:
    return {**vars(finding), "location": str(finding.location) if finding.location else None}
