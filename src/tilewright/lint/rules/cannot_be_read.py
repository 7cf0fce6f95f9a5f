"""The file is not valid Python, or its expressions are nested too deep.

Nothing in it can be looked at.

Fix: mend the line, or leave the file out of the paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tilewright.lint.rule import LintFinding, Rule
from tilewright.source.source_file import TOO_DEEP, SourceFile


class CannotBeRead(Rule):
    code = "TW001"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        return iter(())  # it has been read

    def because_of(self, path: Path, error: Exception) -> LintFinding:
        """The finding for what reading ``path`` raised."""
        why, line, column = str(error).split("\n")[0] or type(error).__name__, 1, 1
        if isinstance(error, SyntaxError):
            why, line, column = error.msg or "not valid Python", error.lineno or 1, error.offset or 1
        elif isinstance(error, RecursionError):
            why = TOO_DEEP
        return LintFinding(self, self.level, path, line, column, f"cannot be read: {why}")


RULE = CannotBeRead()
