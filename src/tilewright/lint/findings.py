"""What a rule is and what it finds. A rule says what is wrong, why it matters with its number, and the fix."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from tilewright.source.source_file import SourceFile

Level: TypeAlias = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One place in one file. Lines and columns count from 1."""

    code: str
    level: Level
    file: Path
    line: int
    column: int
    message: str


@dataclass(frozen=True)
class About:
    """Everything about a rule but how it finds.

    ``why`` carries the number and where it comes from. ``sources`` are the ids of pitfalls and weaknesses that
    the rule stands for; `--select` takes them as well as ``code`` and ``name``.
    """

    code: str
    name: str
    level: Level
    title: str
    why: str
    fix: str
    sources: tuple[str, ...]
    by_default: bool = True

    def at(self, file: SourceFile, node: ast.AST, message: str, level: Level | None = None) -> Finding:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        return Finding(self.code, level or self.level, file.path, line, column + 1, message)


class Rule(Protocol):
    """``findings`` reads one parsed file and must not fail on any valid one."""

    @property
    def about(self) -> About: ...

    def findings(self, file: SourceFile) -> Iterator[Finding]: ...
