"""Changes from a person or a model instead of the playbook. They must pass the same gate.

optimize(…, proposers=[proposer])   # proposer.propose(seen) → Change | None, called before every iteration
tilewright optimize FILE --change faster.patch --change rewritten.py
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tilewright.errors import RequestError, TaskError
from tilewright.ledger.records import Iteration
from tilewright.optimize.choosing import Proposal
from tilewright.optimize.versions.git import Git, GitError
from tilewright.optimize.versions.version import read_source
from tilewright.playbook.base import KernelFacts, NotApplicable, Risk

ENTRY = "proposed"


@dataclass(frozen=True)
class Change:
    """A proposed change. ``rationale``: the reason for it, which the commit and the ledger store."""

    name: str
    rationale: str
    texts: Mapping[Path, str]
    """Path of the user's file → the whole new text, for each changed file."""
    risk: Risk = "lossless"
    unusable: str = ""
    """Why the change does not fit the incumbent; empty if it does."""


@dataclass(frozen=True)
class Seen:
    """What a proposer may read: the incumbent, and the iterations so far."""

    texts: Mapping[Path, str]
    facts: KernelFacts
    iterations: tuple[Iteration, ...]


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


def proposal_of(change: Change, texts: Mapping[Path, str]) -> Proposal:
    """Turns the change into a proposal for the loop."""

    def apply(value: object) -> Mapping[Path, str]:
        if change.unusable:
            raise NotApplicable(change.unusable)
        if outside := [path for path in change.texts if path not in texts]:
            raise NotApplicable(f"it changes {outside[0]}, which is not editable; {_names(texts)}")
        return {**texts, **change.texts}

    return Proposal(
        entry=ENTRY, name=f"proposed: {change.name}", place=change.name, risk=change.risk,
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
    """Maps the file names in a patch to the editable files. The names may have any leading folders."""
    with _repository() as git:
        try:
            stats = git("apply", "--numstat", "-z", "-", stdin=patch)
        except GitError as error:
            raise RequestError(f"--change {file} is not a patch that git understands: {error}") from error
    names = [line.split("\t")[-1] for line in stats.split("\0") if line]
    return {
        name: _editable_named(name, editable, f"--change {file} changes {name}, which is not editable")
        for name in names
    }


def patched(file: Path, patch: str, texts: Mapping[Path, str]) -> Mapping[Path, str]:
    """Applies the patch to the incumbent's texts. Raises NotApplicable if the patch does not fit."""
    places = _places(file, patch, texts)
    with _repository() as git:
        for name, path in places.items():
            (git.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (git.folder / name).write_bytes(texts[path].encode())
        try:
            git("apply", "--whitespace=nowarn", "-", stdin=patch)
            return {path: read_source(git.folder / name) for name, path in places.items()}
        except (GitError, TaskError) as error:
            other_ends = any(("\r\n" in text) != ("\r\n" in patch) for text in texts.values())
            fix = "the patch has other line ends than the file" if other_ends else "make it anew from the file as it is"
            raise NotApplicable(f"the patch does not fit the incumbent: {error}; {fix}") from error


@contextmanager
def _repository() -> Iterator[Git]:
    """Makes a temporary empty repository, so that `git apply` uses no repository above its folder."""
    with tempfile.TemporaryDirectory(prefix="tilewright-patch-") as folder:
        git = Git(Path(folder))
        git("init", "--quiet")
        git("config", "core.autocrlf", "false")
        yield git


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
