"""Runs NVIDIA's compute-sanitizer on a case, if it is installed: memcheck, racecheck and initcheck.

These tools watch the machine code. They know only whole allocations, one launch, and races in shared memory. The
interpreter's own sanitizer knows elements and blocks.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.errors import ToolFailed
from tilewright.records import Configuration
from tilewright.task.loading import where_is
from tilewright.task.task import Task
from tilewright.task.tensors import Dims
from tilewright.tileir.read.tree import Location
from tilewright.tileir.watch.findings import MISALIGNED, OUT_OF_BOUNDS, RACE, UNINITIALISED, Finding, Findings
from tilewright.tools import child
from tilewright.verify.cases import Case
from tilewright.verify.data import drawn
from tilewright.verify.engine import ONCE
from tilewright.verify.images import POISONS, Image, held_before, images_for
from tilewright.verify.on_gpu import request_of
from tilewright.verify.verdict import Verdict
from tilewright.worker.messages import RunOnce, encode

TOOLS = ("memcheck", "racecheck", "initcheck")
ABSENT = "compute-sanitizer is not on this machine"
SECONDS, PATIENCE = 180.0, 2.0  # processor time of one tool, mainly to start torch; wall time / processor time
FIX = "install compute-sanitizer of the CUDA toolkit again"
PRINTED = 1000  # the most errors that a tool describes; it counts all errors
PADDING = 4096  # bytes that memcheck puts between allocations

Places = Mapping[str, tuple[int, int]]  # by tensor: address of the first element, and size in bytes


@dataclass(frozen=True)
class Sanitized:
    """The findings of one tool in a case. ``reason``: why the tool could not watch the case; None if it watched it."""

    tool: str
    findings: tuple[Finding, ...] = ()
    reason: str | None = None

    def __str__(self) -> str:
        count = len(self.findings)
        found = self.reason or f"{count or 'no'} finding{'s' * (count > 1)}"
        return f"compute-sanitizer {self.tool}: {found}"


def find() -> Path | None:
    """Finds compute-sanitizer on PATH or in the bin folder of a CUDA toolkit."""
    if on_path := shutil.which("compute-sanitizer"):
        return Path(on_path)
    return next((path for path in _in_toolkits() if os.access(path, os.X_OK)), None)


def absent() -> str:
    """Returns the reason why `find` finds no compute-sanitizer."""
    return next((child.not_started(str(path)) for path in _in_toolkits() if path.is_file()), ABSENT)


def _in_toolkits() -> list[Path]:
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    return [Path(home, "bin", "compute-sanitizer") for home in toolkits if home]


def sanitize(
    task: Task, configuration: Configuration, dims: Dims, images: Mapping[str, Image], *,
    tools: Sequence[str] = TOOLS, seconds: float = SECONDS,
) -> tuple[Sanitized, ...]:  # fmt: skip
    """Runs the case once under each tool, in a child process. The images are not changed."""
    program = find()
    if program is None:
        return tuple(Sanitized(tool, reason=absent()) for tool in tools)
    with child.workplace() as folder:
        step = replace(
            request_of(task, configuration, dims, images, ONCE, folder),
            exact=True, fresh=tuple(name for name in task.outputs if held_before(task, name) is None),
        )  # fmt: skip
        request = RunOnce(where_is(task), str(folder / "addresses.json"), step)
        (folder / "request.json").write_text(encode(request))
        return tuple(_under(tool, program, folder, seconds) for tool in tools)


def command(program: Path, tool: str, folder: Path) -> list[str]:
    """Returns the tool's command. It ignores API errors, because torch and cuTile make driver calls that may fail."""
    options = ["--tool", tool, "--log-file", str(folder / f"{tool}.log"), "--print-limit", str(PRINTED)]
    options += ["--target-processes", "application-only"]  # not the compiler that a launch may start
    if tool == "memcheck":
        options += ["--report-api-errors", "no", "--padding", str(PADDING)]
    once = [sys.executable, "-m", "tilewright.worker.process.once", str(folder / "request.json")]
    return [str(program), *options, *once]


def _under(tool: str, program: Path, folder: Path, seconds: float) -> Sanitized:
    log, addresses = folder / f"{tool}.log", folder / "addresses.json"
    addresses.unlink(missing_ok=True)
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = child.run(command(program, tool, folder), seconds, folder, env=environment, fix=FIX, patience=PATIENCE)
    except ToolFailed as error:
        return Sanitized(tool, reason=str(error))
    printed = log.read_bytes().decode("utf-8", "backslashreplace") if log.exists() else ""
    try:
        told = json.loads(addresses.read_text())
    except (OSError, ValueError):
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no message")
        complaint = first_complaint(printed) or (done.complaint(program.name) if done.returncode < 0 else last.strip())
        return Sanitized(tool, reason=f"under {tool} the case ended before its launch: {complaint}")
    return read(tool, printed, {name: (int(first), int(size)) for name, (first, size) in told.items()})


MARK = "========="
_INVALID = re.compile(r"Invalid __(?P<space>\w+?)__ (?P<access>\w+) of size (?P<size>[\d,]+) bytes")
_UNWRITTEN = re.compile(r"Uninitialized __(?P<space>\w+?)__ memory read of size (?P<size>[\d,]+)")
_RACE = re.compile(r"Race reported between (?P<first>\w+) access at (?P<place>.*)")
_HAZARD = re.compile(r"Potential (?P<kind>RAW|WAR|WAW) hazard detected at __(?P<space>\w+?)__")
_SOURCE = re.compile(r"(?P<file>[^\s:()]+):(?P<line>\d+)\b")
_KERNEL = re.compile(r"(?:^|\s)at (?:0x[0-9a-f]+ in )?(?P<kernel>[A-Za-z_]\w*)(?=[(+<]|\s|$)")
_BLOCK = re.compile(r"in block \((\d+),\s*(\d+),\s*(\d+)\)")
_ADDRESS = re.compile(r"Address (0x[0-9a-f]+)")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")


