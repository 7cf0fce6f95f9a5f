"""`lint_paths`: what the rules find in files and folders, and what the files hold."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import RequestError
from tilewright.lint.inventory import InventoryItem, inventory
from tilewright.lint.rule import Level, LintFinding, Rule
from tilewright.lint.rules import named, rules
from tilewright.lint.rules.cannot_be_read import CannotBeRead
from tilewright.source.source_file import SourceFile

IGNORE = re.compile(r"#\s*tilewright:\s*ignore(?:\[(?P<rules>[^\]]*)\])?")
"""On the line of the finding, or alone on the line above it."""

SKIPPED = {"__pycache__", "node_modules", "build", "dist"}


@dataclass(frozen=True)
class LintReport:
    """``inventories``: the files that hold kernels, launches or searches, with what they hold."""

    files: tuple[Path, ...]
    findings: tuple[LintFinding, ...]
    inventories: tuple[tuple[Path, tuple[InventoryItem, ...]], ...]
    ignored: int = 0
    """How many findings comments take back."""

    def count(self, level: Level) -> int:
        return sum(finding.level == level for finding in self.findings)

    @property
    def clean(self) -> bool:
        """Nothing at warning or above."""
        return not self.count("error") and not self.count("warning")


def lint_paths(
    paths: Sequence[Path],
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    compile: bool = False,
    arch: str | None = None,
) -> LintReport:
    """What is found in ``paths``; folders stand for the Python files below them.

    select: names or codes of the only rules to use, those that are off by default included.
    ignore: the same, to leave out.
    compile: also load task files and compare the machine code that their hints give, for ``arch``.

    Raises RequestError for a path that does not exist or holds no Python file, UnknownChoice for a rule that does
    not exist.
    """
    wanted = (named(select) if select else {rule for rule in rules() if rule.by_default}) - named(ignore)
    files = tuple(_files(paths))
    findings: list[LintFinding] = []
    inventories: list[tuple[Path, tuple[InventoryItem, ...]]] = []
    ignored = 0
    for path in files:
        outcome = _linted(path, wanted)
        if isinstance(outcome, Exception):
            findings += [rule.because_of(path, outcome) for rule in wanted if isinstance(rule, CannotBeRead)]
            continue
        file, found, items = outcome
        if compile:
            found += [finding for rule in wanted for finding in rule.compiled_findings(file, arch or "sm_90")]
        kept = [finding for finding in found if not _taken_back(file, finding)]
        ignored += len(found) - len(kept)
        findings += kept
        if items:
            inventories.append((path, items))
    return LintReport(files, tuple(findings), tuple(inventories), ignored)


def _linted(
    path: Path, wanted: set[Rule]
) -> tuple[SourceFile, list[LintFinding], tuple[InventoryItem, ...]] | Exception:
    """The file with its findings in the order of the text and its inventory, or the error of reading it."""
    try:
        file = SourceFile.read(path)
    except (SyntaxError, RecursionError, ValueError, OSError) as error:
        return error
    try:
        found = [finding for rule in wanted for finding in rule.found(file)]
        return file, sorted(found, key=lambda finding: (finding.line, finding.column, finding.code)), inventory(file)
    except RecursionError as error:
        return error


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise RequestError(f"no such file or folder: {path}")
        files = list(_below(path)) if path.is_dir() else [path]
        if not files:
            left_out = ", ".join(("hidden folders", *sorted(SKIPPED)))
            raise RequestError(f"no Python file below {path}; left out: {left_out}")
        for file in files:
            if file.resolve() not in seen:
                seen.add(file.resolve())
                yield file


def _below(folder: Path) -> Iterator[Path]:
    """The Python files of a folder. A folder, a pipe or a dead link with such a name is none."""
    for file in sorted(folder.rglob("*.py")):
        inside = file.relative_to(folder).parts[:-1]
        if any(part in SKIPPED or part.startswith(".") for part in inside):
            continue
        try:
            if stat.S_ISREG(file.stat().st_mode):
                yield file
        except FileNotFoundError:
            continue
        except OSError:
            yield file  # reading it says why it cannot be read


def _taken_back(file: SourceFile, finding: LintFinding) -> bool:
    """Whether a comment says that the finding is known and meant."""
    above = file.lines[finding.line - 2] if finding.line >= 2 else ""
    for line in (file.lines[finding.line - 1], above if above.lstrip().startswith("#") else ""):
        if match := IGNORE.search(line):
            words = [word for word in (match["rules"] or "").split(",") if word.strip()]
            if not words or any(map(finding.rule.is_called, words)):
                return True
    return False
