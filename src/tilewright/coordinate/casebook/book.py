"""The casebook: joins documented optimisations (cases) from Tilewright, from the ledger, and from other folders."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

from tilewright.coordinate.casebook import case as cases_of_files
from tilewright.coordinate.casebook.case import Precedent
from tilewright.coordinate.casebook.from_agent_runs import from_agent_runs
from tilewright.coordinate.casebook.from_ledger import from_ledger
from tilewright.coordinate.casebook.recall import Match, recall
from tilewright.errors import RequestError
from tilewright.ledger.file import home, make_private

OURS = Path(__file__).parent / "cases"
VARIABLE = "TILEWRIGHT_CASEBOOKS"
"""The environment variable with the folders of other casebooks, separated as in PATH."""
QUESTIONS = "casebook_questions.jsonl"


@dataclass(frozen=True)
class CasebookAnswer:
    """The cases found for a question. ``trace``: the line that records question and answer."""

    question: str
    matches: tuple[Match, ...]

    @property
    def trace(self) -> str:
        if not self.matches:
            return f'CASEBOOK: no-match query="{_quoted(self.question)}"'
        best = self.matches[0]
        return f'CASEBOOK: matched={best.case.name} confidence={best.confidence} adapted="{adapted(best.case)}"'


def adapted(case: Precedent) -> str:
    """Returns a short text about how to use the remedy of the case."""
    how = case.section("Apply via") or case.title
    return _quoted(how.partition("\n")[0].strip("-* "))


def _quoted(text: str) -> str:
    return " ".join(text.replace('"', "'").split())[:300]


@dataclass(frozen=True)
class Casebook:
    """Cases from files and from the ledger. ``folders``: the folders of other people's casebooks."""

    folders: tuple[Path, ...] = ()
    ledger: Path | None = None

    @cached_property
    def cases(self) -> tuple[Precedent, ...]:
        """All cases. A case whose file is malformed has problems, but is also searched."""
        files = (path for folder in (OURS, *self.folders) for path in _files(folder))
        return (*map(cases_of_files.read, files), *from_ledger(self.ledger), *from_agent_runs(self.ledger))

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(" ".join(problem.split()) for case in self.cases for problem in case.problems)

    def ask(self, question: str, most: int = 5) -> CasebookAnswer:
        """Searches all cases for a question."""
        return CasebookAnswer(question, tuple(recall(question, self.cases, most)))


def casebook(folders: Iterable[Path] = (), ledger: Path | None = None) -> Casebook:
    """Returns the casebook with these folders and the folders in the environment variable. Raises RequestError if a
    folder is missing.
    """
    named = [Path(part) for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]
    for folder in (every := [*folders, *named]):
        if not folder.is_dir():
            raise RequestError(f"no such casebook: {folder} is not a folder")
    return Casebook(tuple(every), ledger)


def _files(folder: Path) -> Iterator[Path]:
    """Yields the cases of a casebook: Markdown files in the folders of families."""
    for family in cases_of_files.FAMILIES:
        for root in sorted({path.parent for path in folder.rglob(f"{family}/*.md")}):
            yield from sorted(path for path in root.glob("*.md") if path.stem.lower() not in ("readme", "index"))


def remember(answer: CasebookAnswer, folder: Path | None = None) -> None:
    """Adds a question to the statistics of `coverage`. If the folder cannot be written, does nothing."""
    where = folder or home()
    line = {"at": datetime.now(timezone.utc).isoformat(timespec="seconds"), "matched": bool(answer.matches)}
    try:
        make_private(where)
        with (where / QUESTIONS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "question": answer.question}) + "\n")
    except OSError:
        return


@dataclass(frozen=True)
class Coverage:
    """The number of questions that were asked, and the number without a matching case."""

    questions: int
    without_match: int

    @property
    def no_match_rate(self) -> float | None:
        return self.without_match / self.questions if self.questions else None


def coverage(folder: Path | None = None) -> Coverage:
    """Returns the coverage of the remembered questions. Malformed lines in the file are skipped."""
    try:
        lines: Sequence[str] = (
            ((folder or home()) / QUESTIONS).read_text(encoding="utf-8", errors="replace").splitlines()
        )
    except OSError:
        lines = ()
    found = []
    for line in lines:
        try:
            found.append(bool(json.loads(line)["matched"]))
        except (ValueError, KeyError, TypeError):
            continue
    return Coverage(len(found), found.count(False))
