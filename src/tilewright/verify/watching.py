"""compute-sanitizer beside a check: its three tools watch one case, each in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from tilewright.records import Configuration
from tilewright.task.task import Task
from tilewright.verify.cases import Case
from tilewright.verify.data import drawn
from tilewright.verify.images import POISONS, images_for
from tilewright.verify.sanitizer_tool import ABSENT, TOOLS, Sanitized, find, sanitize
from tilewright.verify.verdict import Verdict


class Watching:
    """Starts the tools where they are installed, and adds what they found to a verdict."""

    def __init__(self, task: Task, off: bool) -> None:
        self.task, self.off = task, off
        self._pool = ThreadPoolExecutor(len(TOOLS), "compute-sanitizer")
        self._asked: list[Future[Sequence[Sanitized]]] = []

    def start(self, configuration: Configuration, case: Case) -> None:
        """On one case; what they say is waited for in `joined`."""
        if self.off or find() is None:
            return
        inputs = drawn(self.task, case.sizes, case.data, case.seed)
        for tool in TOOLS:
            images = images_for(self.task, case.sizes, inputs, case.layout, POISONS[0])
            self._asked.append(self._pool.submit(sanitize, self.task, configuration, case.sizes, images, tools=(tool,)))

    def joined(self, verdict: Verdict) -> Verdict:
        """The verdict with the tools' findings; one of them makes it incorrect."""
        if self.off:
            return verdict
        if not self._asked:
            return replace(verdict, tools=(ABSENT,))
        said = [one for future in self._asked for one in future.result()]
        findings = tuple(finding for report in said for finding in report.findings)
        verdict = replace(
            verdict,
            findings=(*verdict.findings, *findings),
            unverified=(*verdict.unverified, *(f"{report.tool}: {report.reason}" for report in said if report.reason)),
            tools=tuple(_line(report) for report in said),
        )
        if findings and verdict.verdict != "incorrect":
            return replace(verdict, verdict="incorrect", reason=f"compute-sanitizer: {findings[0]}")
        return verdict

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _line(report: Sanitized) -> str:
    count = len(report.findings)
    found = report.reason or f"{count or 'no'} finding{'s' * (count > 1)}"
    return f"compute-sanitizer {report.tool}: {found}"
