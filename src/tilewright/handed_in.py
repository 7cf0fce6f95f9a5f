"""Entry L: a change from outside the playbook, by a person or a model. It goes through the same gate.

    optimize(…, proposers=[one])        one.propose(seen) → Change | None, asked before every iteration
    tilewright optimize FILE --change faster.patch --change rewritten.py

A change says why it is made, which the commit and the ledger keep (P-25).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tilewright.choosing import Proposal
from tilewright.errors import RequestError
from tilewright.git import Git, GitError
from tilewright.ledger_records import Iteration
from tilewright.playbook.base import Facts, NotApplicable, Risk
from tilewright.versions import read_source

ENTRY = "L"


@dataclass(frozen=True)
class Change:
    """What is handed in: the editable files' whole texts after it."""

    name: str
    rationale: str
    texts: Mapping[Path, str]
    """Those that change; by the path of the user's file."""
    risk: Risk = "lossless"


@dataclass(frozen=True)
class Seen:
    """What a proposer may look at."""

    texts: Mapping[Path, str]
    """The incumbent's."""
    facts: Facts
    iterations: tuple[Iteration, ...]


class Proposer(Protocol):
    def propose(self, seen: Seen) -> Change | None:
        """The next change to try on the incumbent; None when there is none."""
        ...


class FromFiles:
    """Changes from files, one after the other: patches, or whole files that replace one of the same name."""

    def __init__(self, files: Sequence[Path], done: int = 0) -> None:
        for file in files:
            if not file.is_file():
                raise RequestError(f"--change {file}: no such file")
        self._left = list(files[done:])

    def propose(self, seen: Seen) -> Change | None:
        if not self._left:
            return None
        file = self._left.pop(0)
        text = read_source(file)
        texts = _patched(file, text, seen.texts) if _is_patch(text) else _replaced(file, text, seen.texts)
        return Change(file.name, f"handed in as {file.name}", texts)


def proposal_of(change: Change, texts: Mapping[Path, str]) -> Proposal:
    """The change as something that the loop can try."""
    if outside := [path for path in change.texts if path not in texts]:
        raise RequestError(f"{change.name} changes {outside[0]}, which is not editable; {_names(texts)}")

    def apply(value: object) -> Mapping[Path, str]:
        if all(texts[path] == text for path, text in change.texts.items()):
            raise NotApplicable("it is what stands there already")
        return {**texts, **change.texts}

    return Proposal(
        entry=ENTRY, name=f"handed in: {change.name}", place=change.name, risk=change.risk,
        values=lambda: (change.name,), apply=apply, score=float("inf"), why=change.rationale,
    )  # fmt: skip


def _is_patch(text: str) -> bool:
    return any(line.startswith(("diff --git ", "--- ", "Index: ")) for line in text.splitlines())


def _replaced(file: Path, text: str, texts: Mapping[Path, str]) -> Mapping[Path, str]:
    named = [path for path in texts if path.name == file.name] or (list(texts) if len(texts) == 1 else [])
    if len(named) != 1:
        raise RequestError(f"--change {file}: no editable file has that name; {_names(texts)}")
    return {named[0]: text}


def _patched(file: Path, patch: str, texts: Mapping[Path, str]) -> Mapping[Path, str]:
    """The patch on the incumbent's texts. It may name them with any leading folders."""
    with tempfile.TemporaryDirectory(prefix="tilewright-patch-") as folder:
        git = Git(Path(folder))
        git("init", "--quiet")
        told = git("apply", "--numstat", "-", stdin=patch).splitlines()
        names = [line.split("\t")[2] for line in told]
        places = {name: _editable(file, name, texts) for name in names}
        for name, path in places.items():
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).write_bytes(texts[path].encode())
        try:
            git("apply", "--whitespace=nowarn", "-", stdin=patch)
        except GitError as error:
            raise RequestError(f"--change {file} does not apply to the incumbent: {error}") from error
        return {path: (Path(folder) / name).read_bytes().decode() for name, path in places.items()}


def _editable(file: Path, name: str, texts: Mapping[Path, str]) -> Path:
    """The editable file that a patch means by ``name``: the one whose path ends with it, or has its file name."""
    parts = Path(name).parts
    fitting = [path for path in texts if path.parts[-len(parts) :] == parts] or [
        path for path in texts if path.name == parts[-1]
    ]
    if len(fitting) != 1:
        raise RequestError(f"--change {file} changes {name}, which is not editable; {_names(texts)}")
    return fitting[0]


def _names(texts: Mapping[Path, str]) -> str:
    return f"editable: {', '.join(str(path) for path in texts)}"
