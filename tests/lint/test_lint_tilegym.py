"""TileGym 1.5.1 as it is installed: the weaknesses that a person found there are found, at the right lines.

The lines are looked up in the text by another way than the linter's, never written down here.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from functools import cache
from pathlib import Path

import pytest

from tilewright.lint.linting import LintReport, lint_paths

FOUND = importlib.util.find_spec("tilegym")
pytestmark = pytest.mark.skipif(FOUND is None, reason="needs TileGym's files (pip install --no-deps tilegym==1.5.1)")
ROOT = Path(FOUND.origin).parent if FOUND is not None and FOUND.origin else Path()
RECORDED = Path(__file__).parents[2] / "bench" / "recorded" / "lint-tilegym-2026-11-21.json"


@cache
def report() -> LintReport:
    return lint_paths([ROOT])


def places(code: str) -> set[tuple[str, int]]:
    return {(str(one.file.relative_to(ROOT)), one.line) for one in report().findings if one.code == code}


@cache
def texts() -> dict[str, list[str]]:
    files = sorted(ROOT.rglob("*.py"))
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").splitlines() for path in files}


def line_of(file: str, pattern: str, after: str = "") -> int:
    """The first line of ``file`` with ``pattern`` behind the first line with ``after``."""
    lines = texts()[file]
    start = next(i for i, line in enumerate(lines) if re.search(after, line))
    return next(i for i in range(start, len(lines)) if re.search(pattern, lines[i])) + 1


@pytest.mark.long
def test_the_inventory_finds_every_search() -> None:
    """Part 7 check 1 and P-04: in all files that search, kernels, launches, spaces and searches."""
    pattern = re.compile(r"= (ct\.tune\.)?exhaustive_search\(")
    calls = {
        file: [number for number, line in enumerate(lines, 1) if pattern.search(line)]
        for file, lines in texts().items()
    }
    calls = {file: lines for file, lines in calls.items() if lines}
    assert len(calls) == 40
    assert sum(map(len, calls.values())) == 65
    inventories = {str(file.relative_to(ROOT)): items for file, items in report().inventories}
    for file, lines in calls.items():
        kinds = {item.what for item in inventories[file]}
        assert {"kernel", "launch", "search", "space"} <= kinds, file
        assert [item.line for item in inventories[file] if item.what == "search"] == lines, file
        registered = sum(line.startswith("@register_impl(") for line in texts()[file])
        assert sum(item.what == "registration" for item in inventories[file]) == registered, file


def test_all_kernels_are_in_the_inventory() -> None:
    decorated = 0
    for lines in texts().values():
        try:
            tree = ast.parse("\n".join(lines))
        except SyntaxError:
            continue
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        decorated += sum(
            any(re.match(r"(ct|cuda_tile|tile)\.kernel\b", ast.unparse(one)) for one in node.decorator_list)
            for node in functions
        )
    found = sum(item.what == "kernel" for _, items in report().inventories for item in items)
    assert found == decorated > 150


def test_w1_fmha_searches_without_hints() -> None:
    file = "ops/cutile/attention.py"
    searched = line_of(file, r"exhaustive_search\(", after=r"if fwd_cache_key not in _fmha_fwd_tune_cache")
    assert (file, searched) in places("TW102")
    launched = line_of(file, r"_fmha_kernel\.replace_hints\(occupancy=2\)")
    assert (file, launched) in places("TW103")
    backward = {line_of(file, r"exhaustive_search\(", after=f"if {name}_cache_key not in") for name in ("dkdv", "dq")}
    assert not {(file, line) for line in backward} & places("TW102"), "these pass their hints"


def test_w3_keys_leave_out_what_matters() -> None:
    file = "suites/liger/cutile/softmax.py"
    for name, key in (("FWD", r"key = \(\"tma\""), ("BWD", r"key = \("), ("MULTI", r"key = \(\"multi_fwd\"")):
        after = {
            "FWD": "def _get_tuned_single_kernel",
            "BWD": "def _get_tuned_bwd_kernel",
            "MULTI": "def _get_tuned_multi",
        }
        line = line_of(file, key, after=after[name])
        (message,) = (
            one.message for one in report().findings
            if one.code == "TW201" and one.file == ROOT / file and one.line == line
        )  # fmt: skip
        assert "n_rows" in message
        assert "the device" in message
        assert f"_SOFTMAX_{name}_TUNE_CACHE" in message
    file = "ops/cutile/matmul.py"
    lines = {line_of(file, r"cache_key = \(", after=f"def {name}\\(")
             for name in ("_cutile_autotune_matmul", "_cutile_autotune_static_persistent_matmul")}  # fmt: skip
    assert {(file, line) for line in lines} <= places("TW201")


def test_a_key_of_whole_tensors_is_believed() -> None:
    """mamba2's key takes shape, stride, dtype and device of each tensor."""
    told = [one for one in report().findings if one.code == "TW201" and one.file.name == "mamba2.py"]
    assert all(one.message.endswith("leaves out the tensors' alignment") for one in told)


def test_w6_every_compiler_timeout_is_found() -> None:
    expected = {
        (file, number)
        for file, lines in texts().items()
        for number, line in enumerate(lines, 1)
        if re.search(r"with ct\.compiler_timeout\(", line)
    }
    assert len({file for file, _ in expected}) == 12
    assert places("TW108") == expected


def test_w12_grpo_rebuilds_hints_on_each_call_when_disabled() -> None:
    file = "suites/liger/cutile/grpo_loss.py"
    line = line_of(file, r"return _grpo_loss_fwd_ct\.replace_hints", after=r"def _tuned_fwd_kernel")
    assert (file, line) in places("TW203")
    stored = line_of(file, r"_fwd_autotune_cache\[cache_key\] = _grpo_loss_fwd_ct\.replace_hints")
    assert (file, stored) not in places("TW203")


def test_files_that_ask_for_no_switch() -> None:
    """A-16. Counted in the text: none of the words by which TileGym's files ask."""
    asks = re.compile(r"is_autotune_disabled|is_autotune_enabled|use_autotune|_AUTOTUNE\b")
    searching = {file: "\n".join(lines) for file, lines in texts().items() if "exhaustive_search(" in "\n".join(lines)}
    silent = {file for file, text in searching.items() if not asks.search(text)}
    assert {file for file, _ in places("TW206")} == silent
    assert len(silent) == 16


def test_nothing_else_in_tilegym_is_an_error() -> None:
    """Each kind of error was looked at by a person (bench/recorded)."""
    assert {one.code for one in report().findings if one.level == "error"} == {"TW102", "TW203", "TW204", "TW302"}


def test_the_reading_by_hand_is_of_these_findings() -> None:
    """At most one in ten of 50 findings, drawn at random and read, is a false alarm."""
    recorded = json.loads(RECORDED.read_text())
    assert len(recorded["findings"]) == 50
    now = {(str(one.file.relative_to(ROOT)), one.line, one.code) for one in report().findings}
    for one in recorded["findings"]:
        assert (one["file"], one["line"], one["code"]) in now
        assert one["verdict"] in {"true", "false"}
        assert len(one["sentence"].split()) >= 4
    false = sum(one["verdict"] == "false" for one in recorded["findings"])
    assert false == 50 - recorded["true"]
    assert false <= 5
