"""Proposes a faster version of a kernel of a program: the main path from its launches to the changed file.

kernels (syntax tree) → launches (a captured run) → task → checked, optimised → the user's file
"""

from __future__ import annotations

import ast
import hashlib
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.errors import TilewrightError
from tilewright.program.command import ProgramCommand
from tilewright.source.kernels import kernels_by_language
from tilewright.source.source_file import SourceFile
from tilewright.specialists.hot.launch_site import NotWritable, with_configuration
from tilewright.specialists.hot.launches import SECONDS, launches_of
from tilewright.specialists.proposal import LATE, OUT_OF_TIME, NoProposal, ProgramProposal

if TYPE_CHECKING:
    from tilewright.optimize.optimized import Optimized
    from tilewright.records import TuningResult
    from tilewright.runtime.capture.record import Recorded

MOST = 2
"""The most kernels that are optimised for one delegation. Kernels with the longest total time come first."""
ITERATIONS, MINUTES = 12, 5.0
"""The limits of the loop: number of changes to try, and minutes for each."""


@dataclass(frozen=True)
class HotKernel:
    """A kernel of the program. ``line``: its line in the file."""

    file: Path
    name: str
    line: int

    def named_in(self, text: str) -> bool:
        """Returns whether a string contains the kernel's name as a word."""
        return re.search(rf"\b{self.name}\b", text) is not None


def kernels_of(files: Iterable[Path], language: str) -> list[HotKernel]:
    """Returns the kernels of a language in these files."""
    found = []
    for path in files:
        file = SourceFile.requested(path)
        lines = {node.name: node.lineno for node in file.functions}
        names = kernels_by_language(file).get(language, ())
        found += [HotKernel(path, name, lines[name]) for name in names]
    return found


def proposed_kernels(
    wanted: Sequence[HotKernel], command: ProgramCommand, *, measured: bool, until: float = math.inf
) -> list[ProgramProposal | NoProposal]:
    """Optimises kernels. The kernels with the longest total time come first.

    measured: whether there is a GPU.
    until: time of `time.monotonic` after which no further step is begun.
    """
    if not wanted:
        return []
    if time.monotonic() > until:
        return [LATE]
    seconds = min(SECONDS, until - time.monotonic())
    launches, end = launches_of(command, describe=not measured, seconds=seconds)
    by_kernel = {(Path(each.launch.file), each.launch.qualname): each for each in reversed(launches)}
    found = [each for each in wanted if (each.file, each.name) in by_kernel]
    if not found:
        first = wanted[0]
        need = "" if measured else "; capturing a program that needs CUDA needs a GPU"
        reason = f"no launch of {', '.join(each.name for each in wanted)} was captured: {end}{need}"
        return [NoProposal("blocked", reason, f"{first.file}:{first.line}")]
    order = [(Path(each.launch.file), each.launch.qualname) for each in launches]
    hottest = sorted(found, key=lambda each: order.index((each.file, each.name)))
    return [_proposed(each, by_kernel[each.file, each.name], measured, until) for each in hottest[:MOST]]


def _proposed(kernel: HotKernel, recorded: Recorded, measured: bool, until: float) -> ProgramProposal | NoProposal:
    from tilewright.optimize.loop import optimize
    from tilewright.task.loading import load_task
    from tilewright.tune.tune import tune
    from tilewright.verify.check import check

    site = f"{kernel.file}:{kernel.line}"
    if time.monotonic() > until:
        return LATE
    try:
        task = _task_file(recorded)
        (verdict, *_) = check(str(task), quick=True)
        if not verdict.verdict.startswith("correct"):
            why = f"the task of {kernel.name} as it is launched is {verdict.verdict}: {verdict.reason}"
            return NoProposal("blocked", why, str(task))
        left = max(0.0, until - time.monotonic()) / 60
        result = optimize(str(task), iterations=ITERATIONS, minutes=MINUTES, stop_after=left)
    except TilewrightError as error:
        return NoProposal("blocked", f"{kernel.name}: {error}", site)
    if not measured:
        return _to_confirm(kernel, result, task)
    if not result.kept:
        tried = f"no change of {kernel.name} was faster in run {result.record.run}: {result.record.stop_reason}"
        if time.monotonic() > until:
            return NoProposal("blocked", f"{tried}; {OUT_OF_TIME}", result.record.run)
        return configured(kernel, recorded.launch.language, task, tune(load_task(str(task))), tried)
    text = changed_text(kernel, task, result.patch)
    if isinstance(text, NoProposal):
        return text
    names = ", ".join(each.optimization for each in result.kept)
    return ProgramProposal(
        f"optimised {kernel.name}", f"{names}: {result} as captured (run {result.record.run})", {kernel.file: text},
        "lossless", site, ran=(rf"\b{kernel.name}\b",),
    )  # fmt: skip


