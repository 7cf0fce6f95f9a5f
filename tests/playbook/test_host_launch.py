"""A changed launch is written only where statements can precede the program's call; all else is refused by a line."""

from __future__ import annotations

import pytest

from tilewright.playbook.analyses.host_launch import TaskLaunch, launch_number, with_launch
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Source

TASK = """import tilewright as tw

def launch(x, y, M, config):
    return tw.Launch(module.k, (M, 1), (x, y))

task = tw.Task(launch=launch)
"""
CHANGED = TASK.replace(
    "    return tw.Launch(module.k, (M", "    blocks = M // 2\n    return tw.Launch(module.k, (blocks"
)
HOST = "import cuda.tile as ct\n\n@ct.kernel\ndef k(x, y):\n    pass\n\ndef run(x, y, s):\n    "
CALL = "ct.launch(s, (x.shape[0], 1), k, (x, y))"


def rewritten(statement: str, after: str = CHANGED) -> str:
    source = Source("host.py", HOST + statement.replace("CALL", CALL) + "\n")
    before, changed = (TaskLaunch(Source("captured.py", text), {}) for text in (TASK, after))
    place = launch_number(source, 8 + statement.partition("CALL")[0].count("\n"))
    return with_launch(source, place, before, changed, {"x": ("M",), "y": ("M",)})


@pytest.mark.parametrize("statement", ["CALL", "return CALL", "done = CALL", "if s:\n        CALL"])
def test_a_statement_precedes_the_call(statement: str) -> None:
    text = rewritten(statement)
    compile(text, "host.py", "exec")
    indent = " " * (8 if "if" in statement else 4)
    assert f"\n{indent}blocks = x.shape[0] // 2\n{indent}" in text and "(blocks, 1), k, (x, y)" in text


@pytest.mark.parametrize(
    "statement",
    [
        "[CALL for x, y in s]", "f = lambda x: CALL", "x is not None and CALL", "return CALL if s else None",
        "if s: CALL", "if CALL: pass", "while CALL:\n        pass", "with CALL: pass", "for x in y: CALL",
        "x = y; CALL", "def inner(a=CALL): pass", "@CALL\n    def inner(): pass", "print(f'{CALL}')", "assert CALL",
        "x = (yield CALL)", "(z := CALL)",
    ],
)  # fmt: skip
def test_a_part_of_another_statement_is_refused(statement: str) -> None:
    """The new statement would run where its names have no value, or where the call does not run."""
    with pytest.raises(NotApplicable, match="host.py:8 is a part of another statement; fix: write ct.launch"):
        rewritten(statement)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("ct.launch(s, (), k, (x, y))", "the grid '\\(\\)' has no axis 0"),
        ("ct.launch(s, (x.shape[0], 1), k, (x,))", "the arguments of the launch are not written as a tuple"),
        ("ct.launch(s, (x.shape[0], 1), k, [*x])", "the arguments of the launch are not written as a tuple"),
        ("ct.launch(s, (x.shape[0], 1), k, args=(x, y))", "does not pass stream, grid, kernel and arguments"),
        ("ct.launch(*s)", "does not pass stream, grid, kernel and arguments"),
    ],
)
def test_a_call_of_another_form_is_refused(statement: str, said: str) -> None:
    half = CHANGED.replace("(blocks, 1), (x, y)", "(blocks, M), (y, x)")
    with pytest.raises(NotApplicable, match=said):
        rewritten(statement, half)


def test_arguments_are_changed_and_added_at_once() -> None:
    text = rewritten("CALL", TASK.replace("(x, y)", "(x, x, 2 * M)"))
    assert "k, (x, x, 2 * x.shape[0]))" in text


BRANCHES = """if s:
        grid = (x.shape[0], 1)
        ct.launch(s, grid, k, (x, y))
    else:
        grid = (2, 1)
        ct.launch(s, grid, k, (y, x))"""


def test_a_grid_that_is_assigned_in_two_branches_is_the_one_before_the_call() -> None:
    less = TASK.replace("(M, 1)", "(min(M, 8),)")
    source = Source("host.py", HOST + BRANCHES + "\n")
    before, after = (TaskLaunch(Source("captured.py", text), {}) for text in (TASK, less))
    text = with_launch(source, launch_number(source, 10), before, after, {"x": ("M",), "y": ("M",)})
    assert "ct.launch(s, (min(grid[0], 8),), k, (x, y))" in text and "ct.launch(s, grid, k, (y, x))" in text


def test_a_grid_that_may_have_two_values_is_refused() -> None:
    either = "grid = (2, 1)\n    if s:\n        grid = (x.shape[0], 1)\n    ct.launch(s, grid, k, (x, y))"
    source = Source("host.py", HOST + either + "\n")
    before, after = (
        TaskLaunch(Source("captured.py", text), {}) for text in (TASK, TASK.replace("(M, 1)", "(M // 2,)"))
    )
    with pytest.raises(NotApplicable, match="the grid 'grid' is not written as a tuple"):
        with_launch(source, launch_number(source, 11), before, after, {"x": ("M",), "y": ("M",)})
