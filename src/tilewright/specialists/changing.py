"""Turns a delegation about a user's program into proposals, by the changes of `program.changes`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from tilewright.errors import RequestError, TilewrightError
from tilewright.program.changes import changes_answering, changes_for, program_changes
from tilewright.program.changes.base import ChangeSite, ProgramChange
from tilewright.program.command import ProgramCommand
from tilewright.program.reading.module import ReadModule
from tilewright.program.reading.reach import reached_modules
from tilewright.specialists.delegation import Delegation
from tilewright.specialists.proposal import NoProposal, ProgramProposal

_FINDING = re.compile(r"(?:[0-9a-f]{8}-)?([a-z][a-z0-9-]*?)(?:-\d+)?-gpu\d+")
"""The id of a finding: eight digits of the trace's digest, the kind, a number, and the GPU."""
LOSSY_ALLOWED = re.compile(r"\blossy\b|lower precision (is )?allowed|rounding may differ", re.IGNORECASE)


def proposed_changes(delegation: Delegation, *, lossy: bool = False) -> tuple[ProgramProposal, ...] | NoProposal:
    """Returns a proposal for each change that the delegation names and that applies to its program.

    Each proposal makes one change at all of its sites. Its texts are made from the present files. So call this function
    again after a proposal was kept. If the delegation names no change, the changes that can remedy its findings are
    proposed. Without findings, all lossless changes are proposed.

    lossy: whether changes of the rounding may be proposed if the delegation does not name them.
    """
    script = Path(delegation.file)
    if script.suffix != ".py" or not script.is_file():
        return NoProposal("blocked", f"'{delegation.file}' is no Python program that can be read", "missing: the file")
    named = _by_name(delegation.task) or changes_for(delegation.task)
    lossy = lossy or any(LOSSY_ALLOWED.search(text) for text in delegation.constraints)
    chosen = named or _chosen(delegation, lossy)
    modules = reached_modules(script, Path.cwd() if Path.cwd() in script.resolve().parents else None)
    found = tuple(proposal for change in chosen if (proposal := proposal_of(change, modules)) is not None)
    return found or refusal(chosen, modules)


def _by_name(task: str) -> tuple[ProgramChange, ...]:
    """Returns the change whose name and a colon begin the task, as those of an item for a place in the source do."""
    name = task.partition(":")[0]
    return tuple(change for change in program_changes() if change.name == name)


def kinds_of(findings: Iterable[str]) -> tuple[str, ...]:
    """Returns the kinds of findings with these ids: ``host-sync`` for ``0a1b2c3d-host-sync-gpu0``."""
    matches = (_FINDING.fullmatch(each) for each in findings)
    return tuple(dict.fromkeys(match[1] for match in matches if match))


def _chosen(delegation: Delegation, lossy: bool) -> tuple[ProgramChange, ...]:
    kinds = kinds_of(delegation.findings)
    some = {each for kind in kinds for each in changes_answering(kind)} if kinds else set(program_changes())
    return tuple(
        each
        for each in program_changes()
        if each in some and not each.never and (lossy or not (each.asked_only or each.risk == "lossy"))
    )


def proposal_of(change: ProgramChange, modules: Iterable[ReadModule]) -> ProgramProposal | None:
    """Returns the proposal that makes a change at all of its sites in these files. Returns None if there is no site."""
    found = [(module, sites) for module in modules if not change.never and (sites := change.sites(module))]
    if not found:
        return None
    texts = {module.path: change.rewrite(module, *sites) for module, sites in found}
    if any(ReadModule(path, text).unreadable for path, text in texts.items()):
        return None
    module, sites = found[0]
    more = sum(len(each) for _, each in found) - 1
    return ProgramProposal(
        name=change.name, rationale=_rationale(change, [site for _, each in found for site in each]),
        texts=texts, risk=change.risk, impact=change.impact,
        site=f"{module.path}:{sites[0].line}" + (f" and {more} more" if more else ""), ran=change.ran, gone=change.gone,
    )  # fmt: skip


def _rationale(change: ProgramChange, sites: Iterable[ChangeSite]) -> str:
    notes = dict.fromkeys(site.note for site in sites if site.note)
    return "; ".join((f"{', '.join(dict.fromkeys(site.what for site in sites))}: {change.about}", *notes))


def refusal(changes: Iterable[ProgramChange], modules: Iterable[ReadModule]) -> NoProposal:
    """Returns why none of these changes applies: the first reason that has evidence."""
    modules = tuple(modules)
    answers = [_refusal(change, modules) for change in changes]
    if not answers:
        script = modules[0]
        return NoProposal("inapplicable", "no known change of a program answers this", str(script.path))
    return min(answers, key=lambda answer: not answer.evidence)


def _refusal(change: ProgramChange, modules: tuple[ReadModule, ...]) -> NoProposal:
    for module in modules:
        if not change.never and (misses := change.near_misses(module)):
            return NoProposal("inapplicable", misses[0].reason, f"{module.path.name}:{misses[0].line}")
    present = next((said for module in modules if (said := change.present(module))), "")
    if present:
        return NoProposal("mechanism already present", change.never[1] if change.never else change.about, present)
    if change.never:
        return NoProposal(*change.never, evidence=str(modules[0].path.name))
    unreadable = next((module.unreadable for module in modules if module.unreadable), "")
    return NoProposal("blocked" if unreadable else "inapplicable", unreadable or change.absent, modules[0].path.name)


def command_of(delegation: Delegation) -> ProgramCommand:
    """Returns the command of the delegation's program: the workload, if it starts the file.

    Raises RequestError if the file is no Python program.
    """
    script = Path(delegation.file)
    if script.suffix != ".py" or not script.is_file():
        raise RequestError(f"'{delegation.file}' is no Python program that can be read; name one, e.g. train.py")
    try:
        command = ProgramCommand.of(delegation.workload)
        if command.script.resolve() == script.resolve():
            return command
    except TilewrightError:
        pass  # the workload is described in words
    return ProgramCommand.of((sys.executable, str(script)))
