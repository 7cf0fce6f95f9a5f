"""`lint_paths`: files and folders → what the rules find in them, and what they hold."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import RequestError
from tilewright.lint.findings import Finding, Level
from tilewright.lint.inventory import Item, inventory
from tilewright.lint.rules import ABOUT, CANNOT_READ, RULES, codes
from tilewright.source.source_file import TOO_DEEP, SourceFile

IGNORE = re.compile(r"#\s*tilewright:\s*ignore(?:\[(?P<codes>[^\]]*)\])?")
"""On the line of the finding, or alone on the line above it."""

SKIPPED = {"__pycache__", "node_modules", "build", "dist"}


@dataclass(frozen=True)
class Report:
    """``inventories``: the files that hold kernels, launches or searches, with what they hold."""

    files: tuple[Path, ...]
    findings: tuple[Finding, ...]
    inventories: tuple[tuple[Path, tuple[Item, ...]], ...]
    ignored: int = 0
    """Findings that a comment in the text takes back."""

    def count(self, level: Level) -> int:
        return sum(one.level == level for one in self.findings)

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
) -> Report:
    """What is found in ``paths``; folders stand for the Python files below them.

    select: codes, names or sources (`A-47`, `W1`) of the only rules to use, those that are off by default included.
    ignore: the same, to leave out.
    compile: also load task files and compare the machine code that their hints give, for ``arch``.

    Raises RequestError for a path that does not exist or holds no Python file, UnknownChoice for a rule that does
    not exist.
    """
    wanted = _wanted(select, ignore)
    files = tuple(_files(paths))
    findings: list[Finding] = []
    inventories: list[tuple[Path, tuple[Item, ...]]] = []
    ignored = 0
    for path in files:
        file = _parsed(path)
        if isinstance(file, SourceFile):
            try:
                found, items = _found(file, wanted), inventory(file)
            except RecursionError:
                file = _unreadable(path, TOO_DEEP)
        if isinstance(file, Finding):
            findings += [file] if file.code in wanted else []
            continue
        if compile and "TW501" in wanted:
            from tilewright.lint.no_op_hints import no_op_hints

            found += no_op_hints(file, arch)
        kept = [one for one in found if not _taken_back(file, one)]
        ignored += len(found) - len(kept)
        findings += kept
        if items:
            inventories.append((path, items))
    return Report(files, tuple(findings), tuple(inventories), ignored)


def _wanted(select: Sequence[str], ignore: Sequence[str]) -> set[str]:
    by_default = {code for code, about in ABOUT.items() if about.by_default}
    return (codes(select) if select else by_default) - codes(ignore)


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


def _parsed(file: Path) -> SourceFile | Finding:
    """The file, or the finding that it cannot be read."""
    try:
        return SourceFile.read(file)
    except SyntaxError as error:
        return _unreadable(file, error.msg or "not valid Python", error.lineno or 1, error.offset or 1)
    except RecursionError:
        return _unreadable(file, TOO_DEEP)
    except (ValueError, OSError) as error:
        return _unreadable(file, str(error).splitlines()[0] if str(error) else type(error).__name__)


def _unreadable(file: Path, why: str, line: int = 1, column: int = 1) -> Finding:
    return Finding(CANNOT_READ.code, "error", file, line, column, f"cannot be read: {why}")


def _found(file: SourceFile, wanted: set[str]) -> list[Finding]:
    """In the order of the text."""
    rules = (rule for rule in RULES if rule.about.code in wanted)
    found = (finding for rule in rules for finding in rule.findings(file))
    return sorted(found, key=lambda one: (one.line, one.column, one.code))


def _taken_back(file: SourceFile, finding: Finding) -> bool:
    """Whether a comment says that the finding is known and meant."""
    lines = file.lines
    above = lines[finding.line - 2] if finding.line >= 2 else ""
    for line in (lines[finding.line - 1], above if above.lstrip().startswith("#") else ""):
        match = IGNORE.search(line)
        if match is None:
            continue
        about = ABOUT[finding.code]
        words = {word.strip().lower() for word in (match["codes"] or "").split(",") if word.strip()}
        if not words or words & {about.code.lower(), about.name, *(one.lower() for one in about.sources)}:
            return True
    return False
