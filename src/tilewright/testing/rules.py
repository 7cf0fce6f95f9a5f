"""Defines the contract of lint rules. Inherit `RuleContract` in a test file of your rule.

class TestNoPrint(RuleContract):
    rule = RULE
    bad = "print(1)  # !\\n"        # a whole file; each line with a finding ends in # !
    good = "log(1)\\n"              # a whole file without a finding
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import ClassVar

from tilewright.lint.rule import LEVELS, LintFinding, Rule
from tilewright.source.source_file import SourceFile

ODD = ("", "x", "def f(*a, **k): ...", "class A:\n    x = y = 1\n", "f()(g)[h](lambda: 0)", "a: int\nfor a in a: a+=a")
"""Unusual but valid files, with which no rule may crash."""


def marked(text: str) -> list[int]:
    """Returns the number of each line that ends in ``# !``; twice for a line that ends in ``# ! !``."""
    lines = enumerate(text.splitlines(), 1)
    return [line for line, content in lines for _ in range(content.partition("  # ")[2].split().count("!"))]


def found(rule: Rule, text: str) -> tuple[LintFinding, ...]:
    """Returns the findings of ``rule`` in a file with this ``text``."""
    return rule.distinct_findings(_parsed(text))


@cache
def _parsed(text: str) -> SourceFile:
    return SourceFile(Path("kernel.py"), text)


class RuleContract:
    """Tests one rule, on a file with mistakes and on a file without mistakes."""

    rule: ClassVar[Rule]
    bad: ClassVar[str]
    good: ClassVar[str]
    others: ClassVar[tuple[str, ...]] = ()  # more valid files with which the rule must not crash

    def test_it_finds_its_bad_example_at_the_right_lines(self) -> None:
        assert marked(self.bad)
        assert sorted(finding.line for finding in found(self.rule, self.bad)) == marked(self.bad)

    def test_it_leaves_its_good_example_alone(self) -> None:
        assert not marked(self.good)
        assert not found(self.rule, self.good)

    def test_its_columns_point_into_the_line(self) -> None:
        lines = self.bad.splitlines()
        for finding in found(self.rule, self.bad):
            assert finding.code == self.rule.rule_id
            assert finding.level in LEVELS
            assert lines[finding.line - 1][finding.column - 1 :].strip()
            assert finding.message == finding.message.strip()
            assert "\n" not in finding.message

    def test_it_says_why_and_where_that_comes_from(self) -> None:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", self.rule.name)
        assert self.rule.title
        assert self.rule.fix
        assert self.rule.sources, "the docstring needs a line Sources: that names what a reader can open"
        assert any(source in self.rule.why for source in self.rule.sources) or re.search(r"\d", self.rule.why)

    def test_it_survives_every_text(self) -> None:
        for text in (self.bad, self.good, *self.others, *ODD):
            found(self.rule, text)
