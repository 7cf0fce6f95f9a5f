"""Defines the base class of lint rules, and the record of a finding."""

from __future__ import annotations

import ast
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

from tilewright.source.source_file import SourceFile

Level: TypeAlias = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


class Rule(ABC):
    """Finds one known mistake. A rule implements `findings`, and its docstring is the text that users read.

    A rule is listed in the ``RULES`` of a file in `lint/rules/`, or an installed package registers the rule under the
    entry point `tilewright.lint`. The class ``NoPrint`` defines the rule no_print.

    The docstring belongs to the class or, if the class has none, to its module. First, one sentence says what is wrong.
    A paragraph says why this matters, with a figure. The lines ``Fix: …`` and ``Sources: …; …`` follow.
    """

    level: Level = "error"
    code = ""
    """SARIF's ``ruleId``, by default the rule's name. Options and comments accept the code or the name."""
    by_default = True

    def __init__(self, code: str = "", level: Level | None = None) -> None:
        self.code, self.level = code or self.code, level or self.level

    @abstractmethod
    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        """Yields the mistakes in one parsed file. An implementation must not raise for any valid file."""

    def compiled_findings(self, file: SourceFile, arch: str) -> Iterator[LintFinding]:
        """Yields the mistakes that only compiling for ``arch`` shows. Called only with ``--compile``."""
        return iter(())

    def distinct_findings(self, file: SourceFile) -> tuple[LintFinding, ...]:
        return tuple(dict.fromkeys(self.findings(file)))

    def at(self, file: SourceFile, node: ast.AST, message: str, level: Level | None = None) -> LintFinding:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        return LintFinding(self, level or self.level, file.path, line, column + 1, message)

    @property
    def name(self) -> str:
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def rule_id(self) -> str:
        return self.code or self.name

    def is_called(self, word: str) -> bool:
        """Returns whether ``word`` is the rule's name or code, in upper or lower case and with "-" or "_"."""
        return word.strip().lower().replace("-", "_") in (self.name, self.code.lower())

    @cached_property
    def _paragraphs(self) -> list[str]:
        text = type(self).__doc__ or sys.modules[type(self).__module__].__doc__ or ""
        return [" ".join(paragraph.split()) for paragraph in re.split(r"\n\n|\n(?=\s*(?:Fix|Sources):)", text)]

    def _marked(self, mark: str) -> str:
        text = next((text for text in self._paragraphs if text.startswith(mark)), "")
        return text.removeprefix(mark).strip().rstrip(".")

    @property
    def title(self) -> str:
        """One sentence that says what is wrong, without its full stop."""
        return self._paragraphs[0].rstrip(".")

    @property
    def why(self) -> str:
        """The paragraphs that say why the mistake matters."""
        return " ".join(text for text in self._paragraphs[1:] if not text.startswith(("Fix:", "Sources:")))

    @property
    def fix(self) -> str:
        return self._marked("Fix:")

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(filter(None, self._marked("Sources:").split("; ")))


@dataclass(frozen=True)
class LintFinding:
    """One mistake in one file. ``line`` and ``column`` count from 1."""

    rule: Rule
    level: Level
    file: Path
    line: int
    column: int
    message: str

    @property
    def code(self) -> str:
        return self.rule.rule_id