def read(tool: str, log: str, places: Places | None = None) -> Sanitized:
    """Reads a tool's log. If the log has no summary or only unknown errors, the result has a ``reason``.

    places: the tensors in memory, to name the tensor near an address in the log.
    """
    counted = [int(count) for count in _SUMMARY.findall(log)]
    if not counted:
        return Sanitized(tool, reason=f"{tool} printed no summary: {first_complaint(log) or 'nothing at all'}")
    findings = Findings()
    for lines in _reports(log):
        if (finding := _finding(tool, lines, places or {})) is not None:
            findings.add(finding)
    if sum(counted) and not len(findings):
        complaint = first_complaint(log)
        return Sanitized(tool, reason=f"{tool} counts {sum(counted)} errors of unknown form: {complaint}")
    return Sanitized(tool, tuple(findings))


def first_complaint(log: str) -> str:
    """Returns the first line of a log, without empty lines and the tool's banner."""
    lines = (line.removeprefix(MARK).strip() for line in log.splitlines())
    return next((line for line in lines if line and not line.startswith("COMPUTE-SANITIZER")), "")


def _reports(log: str) -> list[list[str]]:
    """Splits a log into errors. The first line of an error is indented by one space, its other lines by more spaces."""
    reports: list[list[str]] = [[]]
    for text in (line.removeprefix(MARK) for line in log.splitlines() if line.startswith(MARK)):
        if len(text) - len(text.lstrip()) <= 1:
            reports.append([])
        if text.strip():
            reports[-1].append(text.strip())
    return [lines for lines in reports if lines]


def _finding(tool: str, lines: Sequence[str], places: Places) -> Finding | None:
    headline, whole = lines[0], " ".join(lines)
    address = _ADDRESS.search(whole)
    near = _near(int(address[1], 16), places) if address else None
    if found := _INVALID.search(headline):
        kind = MISALIGNED if "misaligned" in whole else OUT_OF_BOUNDS
        what = f"{found['access']} of {found['size']} bytes of {found['space']} memory"
    elif found := _UNWRITTEN.search(headline):
        kind, what = UNINITIALISED, f"read of {found['size']} bytes of {found['space']} memory"
    elif found := _RACE.search(headline):
        kind, other = RACE, re.search(r"and (\w+) access at", whole)
        what = f"{found['first'].lower()} and {other[1].lower() if other else 'another'} of shared memory"
    elif found := _HAZARD.search(headline):
        kind, what = RACE, f"{found['kind']} hazard in {found['space']} memory"
    else:
        return None
    kernel = _KERNEL.search(whole)
    by = f" by {kernel['kernel']}" if kernel else ""
    where = f", {near[1]}" if near else ""
    block = _BLOCK.search(whole)
    places_in_source = (_SOURCE.search(line) for line in lines if " at " in f" {line}")
    source = next((Location(found["file"], int(found["line"])) for found in places_in_source if found), None)
    return Finding(
        kind, f"{what}{by}{where} ({tool})", source,
        (int(block[1]), int(block[2]), int(block[3])) if block else None, near[0] if near else None,
    )  # fmt: skip


def _near(address: int, places: Places) -> tuple[str, str] | None:
    """Returns the name of the nearest tensor, and the position of the address relative to it in words."""
    if not places:
        return None
    name = min(places, key=lambda tensor: max(places[tensor][0] - address, address - sum(places[tensor]) + 1, 0))
    first, size = places[name]
    if address < first:
        return name, f"{first - address} bytes before '{name}'"
    if address >= first + size:
        return name, f"{address - first - size} bytes after '{name}'"
    return name, f"at byte {address - first} of '{name}'"


class Watching:
    """Starts the tools if they are installed, and adds their findings to a verdict."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._pool = child.ToolPool(len(TOOLS), "compute-sanitizer")
        self._asked: list[Future[Sequence[Sanitized]]] = []

    def start(self, configuration: Configuration, case: Case) -> None:
        """Starts all tools on one case. `joined` waits for them."""
        if find() is None:
            return
        inputs = drawn(self.task, case.sizes, case.data, case.seed)
        for tool in TOOLS:
            images = images_for(self.task, case.sizes, inputs, case.layout, POISONS[0])
            self._asked.append(self._pool.submit(sanitize, self.task, configuration, case.sizes, images, tools=(tool,)))

    def joined(self, verdict: Verdict) -> Verdict:
        """Waits for the tools, and returns the verdict with their findings. Any finding makes the verdict incorrect."""
        if not self._asked:
            return replace(verdict, tools=(absent(),))
        reports = [report for future in self._asked for report in future.result()]
        findings = tuple(finding for report in reports for finding in report.findings)
        failed = (f"{report.tool}: {report.reason}" for report in reports if report.reason)
        verdict = replace(
            verdict, findings=(*verdict.findings, *findings), unverified=(*verdict.unverified, *failed),
            tools=tuple(map(str, reports)),
        )  # fmt: skip
        if findings and verdict.verdict != "incorrect":
            return replace(verdict, verdict="incorrect", reason=f"compute-sanitizer: {findings[0]}")
        return verdict

    def close(self) -> None:
        self._pool.end()
