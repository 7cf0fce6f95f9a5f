"""Changes from a person or a model instead of the playbook. They must pass the same gate.

optimize(…, proposers=[proposer])   # proposer.propose(seen) returns a Change or None before every iteration
tilewright optimize FILE --change faster.patch --change rewritten.py
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tilewright.errors import RequestError
from tilewright.ledger.records import Iteration, Metrics
from tilewright.optimize.choosing import Proposal
from tilewright.optimize.versions.patches import applied, patched_names
from tilewright.optimize.versions.user_tree import ChangeRefused, FileContent
from tilewright.optimize.versions.version import read_source
from tilewright.playbook.base import KernelFacts, NotApplicable, Risk

ENTRY = "proposed"


class RefusedProposal(NotApplicable):
    """A proposal that is not tried. The message gives the reason in one line.

    tampering: whether the proposal reached for something that decides about it.
    patch: the refused change, as evidence.
    """

    def __init__(self, reason: str, tampering: bool = False, patch: str = "") -> None:
        super().__init__(reason)
        self.tampering, self.patch = tampering, patch

    def of(self, patch: str) -> RefusedProposal:
        """Returns the same reason with the patch that was refused."""
        return RefusedProposal(str(self), self.tampering, patch)


@dataclass(frozen=True)
class Change:
    """A proposed change. ``rationale``: the reason for it, which the commit and the ledger store."""

    name: str
    rationale: str
    texts: Mapping[Path, str]
    """The whole new text of each changed file, by the path of the user's file."""
    risk: Risk = "lossless"
    unusable: str = ""
    """The reason why the change does not fit the incumbent; empty if the change fits."""
    refused: RefusedProposal | None = None
    """The reason why the change is not tried; None if it is tried."""


@dataclass(frozen=True)
class Seen:
    """The data that a proposer may read: the incumbent, and the iterations so far.

    metrics: returns the incumbent's metrics on each workload.
    stored: returns this run's iterations as the ledger has them.
    seconds_left: the time that is left of the run.
    """

    texts: Mapping[Path, str]
    facts: KernelFacts
    iterations: tuple[Iteration, ...]
    metrics: Callable[[], tuple[Metrics, ...]] = tuple
    stored: Callable[[], tuple[Iteration, ...]] = tuple
    seconds_left: float = math.inf


class Proposer(Protocol):
    def propose(self, seen: Seen) -> Change | None:
        """Returns the next change to try on the incumbent; None if there is none."""


def check_changes(files: Sequence[Path], editable: Collection[Path]) -> None:
    """Raises RequestError if a file is missing, or changes a file that is not editable. Called before a run."""
    for file in files:
        if not file.is_file():
            what = "is a folder; name a patch or a rewritten file in it" if file.is_dir() else "no such file"
            raise RequestError(f"--change {file}: {what}")
        text = read_source(file)
        if _is_patch(text):
            _places(file, text, editable)
        elif file.suffix != ".py":
            what = "is not a patch" if text.strip() else "is empty"
            raise RequestError(f"--change {file} {what}; give what `git diff` prints, or a rewritten file named *.py")
        else:
            _replaced(file, editable)


class FromFiles:
    """Proposes changes from files: patches, or whole files that replace the file of the same name."""

    def __init__(self, files: Sequence[Path], before: Sequence[Iteration] = ()) -> None:
        """``before``: the iterations of an interrupted run. Changes that they tried are not proposed again."""
        done = Counter(iteration.site for iteration in before if iteration.entry == ENTRY)
        self._left = []
        for file in files:
            if done[file.name]:
                done[file.name] -= 1
            else:
                self._left.append(file)

    def propose(self, seen: Seen) -> Change | None:
        if not self._left:
            return None
        file = self._left.pop(0)
        text = read_source(file)
        rationale = f"proposed in {file.name}"
        try:
            texts = patched(file, text, seen.texts) if _is_patch(text) else {_replaced(file, seen.texts): text}
            return Change(file.name, rationale, texts)
        except NotApplicable as error:
            return Change(file.name, rationale, {}, unusable=str(error))


def proposal_of(change: Change, texts: Mapping[Path, str], entry: str = ENTRY) -> Proposal:
    """Turns the change into a proposal for the loop. ``entry``: how the ledger names its source."""

    def apply(value: object) -> Mapping[Path, str]:
        if change.refused is not None:
            raise change.refused
        if change.unusable:
            raise NotApplicable(change.unusable)
        if outside := [path for path in change.texts if path not in texts]:
            raise NotApplicable(f"it changes {outside[0]}, which is not editable; {_names(texts)}")
        return {**texts, **change.texts}

    return Proposal(
        entry=entry, name=f"proposed: {change.name}", place=change.name, risk=change.risk,
        values=lambda: (change.name,), apply=apply, score=float("inf"), why=change.rationale,
    )  # fmt: skip


def _is_patch(text: str) -> bool:
    return any(line.startswith(("diff --git ", "--- ", "Index: ")) for line in text.splitlines())


def _replaced(file: Path, editable: Collection[Path]) -> Path:
    """Returns the editable file that the rewritten ``file`` replaces."""
    if len(editable) == 1:
        return next(iter(editable))
    return _editable_named(file.name, editable, f"--change {file}: no editable file has that name")


def _places(file: Path, patch: str, editable: Collection[Path]) -> Mapping[str, Path]:
    """Maps the file names in a patch to the editable files. A name may begin with additional folders."""
    try:
        names = [name for _, name in patched_names(patch)]
    except ChangeRefused as error:
        raise RequestError(f"--change {file}: {error}") from error
    return {
        name: _editable_named(name, editable, f"--change {file} changes {name}, which is not editable")
        for name in names
    }


def patched(file: Path, patch: str, texts: Mapping[Path, str]) -> Mapping[Path, str]:
    """Applies the patch to the incumbent's texts. Raises NotApplicable if the patch does not fit."""
    places = _places(file, patch, texts)
    before = {name: FileContent("file", 0o644, texts[path].encode()) for name, path in places.items()}
    try:
        after = applied(patch, before, 0o644)
        if gone := [name for name, content in after.items() if content.kind != "file"]:
            raise ChangeRefused(f"the patch removes {gone[0]}")
        return {places[name]: content.data.decode() for name, content in after.items()}
    except (ChangeRefused, UnicodeDecodeError) as error:
        other_ends = any(("\r\n" in text) != ("\r\n" in patch) for text in texts.values())
        ends = "; the patch has other line ends than the file" if other_ends else ""
        raise NotApplicable(f"{error}{ends}") from error


def _editable_named(name: str, editable: Collection[Path], refused: str) -> Path:
    """Returns the editable file whose path ends with ``name``, or that has the same file name."""
    parts = Path(name).parts
    matches = [path for path in editable if path.parts[-len(parts) :] == parts]
    matches = matches or [path for path in editable if path.name == parts[-1]]
    if len(matches) != 1:
        raise RequestError(f"{refused}; {_names(editable)}")
    return matches[0]


def _names(editable: Iterable[Path]) -> str:
    return f"editable: {', '.join(str(path) for path in editable)}"