def configured(
    kernel: HotKernel, language: str, task: Path, run: TuningResult, tried: str
) -> ProgramProposal | NoProposal:
    """Proposes the configuration that was fastest in the race, for a kernel whose source `optimize` did not improve.

    run: a measured run of the kernel's task.
    tried: phrases that describe the results of `optimize`.
    """
    found = run.workloads[0]
    raced = [each for each in found.candidates if each.measured and each.configuration.get("route", "ptx") == "ptx"]
    best = min(raced, key=lambda each: each.measured.us if each.measured else 0.0, default=None)
    if best is None or found.best is None or found.shipped in (best.configuration, found.best.configuration):
        return NoProposal("inapplicable", f"{tried}; its configuration is the best of run {run.run}", run.run)
    new = {name: value for name, value in best.configuration.items_ if value != found.shipped.get(name)}
    new.pop("route", None)
    try:
        text = with_configuration(kernel.file, kernel.name, language, new)
    except NotWritable as error:
        reason = f"{kernel.name}: {best.configuration} is faster (run {run.run}); {error}"
        return NoProposal("blocked", reason, str(task))
    return ProgramProposal(
        f"tuned {kernel.name}", f"{best.configuration} raced faster than {found.shipped} (run {run.run})",
        {kernel.file: text}, "lossless", f"{kernel.file}:{kernel.line}", ran=(rf"\b{kernel.name}\b",),
    )  # fmt: skip


def _task_file(recorded: Recorded) -> Path:
    """Writes the task of a launch into Tilewright's folder. Raises RequestError if the launch cannot become a task."""
    from tilewright.ledger.file import home, make_private
    from tilewright.runtime.capture.task_file import task_text

    launch = recorded.launch
    digest = hashlib.sha256(f"{launch.file} {launch.source} {launch.grid} {launch.arguments}".encode()).hexdigest()[:12]
    make_private(home())
    folder = home().absolute() / "captured" / digest
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{launch.kernel}_task.py"
    heading = f"{launch.kernel} as {Path(launch.file).name} launches it: {recorded.count} times in the captured run."
    file.write_text(task_text(recorded, folder, heading=heading), encoding="utf-8")
    return file


def _to_confirm(kernel: HotKernel, result: Optimized, task: Path) -> NoProposal:
    """Returns the result of a run without a GPU: no proposal, because the gains are only predicted.

    The result has the path of the patch with the changes, and the command that confirms them on a GPU.
    """
    names = [*(each.optimization for each in result.kept), *(name for _, name, _ in result.to_confirm)]
    if not names:
        reason = f"{kernel.name}: no change was predicted to be faster in run {result.record.run}"
        return NoProposal("blocked", f"{reason}; to be confirmed on a GPU: tilewright optimize {task}", str(task))
    reason = (
        f"{kernel.name}: {', '.join(names)}: predicted faster, to be confirmed on a GPU: tilewright optimize {task}"
    )
    return NoProposal("blocked", reason, str(result.folder / "changes.patch"))


def changed_text(kernel: HotKernel, task: Path, patch: str) -> str | NoProposal:
    """Returns the text of the user's file with the changes of a run.

    The task's kernel is in the user's file, or it is a copy in the task file. Changed functions of a copy replace the
    functions in the user's file.
    """
    from tilewright.optimize.proposed import patched
    from tilewright.task.loading import editable_files, load_task

    texts = {path: path.read_bytes().decode("utf-8") for path in editable_files(load_task(str(task)))}
    changes = patched(Path("changes.patch"), patch, texts)
    if kernel.file in changes and changes.keys() <= {kernel.file, task}:  # the trial shows whether the launch fits
        return changes[kernel.file]
    if changes.keys() != {task} or kernel.file in texts:
        return NoProposal(
            "blocked", f"the changes of {kernel.name} are not all in its file; apply them by hand", str(task)
        )
    before, after = texts[task], changes[task]
    own = kernel.file.read_bytes().decode("utf-8")
    old, new, users = (_definitions(text) for text in (before, after, own))
    changed = [name for name in new if new[name] != old.get(name)]
    if _without(before, old) == _without(after, new) and all(users.get(each) == old.get(each, "") for each in changed):
        for name in changed:
            own = own.replace(users[name], new[name], 1)
        return own
    what = f"the changes of {kernel.name} go beyond its function; apply them by hand"
    return NoProposal("blocked", what, str(task))


def _without(text: str, definitions: Mapping[str, str]) -> list[str]:
    """Returns the words of a source text that are outside of its functions."""
    for each in definitions.values():
        text = text.replace(each, "", 1)
    return text.split()


def _definitions(text: str) -> Mapping[str, str]:
    """Maps the name of each top-level function to its source, including its decorators."""
    lines = text.replace("\r\n", "\n").split("\n")
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found
