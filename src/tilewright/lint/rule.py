"""What a lint rule is, and what it finds."""

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
    """One known mistake. Write `findings`, and the rule's text as a docstring; everything else has a default.

    A rule is among the ``RULES`` of a file in `lint/rules/`, or named by an installed package under the entry point
    `tilewright.lint`. Its name is that of its class: ``NoPrint`` is no_print. The text is the docstring of the class or
    else of the module, in paragraphs: what is wrong in one sentence, why it matters with its number, ``Fix: …`` and
    ``Sources: …; …``, which a reader can open.
    """

    level: Level = "error"
    code = ""
    """SARIF's ``ruleId``; options and comments take it as well as the name. Without one, the name."""
    by_default = True

    @abstractmethod
    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        """Reads one parsed file, and must not fail on any valid one."""

    def compiled_findings(self, file: SourceFile, arch: str) -> Iterator[LintFinding]:
        """With ``--compile``: what only compiling for ``arch`` shows."""
        return iter(())

    def found(self, file: SourceFile) -> tuple[LintFinding, ...]:
        """`findings`, each once."""
        return tuple(dict.fromkeys(self.findings(file)))

    def at(self, file: SourceFile, node: ast.AST, message: str, level: Level | None = None) -> LintFinding:
        """A finding at the place of ``node``."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        return LintFinding(self, level or self.level, file.path, line, column + 1, message)

    @property
    def name(self) -> str:
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def rule_id(self) -> str:
        return self.code or self.name

    def is_called(self, word: str) -> bool:
        """Whether a word of an option or a comment names this rule; ``cache-key`` is ``cache_key``."""
        return word.strip().lower().replace("-", "_") in (self.name, self.code.lower())

    @cached_property
    def _paragraphs(self) -> list[str]:
        text = type(self).__doc__ or sys.modules[type(self).__module__].__doc__ or ""
        return [" ".join(paragraph.split()) for paragraph in re.split(r"\n\n|\n(?=\s*(?:Fix|Sources):)", text)]

    def _marked(self, mark: str) -> str:
        return next((text.removeprefix(mark).strip() for text in self._paragraphs if text.startswith(mark)), "")

    @property
    def title(self) -> str:
        """What is wrong, in one sentence without its full stop."""
        return self._paragraphs[0].rstrip(".")

    @property
    def why(self) -> str:
        """Why it matters, with its number."""
        return " ".join(text for text in self._paragraphs[1:] if not text.startswith(("Fix:", "Sources:")))

    @property
    def fix(self) -> str:
        return self._marked("Fix:").rstrip(".")

    @property
    def sources(self) -> tuple[str, ...]:
        """What a reader can open."""
        return tuple(filter(None, self._marked("Sources:").rstrip(".").split("; ")))


@dataclass(frozen=True)
class LintFinding:
    """One place in one file. Lines and columns count from 1."""

    rule: Rule
    level: Level
    file: Path
    line: int
    column: int
    message: str

    @property
    def code(self) -> str:
        return self.rule.rule_id
