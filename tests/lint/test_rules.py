"""Every shipped rule of `tilewright lint` keeps the contract (requirements 2.4, K6, Part 7 checks 7, 8 and 10), and a
rule from outside is found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lint import rule_examples, triton_examples

from tilewright import plugins
from tilewright.errors import RequestError
from tilewright.lint.linting import lint_paths, sarif
from tilewright.lint.rules import named, rules
from tilewright.testing.rules import RuleContract, found

EXAMPLES = rule_examples.EXAMPLES | triton_examples.EXAMPLES
OTHERS = tuple(text for example in EXAMPLES.values() for text in (example.bad, example.good))


def contract(code: str) -> type[RuleContract]:
    """The tests of one rule; it meets the examples of all others."""
    (rule,) = named([code])
    example = EXAMPLES[code]
    return type("Contract", (RuleContract,), {"rule": rule, "bad": example.bad, "good": example.good, "others": OTHERS})


globals().update({f"Test_{code}": contract(code) for code in EXAMPLES})


def test_every_rule_has_its_own_code_and_name() -> None:
    codes = {rule.code for rule in rules()}
    assert len(codes) == len({rule.name for rule in rules()}) == len(rules())
    assert set(EXAMPLES) == codes - {"TW001", "TW501"}


@pytest.mark.parametrize("code", sorted(EXAMPLES))
def test_the_examples_are_python(code: str) -> None:
    compile(EXAMPLES[code].bad, "bad.py", "exec")
    compile(EXAMPLES[code].good, "good.py", "exec")


PITFALLS = {
    "A-41": "in_place_search", "A-42": "large_product", "A-45": "space_is_no_list", "A-46": "fp8_division",
    "A-47": "hints_on_hot_path", "A-11": "decorator_hints", "A-16": "no_switch", "A-21": "search_on_hot_path",
    "A-35": "autotune_launch", "X-03": "dead_switch", "X-18": "no_such_name", "X-19": "swizzle_without_clamp",
    "X-21": "cache_key", "X-22": "cache_key", "W1": "hints_not_applied", "W2": "hopper_takes_blackwell",
    "W3": "cache_key", "W4": "process_only_cache", "W6": "compiler_timeout", "W7": "current_device",
    "W12": "hints_on_hot_path", "rule 5": "not_an_argument", "rule 6": "device_op_on_host", "rule 7": "no_such_method",
    "rule 8": "kernel_called", "rule 11": "grid_shape", "rule 16": "not_an_argument", "rule 17": "runtime_shape",
    "rule 18": "unused_parameter",
}  # fmt: skip


@pytest.mark.parametrize("pitfall", PITFALLS)
def test_each_pitfall_that_syntax_shows_has_a_rule(pitfall: str) -> None:
    assert named([PITFALLS[pitfall]])


@pytest.mark.parametrize("outdated", ["rule 10", "rule 12"])
def test_outdated_rules_are_not_reported(outdated: str) -> None:
    """K6: `break` in loops since cuda-tile 1.6, `arange` with start and step."""
    assert not any(outdated in rule.sources for rule in rules())
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
    assert not [finding for rule in rules() for finding in found(rule, text)]


# A rule from outside ----------------------------------------------------------------------------------

TOY = '''\
"""Something is printed on every call.

A print takes 5 µs, and nobody reads it.

Fix: log it.

Sources: Python 3.11: print.
"""

import ast

from tilewright.lint.rule import Rule


class NoPrint(Rule):
    level = "warning"

    def findings(self, file):
        for call in file.every(ast.Call):
            if file.dotted(call.func) == "print":
                yield self.at(file, call, "this prints")


RULE = NoPrint()
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package whose metadata names a rule, as pip would install it."""
    (tmp_path / "no_print.py").write_text(TOY)
    (tmp_path / "toy_rules-1.0.dist-info").mkdir()
    (tmp_path / "toy_rules-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: toy-rules\nVersion: 1\n"
    )
    points = tmp_path / "toy_rules-1.0.dist-info" / "entry_points.txt"
    points.write_text("[tilewright.lint]\nno_print = no_print:RULE\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    rules.cache_clear()
    yield points
    rules.cache_clear()
    sys.modules.pop("no_print", None)


def test_a_rule_of_another_package_is_found_and_keeps_the_contract(installed: Path, tmp_path: Path) -> None:
    (rule,) = named(["no-print"])
    assert (rule.name, rule.rule_id, rule.title) == ("no_print", "no_print", "Something is printed on every call")
    toy = type("Toy", (RuleContract,), {"rule": rule, "bad": "print(1)  # !\n", "good": "log(1)\n"})()
    for name in dir(toy):
        if name.startswith("test_"):
            getattr(toy, name)()
    path = tmp_path / "k.py"
    path.write_text("print(1)\nprint(2)  # tilewright: ignore[no_print]\n")
    report = lint_paths([path])
    assert [(finding.line, finding.level, finding.message) for finding in report.findings] == [
        (1, "warning", "this prints")
    ]
    assert report.ignored == 1
    assert "'ruleId': 'no_print'" in str(sarif(report, tmp_path, "1.0"))


@pytest.mark.parametrize(
    ("point", "said"),
    [("no_print:MISSING", "does not load from no_print:MISSING"), ("no_print:TOY", "names a int, not a rule")],
)
def test_a_package_whose_rule_cannot_be_used_is_named(installed: Path, tmp_path: Path, point: str, said: str) -> None:
    (tmp_path / "no_print.py").write_text(TOY + "\nTOY = 3\n")
    installed.write_text(f"[tilewright.lint]\nno_print = {point}\n")
    with pytest.raises(RequestError, match=said):
        rules()
    installed.write_text("[tilewright.lint]\nno_print = no_print:RULE\nagain = no_print:RULE\n")
    plugins._installed.cache_clear()  # as in the next process
    with pytest.raises(RequestError, match="names a second rule no_print"):
        rules()
