"""The conformance kit that every rule of `tilewright lint` passes: it finds its bad example at the right lines,
leaves its good one alone, and says why with its source (requirements 2.4, K6, Part 7 checks 7, 8 and 10)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.lint.rule_examples import EXAMPLES

from tilewright.lint.findings import LEVELS, Finding, Rule
from tilewright.lint.rules import ABOUT, CANNOT_READ, NO_OP_HINT, RULES, codes
from tilewright.source.source_file import SourceFile


def found(rule: Rule, text: str) -> list[Finding]:
    return list(rule.findings(SourceFile(Path("kernel.py"), text)))


def marked(text: str) -> list[int]:
    """Lines that end in ``# !``, once for each mark."""
    lines = enumerate(text.splitlines(), 1)
    return [line for line, content in lines for _ in range(content.partition("  # ")[2].split().count("!"))]


by_code = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.about.name)


@by_code
def test_it_finds_its_bad_example_at_the_right_lines(rule: Rule) -> None:
    bad = EXAMPLES[rule.about.code].bad
    assert marked(bad)
    assert sorted(finding.line for finding in found(rule, bad)) == marked(bad)


@by_code
def test_it_leaves_its_good_example_alone(rule: Rule) -> None:
    assert not marked(EXAMPLES[rule.about.code].good)
    assert not found(rule, EXAMPLES[rule.about.code].good)


@by_code
def test_its_columns_point_into_the_line(rule: Rule) -> None:
    lines = EXAMPLES[rule.about.code].bad.splitlines()
    for finding in found(rule, EXAMPLES[rule.about.code].bad):
        assert finding.code == rule.about.code
        assert finding.level in LEVELS
        assert lines[finding.line - 1][finding.column - 1 :].strip()
        assert finding.message == finding.message.strip()
        assert "\n" not in finding.message


@by_code
def test_it_says_where_it_comes_from(rule: Rule) -> None:
    about = rule.about
    assert about.title
    assert about.fix
    assert about.sources, "an id of the requirements or of the facts"
    assert any(source.removeprefix("rule ") in about.why for source in about.sources) or re.search(r"\d", about.why)


@by_code
def test_it_survives_every_text(rule: Rule) -> None:
    """A rule meets the examples of all others, and odd files."""
    odd = [
        "",
        "x",
        "def f(*a, **k): ...",
        "class A:\n    x = y = 1\n",
        "f()(g)[h](lambda: 0)",
        "a: int\nfor a in a: a += a",
    ]
    for text in [*odd, *(text for one in EXAMPLES.values() for text in (one.bad, one.good))]:
        found(rule, text)


def test_every_rule_has_its_own_code_and_name() -> None:
    abouts = [*(rule.about for rule in RULES), CANNOT_READ, NO_OP_HINT]
    assert len({about.code for about in abouts}) == len({about.name for about in abouts}) == len(abouts) == len(ABOUT)
    assert set(EXAMPLES) == {rule.about.code for rule in RULES}


@pytest.mark.parametrize("code", sorted(EXAMPLES))
def test_the_examples_are_python(code: str) -> None:
    compile(EXAMPLES[code].bad, "bad.py", "exec")
    compile(EXAMPLES[code].good, "good.py", "exec")


@pytest.mark.parametrize(
    "pitfall", ["A-41", "A-42", "A-45", "A-46", "A-47", "A-11", "A-16", "A-21", "A-35", "X-03", "X-18", "X-19", "X-21",
                "X-22", "W1", "W2", "W3", "W4", "W6", "W7", "W12", "rule 5", "rule 6", "rule 7", "rule 8", "rule 11",
                "rule 16", "rule 17", "rule 18"],
)  # fmt: skip
def test_each_pitfall_that_syntax_shows_has_a_rule(pitfall: str) -> None:
    assert codes([pitfall])


@pytest.mark.parametrize("outdated", ["rule 10", "rule 12"])
def test_outdated_rules_are_not_reported(outdated: str) -> None:
    """K6: `break` in loops since cuda-tile 1.6, `arange` with start and step."""
    assert not any(outdated in about.sources for about in ABOUT.values())
    text = """\
import cuda.tile as ct

@ct.kernel
def k(x, n: int):
    for i in range(n):
        if i == 3:
            break
        at = ct.arange(64, dtype=ct.int32, start=8, step=2)
        ct.scatter(x, at, 1.0)
"""
    assert not [finding for rule in RULES for finding in found(rule, text)]
