"""From a task to a verdict: plan the cases, run each, make a failing one small.

``correct`` means that every workload was compared and nothing was wrong; what was not compared is
listed by name with the reason (trust.md 13). One wrong case is enough for ``incorrect``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tilewright.progress import Progress, silent
from tilewright.records import Configuration, Workload
from tilewright.task.task import Task
from tilewright.verify.addresses import Reaches
from tilewright.verify.cases import Case
from tilewright.verify.data import drawn
from tilewright.verify.engine import Engine
from tilewright.verify.examining import Compiles, Examiner, Result
from tilewright.verify.minimising import minimised
from tilewright.verify.planning import Planned, plan
from tilewright.verify.reference import Reference, Trusting

if TYPE_CHECKING:
    from tilewright.tileir.watch.findings import Finding

FAILURES = 8
"""After so many wrong cases the others are not run: the answer is known."""
SECONDS = 120.0
"""For one check. What is not run by then is unverified, by name."""

DRAWS = 4
"""Inputs whose answers must not all be the same: on a small shape two may be so by chance."""

Word = Literal["correct", "incorrect", "unverified"]


@dataclass(frozen=True)
class Verdict:
    """What a check found."""

    verdict: Word
    reason: str
    engine: str
    task: str
    seed: int
    configurations: tuple[Configuration, ...]
    results: tuple[Result, ...]
    unverified: tuple[str, ...]
    """What was not compared, each with its reason."""
    findings: tuple[Finding, ...]
    yardstick: str
    """Whose error sets what is allowed."""
    smallest: Result | None
    """The failing case that is cheapest to look at."""
    shipped: Configuration
    seconds: float
    tools: tuple[str, ...] = ()
    """What other tools that watched a case said, one line each."""


def check(
    task: Task,
    engine: Engine,
    *,
    configurations: Sequence[Configuration] = (),
    workloads: Sequence[Workload] = (),
    seed: int = 0,
    trusted: Trusting | None = None,
    compiles: Compiles | None = None,
    ahead: Callable[[Sequence[tuple[Configuration, Case]]], None] | None = None,
    reaches: Reaches | None = None,
    only: Case | None = None,
    quick: bool = False,
    seconds: float = SECONDS,
    progress: Progress = silent,
) -> Verdict:
    """Whether ``task``'s kernel is right on ``engine``.

    configurations, workloads: default to the shipped one and to all of them.
    trusted: gives the outputs in the declared precision; without it the float32 reference does.
    compiles: tells a kernel that does not compile from one that crashes; without it a failure before the
        run is believed to be the compiler's on shapes and layouts that no workload names.
    ahead: gets all planned cases before the first of them runs.
    reaches: follows addresses beyond 2³¹ elements; without it that is not part of the plan.
    only: one case instead of the plan.
    quick: reduced workloads and small integers only.
    seconds: after which no further case is begun.
    Raises TaskError where the task is at fault: its reference fails, or tells nothing (trust.md 2).
    """
    started = time.perf_counter()
    configurations = tuple(configurations) or (task.space.shipped,)
    workloads = tuple(workloads) or task.selected(None)
    examiner = Examiner(task, engine, Reference(task, trusted), compiles, reaches)
    if only is not None:
        planned = [Planned(one, only, 0, ("asked for",)) for one in configurations]
    else:
        planned = plan(
            task, configurations, workloads, seed,
            own_shapes=engine.name == "gpu", addresses=reaches is not None, quick=quick,
        )  # fmt: skip
    if ahead is not None:
        ahead([(one.configuration, one.case) for one in planned if one.case.run != "addresses"])
    results, skipped = _examined(examiner, planned, seconds, started, progress)
    if only is None:
        _refuse_degenerate(examiner, planned)
    failed = next((one for one in results if one.verdict == "incorrect"), None)
    smallest = minimised(examiner, failed) if failed and only is None else failed
    word, reason = _verdict(planned, results, skipped)
    return Verdict(
        word, reason, engine.name, task.name, seed, configurations, tuple(results),
        tuple(_unverified(examiner, results, skipped)), _findings(results), examiner.reference.yardstick, smallest,
        task.space.shipped, time.perf_counter() - started,
    )  # fmt: skip


def _examined(
    examiner: Examiner, planned: Sequence[Planned], seconds: float, started: float, progress: Progress
) -> tuple[list[Result], list[tuple[Planned, str]]]:
    """The results in the order of the plan, and what was not run with the reason."""
    results: list[Result] = []
    skipped: list[tuple[Planned, str]] = []
    failures = 0
    for number, one in enumerate(planned):
        if failures >= FAILURES:
            skipped.append((one, f"not run: {failures} cases are incorrect already"))
        elif results and time.perf_counter() - started > seconds:
            skipped.append((one, f"not run within {seconds:g} s"))
        else:
            progress("check", number, len(planned), one.case.described)
            results.append(examiner.examine(one.configuration, one.case))
            failures += results[-1].verdict == "incorrect"
    progress("check", len(planned), len(planned))
    return results, skipped


def _refuse_degenerate(examiner: Examiner, planned: Sequence[Planned]) -> None:
    """On the shape of a workload: on an edge an output may well be one constant."""
    case = planned[0].case
    inputs = [drawn(examiner.task, case.sizes, "declared", case.seed + number) for number in range(DRAWS)]
    examiner.reference.degenerate(case.sizes, inputs)


def _verdict(
    planned: Sequence[Planned], results: Sequence[Result], skipped: Sequence[tuple[Planned, str]]
) -> tuple[Word, str]:
    wrong = [one for one in results if one.verdict == "incorrect"]
    if wrong:
        more = f" (and {len(wrong) - 1} more cases)" if len(wrong) > 1 else ""
        return "incorrect", f"{wrong[0].case.described}: {wrong[0].reason}{more}"
    reasons = {(one.configuration, one.case): one.reason for one in results if one.verdict == "unverified"}
    reasons |= {(one.configuration, one.case): reason for one, reason in skipped}
    for one in planned:
        if one.covers and (one.configuration, one.case) in reasons:
            return "unverified", f"{', '.join(one.covers)}: {reasons[one.configuration, one.case]}"
    right = sum(one.verdict == "correct" for one in results)
    beside = f", {len(reasons)} not compared" if reasons else ""
    return "correct", f"{right} case{'s' if right != 1 else ''}{beside}"


def _unverified(examiner: Examiner, results: Sequence[Result], skipped: Sequence[tuple[Planned, str]]) -> list[str]:
    named = [f"{one.case.described}: {one.reason}" for one in results if one.verdict == "unverified"]
    named += [f"{one.case.described}: {reason}" for one, reason in skipped]
    if examiner.uncounted:
        named.append("which kernels ran (trust 15): the engine cannot tell here")
    if not examiner.task.deterministic:
        named.append("bit-equality of two runs (trust 11): the task declares that it is not deterministic")
    return named


def _findings(results: Sequence[Result]) -> tuple[Finding, ...]:
    """Each once, by kind, place in the source and tensor."""
    found: dict[object, Finding] = {}
    for result in results:
        for one in result.findings:
            found.setdefault((one.kind, one.location, one.tensor), one)
    return tuple(found.values())
