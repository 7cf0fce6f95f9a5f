"""Proposes changes of a program for a kernel language: to the program's kernels, or else to its torch functions."""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewright.errors import RequestError
from tilewright.program.command import ProgramCommand
from tilewright.specialists.delegation import Delegation
from tilewright.specialists.hot.functions import files_of_program, functions_of
from tilewright.specialists.hot.kernel import kernels_of, proposed_kernels
from tilewright.specialists.hot.operation import proposed_operations
from tilewright.specialists.proposal import NoProposal, ProgramProposal

UNMEASURED = "to be confirmed on a GPU"


def proposals(delegation: Delegation, language: str) -> tuple[ProgramProposal, ...] | NoProposal:
    """Returns changes of the program's kernels or, if no kernel can be changed, of its functions.

    If there are no changes, returns the reasons.
    If the delegation names kernels or functions, only these are tried. Otherwise the kernels and functions with the
    longest total time are tried. Without a GPU nothing is measured: the changes are then only stored as patches, and
    the result contains their paths. Raises RequestError if the program cannot be read or started.
    """
    from tilewright.hardware.gpu import detect

    until = time.monotonic() + delegation.seconds
    command, measured = command_of(delegation), detect() is not None
    files = files_of_program(command)
    kernels = kernels_of(files, language)
    functions = [each for path in files for each in functions_of(path)]
    said = " ".join((delegation.task, *delegation.findings, *delegation.constraints))
    named_kernels = [each for each in kernels if each.named_in(said)]
    named_functions = [each for each in functions if each.named_in(said)]
    if named_kernels or named_functions:
        kernels, functions = named_kernels, named_functions
    results = proposed_kernels(kernels, command, measured=measured, until=until)
    if not any(isinstance(each, ProgramProposal) for each in results):
        results += proposed_operations(functions, command, language, until)
    found = tuple(each for each in results if isinstance(each, ProgramProposal))
    if not found or not measured:
        return _none(results, command)
    return found


def command_of(delegation: Delegation) -> ProgramCommand:
    """Returns the command of a delegation's program: the workload if it runs the delegation's file, else only the file.

    Raises RequestError if there is no command.
    """
    if not delegation.file:
        raise RequestError(f"the delegation to {delegation.specialist} names no program; give the file of one")
    plain = ProgramCommand.of(delegation.file)
    try:
        whole = ProgramCommand.of(delegation.workload)
    except RequestError:  # the workload is a description, not a command
        return plain
    return whole if whole.script == plain.script else plain


def _none(results: Sequence[ProgramProposal | NoProposal], command: ProgramCommand) -> NoProposal:
    """Joins the reasons why nothing is proposed. If a change was not measured, the text has its patch's path."""
    reasons = [_unmeasured(each, command) if isinstance(each, ProgramProposal) else each for each in results]
    if not reasons:
        what = "no kernel, and no function that only computes tensors of tensors"
        return NoProposal("inapplicable", f"{command.script.name} has {what}", str(command.script))
    first = next((each for each in reasons if each.why == "blocked"), reasons[0])
    return NoProposal(first.why, "; ".join(dict.fromkeys(each.reason for each in reasons)), first.evidence)


def _unmeasured(proposal: ProgramProposal, command: ProgramCommand) -> NoProposal:
    path = _stored(proposal, command.root)
    said = f"{proposal.name}: correct by the interpreter, {UNMEASURED}: git apply {path}"
    return NoProposal("blocked", said, str(path))


def _stored(proposal: ProgramProposal, root: Path) -> Path:
    from tilewright.ledger.file import home, make_private, storage

    folder = home().absolute() / "proposals"
    path = folder / (re.sub(r"[^A-Za-z0-9_]+", "-", proposal.name) + ".patch")
    with storage(folder):
        make_private(home())
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(patch_of(proposal.texts, root).encode())
    return path


def patch_of(texts: Mapping[Path, str], root: Path) -> str:
    """Returns changed and new files as a patch, for ``git apply`` in ``root``."""
    patch = ""
    for path, text in texts.items():
        name = os.path.relpath(path, root)
        before = path.read_bytes().decode("utf-8") if path.exists() else None
        old = f"a/{name}" if before is not None else "/dev/null"
        patch += "".join(_lines(before or "", text, old, f"b/{name}"))
    return patch


def _lines(before: str, after: str, old: str, new: str) -> list[str]:
    lines = []
    for line in difflib.unified_diff(before.splitlines(True), after.splitlines(True), old, new):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return lines
