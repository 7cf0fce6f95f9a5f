"""Proposes one kernel for a hot function of torch operations: the main path from a program to its changed files.

functions (syntax tree) → calls (a recorded run) → reference → written, checked, tuned → module and dispatch
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from pathlib import Path

from tilewright.errors import TaskError
from tilewright.program.command import ProgramCommand
from tilewright.specialists.hot.calls import SECONDS, ObservedCall, calls_of
from tilewright.specialists.hot.dispatch import dispatched, module_beside
from tilewright.specialists.hot.functions import HotFunction
from tilewright.specialists.hot.module import module_text
from tilewright.specialists.hot.reference import HotReference, references_of
from tilewright.specialists.proposal import LATE, NoProposal, ProgramProposal
from tilewright.specialists.writing.attempting import CorrectTask, GaveUp, first_correct, tuned
from tilewright.specialists.writing.expression import OutsideForms

MOST = 3
"""The most functions of one delegation that get kernels. Functions with the longest total time come first."""


def proposed_operations(
    functions: Sequence[HotFunction], command: ProgramCommand, language: str, until: float = math.inf
) -> list[ProgramProposal | NoProposal]:
    """Generates kernels for functions. The functions with the longest total time in a recorded run come first.

    until: time of `time.monotonic` after which no further kernel is begun.
    """
    if not functions:
        return []
    if time.monotonic() > until:
        return [LATE]
    calls, end = calls_of(command, functions, min(SECONDS, until - time.monotonic()))
    if not calls:
        reason = f"no call of {', '.join(each.name for each in functions)} was recorded: {end}"
        return [NoProposal("blocked", reason, f"{functions[0].file}:{functions[0].line}")]
    hottest = sorted(calls, key=lambda each: -sum(call.seconds for call in calls[each]))
    return [_proposed(each, calls[each], command, language, until) for each in hottest[:MOST]]


def _proposed(
    function: HotFunction, calls: Sequence[ObservedCall], command: ProgramCommand, language: str, until: float
) -> ProgramProposal | NoProposal:
    if time.monotonic() > until:
        return LATE
    site = f"{function.file}:{function.line}"
    call = next((each for each in calls if not _unfit(each)), None)
    if call is None:
        return NoProposal("inapplicable", f"{function.name}: {_unfit(calls[0])}", site)
    written = _written(function, call, language)
    if isinstance(written, NoProposal):
        return written
    reference, found, file = written
    _, shipped = tuned(file, lambda config: config.get("route", "ptx") == "ptx")
    module = module_beside(function, reference.source.function, language)
    text = module_text(found.task, reference, language, shipped)
    compile(text, str(module), "exec")
    texts = {function.file: dispatched(function, reference, module, command.script, language), module: text}
    kernel = f"{reference.source.function}_kernel"
    return ProgramProposal(
        f"{language} kernel for {function.name}",
        f"{function.name} is {found.task.form.computation.operations} operations on tensors; as one {language} kernel "
        f"it reads and writes memory once ({call.count} calls in the recorded run)",
        texts, "lossless", site, ran=(rf"\b{kernel}(_long_rows|_by_pointers)?\b",),
    )  # fmt: skip


def _unfit(call: ObservedCall) -> str:
    """Returns why a written kernel cannot replace a call; "" if a kernel can replace it."""
    if call.needs_gradient:
        return (
            "gradients are recorded in its calls, and a written kernel has no backward; inference needs torch.no_grad()"
        )
    if call.autocast:
        return "it is called under autocast, which chooses the dtypes of each operation"
    if call.others:
        return f"its argument '{call.others[0]}' is neither a tensor nor a plain value"
    if not call.results or not call.tensors:
        return "it does not compute tensors from tensors"
    for name, each in call.tensors.items():
        if not each.plain or not each.contiguous:
            return f"its tensor '{name}' is {'not contiguous' if each.plain else 'of a subclass'}"
    return ""


def _written(
    function: HotFunction, call: ObservedCall, language: str
) -> tuple[HotReference, CorrectTask, Path] | NoProposal:
    """Generates and checks a kernel for a call. Uses the first of its references that has a supported form."""
    site, reason = f"{function.file}:{function.line}", "its shapes have no names"
    for reference in references_of(function, call):
        file = _task_file(reference, language)
        try:
            found = first_correct(reference.source, language, file, dims=reference.dims, outputs=reference.outputs)
        except OutsideForms as error:
            reason = str(error)
            continue
        except TaskError as error:
            return NoProposal("inapplicable", f"{function.name} is no reference: {error}", site)
        if not isinstance(found, CorrectTask):
            why = found if isinstance(found, GaveUp) else found.verdict.reason
            return NoProposal("inapplicable", f"needs a proposer: {function.name}: {why}", site)
        return reference, found, file
    return NoProposal("inapplicable", f"needs a proposer: {reason}", site)


def _task_file(reference: HotReference, language: str) -> Path:
    from tilewright.ledger.file import home, make_private

    digest = hashlib.sha256(repr((reference.source, reference.outputs)).encode()).hexdigest()[:12]
    make_private(home())
    folder = home().absolute() / "written" / digest
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{reference.source.function}_{language}.py"
