"""A change from outside the playbook, by a person or a model. It goes through the same gate.

    optimize(…, proposers=[one])        one.propose(seen) → Change | None, asked before every iteration
    tilewright optimize FILE --change faster.patch --change rewritten.py

A change says why it is made, which the commit and the ledger keep.
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
    """A proposed change: the editable files' whole texts after it."""

    name: str
    rationale: str
    texts: Mapping[Path, str]
    """Those that change; by the path of the user's file."""
    risk: Risk = "lossless"
    unusable: str = ""
    """Why it cannot be made on the incumbent, where that is so."""


@dataclass(frozen=True)
class Seen:
    """What a proposer may look at."""

    texts: Mapping[Path, str]
    """The incumbent's."""
    facts: KernelFacts
    iterations: tuple[Iteration, ...]


class Proposer(Protocol):
    def propose(self, seen: Seen) -> Change | None:
        """The next change to try on the incumbent; None when there is none."""
        ...


def check_changes(files: Sequence[Path], editable: Collection[Path]) -> None:
    """Before anything runs: every file is there, and changes nothing but editable files. Raises RequestError."""
    for file in files:
        if not file.is_file():
            raise RequestError(f"--change {file}: no such file")
        text = read_source(file)
        if _is_patch(text):
            _places(file, text, editable)
        else:
            _replaced(file, editable)


class FromFiles:
    """Changes from files, one after the other: patches, or whole files that replace one of the same name."""

    def __init__(self, files: Sequence[Path], before: Sequence[Iteration] = ()) -> None:
        """``before``: the iterations of an interrupted run; what was proposed there is not tried again."""
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
            texts = _patched(file, text, seen.texts) if _is_patch(text) else {_replaced(file, seen.texts): text}
            return Change(file.name, rationale, texts)
        except NotApplicable as error:
            return Change(file.name, rationale, {}, unusable=str(error))


def proposal_of(change: Change, texts: Mapping[Path, str]) -> Proposal:
    """The change as something that the loop can try."""

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
    """The editable file that a whole file replaces."""
    if len(editable) == 1:
        return next(iter(editable))
    return _meant(file.name, editable, f"--change {file}: no editable file has that name")


def _places(file: Path, patch: str, editable: Collection[Path]) -> Mapping[str, Path]:
    """The names in a patch → the editable files. It may name them with any leading folders."""
    with _repository() as git:
        try:
            told = git("apply", "--numstat", "-z", "-", stdin=patch)
        except GitError as error:
            raise RequestError(f"--change {file} is not a patch that git understands: {error}") from error
    names = [line.split("\t")[-1] for line in told.split("\0") if line]
    return {name: _meant(name, editable, f"--change {file} changes {name}, which is not editable") for name in names}


def _patched(file: Path, patch: str, texts: Mapping[Path, str]) -> Mapping[Path, str]:
    """The patch on the incumbent's texts. Raises NotApplicable."""
    places = _places(file, patch, texts)
    with _repository() as git:
        for name, path in places.items():
            (git.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (git.folder / name).write_bytes(texts[path].encode())
        try:
            git("apply", "--whitespace=nowarn", "-", stdin=patch)
            return {path: read_source(git.folder / name) for name, path in places.items()}
        except (GitError, TaskError) as error:
            raise NotApplicable(f"the patch does not fit the incumbent: {error}") from error


@contextmanager
def _repository() -> Iterator[Git]:
    """A temporary empty git repository, so that `git apply` uses no repository above the folder."""
    with tempfile.TemporaryDirectory(prefix="tilewright-patch-") as folder:
        git = Git(Path(folder))
        git("init", "--quiet")
        git("config", "core.autocrlf", "false")
        yield git


def _meant(name: str, editable: Collection[Path], refused: str) -> Path:
    """The editable file whose path ends with ``name``, or that has its file name."""
    parts = Path(name).parts
    fitting = [path for path in editable if path.parts[-len(parts) :] == parts]
    fitting = fitting or [path for path in editable if path.name == parts[-1]]
    if len(fitting) != 1:
        raise RequestError(f"{refused}; {_names(editable)}")
    return fitting[0]


def _names(editable: Iterable[Path]) -> str:
    return f"editable: {', '.join(str(path) for path in editable)}"
