"""Lines of a change that became too long are broken as ruff and black break them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.playbook.plain import SCALE_ROWS, launch_facts

from tilewright.playbook.analyses.short_lines import LIMIT, with_short_lines
from tilewright.playbook.entries.persistent import ENTRY
from tilewright.source.syntax import Source

CASES = {
    "one method called on a call": (
        """\
if True:
    value = ct.load(NAME, (0,), (NAME, 1)).reshape((1, NAME))
""",
        """\
if True:
    value = ct.load(NAME, (0,), (NAME, 1)).reshape(
        (1, NAME)
    )
""",
    ),
    "arguments on one indented line": (
        """\
if True:
    result_of_it = function(NAME, NAME, NAME)
""",
        """\
if True:
    result_of_it = function(
        NAME,
        NAME,
        NAME,
    )
""",
    ),
    "a line for each argument": (
        """\
value = function(NAME, NAME, other=NAME, last=(NAME, 2))
""",
        """\
value = function(
    NAME,
    NAME,
    other=NAME,
    last=(NAME, 2),
)
""",
    ),
    "parameters of a function": (
        """\
def kernel(NAME, NAME, NAME: ct.Constant):
    pass
""",
        """\
def kernel(
    NAME,
    NAME,
    NAME: ct.Constant,
):
    pass
""",
    ),
    "an operation gets parentheses": (
        """\
total_of_all = NAME + NAME * NAME - f(1)
""",
        """\
total_of_all = (
    NAME
    + NAME * NAME
    - f(1)
)
""",
    ),
    "an operation over several lines": (
        """\
ragged = NAME % 128 != 0 or NAME % 64 != 0 or NAME < 3
""",
        """\
ragged = (
    NAME % 128 != 0
    or NAME % 64 != 0
    or NAME < 3
)
""",
    ),
    "an argument of a call that is broken already": (
        """\
task = Task(
    name="x",
    space=Space(constants={"NAME": 2}, shipped={"NAME": 1}, more=True, other=1),
)
""",
        """\
task = Task(
    name="x",
    space=Space(
        constants={"NAME": 2},
        shipped={"NAME": 1},
        more=True,
        other=1,
    ),
)
""",
    ),
    "parameters that share an indented line": (
        """\
def kernel(
    NAME, NAME, NAME_longer
):
    pass
""",
        """\
def kernel(
    NAME,
    NAME,
    NAME_longer,
):
    pass
""",
    ),
    "a comment stays at the end": (
        """\
if True:
    x = f(NAME, NAME)  # why this is so, in some more words of prose
""",
        """\
if True:
    x = f(
        NAME, NAME
    )  # why this is so, in some more words of prose
""",
    ),
    "brackets in strings are text": (
        """\
print(f"({NAME}) ) ] {NAME}", "(", NAME)
""",
        """\
print(
    f"({NAME}) ) ] {NAME}",
    "(",
    NAME,
)
""",
    ),
    "a result": (
        """\
if True:
    return tw.Launch(NAME, (NAME,), (x, y, NAME, config.ROWS, 1))
""",
        """\
if True:
    return tw.Launch(
        NAME,
        (NAME,),
        (x, y, NAME, config.ROWS, 1),
    )
""",
    ),
    "a load": (
        """\
if True:
    NAME = ct.load(NAME, (row, NAME), shape=(1, TILE_N))
""",
        """\
if True:
    NAME = ct.load(
        NAME, (row, NAME), shape=(1, TILE_N)
    )
""",
    ),
    "a gather": (
        """\
if True:
    hidden_value = ct.gather(NAME, (NAME * TILE + ct.arange(TILE, dtype=ct.int32), NAME), check_bounds=False)
""",
        """\
if True:
    hidden_value = ct.gather(
        NAME,
        (
            NAME * TILE + ct.arange(TILE, dtype=ct.int32),
            NAME,
        ),
        check_bounds=False,
    )
""",
    ),
    "a loop": (
        """\
if True:
    for row in range(ct.bid(0) * NAME, min((ct.bid(0) + 1) * NAME, NAME_items)):
        pass
""",
        """\
if True:
    for row in range(
        ct.bid(0) * NAME,
        min((ct.bid(0) + 1) * NAME, NAME_items),
    ):
        pass
""",
    ),
    "a decorator": (
        """\
@ct.kernel(occupancy=2, num_ctas=2, NAME=3, NAME_b=6, NAME_c=4)
def f():
    pass
""",
        """\
@ct.kernel(
    occupancy=2,
    num_ctas=2,
    NAME=3,
    NAME_b=6,
    NAME_c=4,
)
def f():
    pass
""",
    ),
    "a lambda": (
        """\
launch = lambda x, y, M, N, config, hardware: tw.Launch(NAME, (min(NAME, 2), 1), (x, y, NAME))
""",
        """\
launch = lambda x, y, M, N, config, hardware: tw.Launch(
    NAME,
    (min(NAME, 2), 1),
    (x, y, NAME),
)
""",
    ),
    "a product of brackets": (
        """\
if True:
    in_band = GROUP_SIZE_M * (NAME // NAME + NAME // NAME) % 7
""",
        """\
if True:
    in_band = (
        GROUP_SIZE_M
        * (
            NAME // NAME
            + NAME // NAME
        )
        % 7
    )
""",
    ),
    "a method and a product": (
        """\
if True:
    value = NAME.reshape((NAME, NAME)) * NAME
""",
        """\
if True:
    value = (
        NAME.reshape(
            (NAME, NAME)
        )
        * NAME
    )
""",
    ),
    "methods called on calls": (
        """\
if True:
    value = ct.load(NAME, (0,), (NAME,)).astype(NAME).reshape((1, NAME))
""",
        """\
if True:
    value = (
        ct.load(NAME, (0,), (NAME,))
        .astype(NAME)
        .reshape((1, NAME))
    )
""",
    ),
    "a condition": (
        """\
if True:
    if NAME > NAME and NAME < NAME:
        pass
""",
        """\
if True:
    if (
        NAME > NAME
        and NAME < NAME
    ):
        pass
""",
    ),
}
"""Before and after, by `ruff format --line-length 119`; NAME is `LONG`."""
LONG = "a_name_that_is_long_enough_for_a_line"


@pytest.mark.parametrize("name", CASES)
def test_a_long_line_is_broken_as_by_a_formatter(name: str) -> None:
    long, short = (text.replace("NAME", LONG) for text in CASES[name])
    assert max(map(len, long.splitlines())) > LIMIT, "the case is no case"
    assert with_short_lines("", long) == short
    assert ast.dump(ast.parse(short)) == ast.dump(ast.parse(long))
    assert max(map(len, short.splitlines())) <= LIMIT


@pytest.mark.parametrize("name", CASES)
def test_a_line_that_was_there_stays(name: str) -> None:
    long = CASES[name][0].replace("NAME", LONG)
    assert with_short_lines(long, long + "x = 1\n") == long + "x = 1\n"


def test_what_cannot_be_broken_stays() -> None:
    text = f'x = "{LONG * 4}"\n'
    assert with_short_lines("", text) == text


def test_line_endings_stay() -> None:
    long, short = (text.replace("NAME", LONG).replace("\n", "\r\n") for text in CASES["an operation gets parentheses"])
    assert with_short_lines("", long) == short


def test_the_change_of_an_entry_is_short(tmp_path: Path) -> None:
    """What the author wrote stays as it is, also where it is long."""
    text = SCALE_ROWS.replace("scale_rows", "scale_rows_by_the_weight_of_each_column_that_they_have")
    text = text.replace("# which row", f"# which row {LONG * 3}")
    source = Source("task.py", text)
    (site,) = ENTRY.sites(source, launch_facts(text, tmp_path))
    long, short = (change(source, site, 4).splitlines() for change in (ENTRY.apply, ENTRY.change))
    written = [line for line in long if len(line) > LIMIT and line not in text.splitlines()]
    assert written and not set(written) & set(short)
    assert [line for line in short if len(line) > LIMIT] == [f"    # which row {LONG * 3}"]
    assert [line for line in short if line in long] == [line for line in long if line not in written]
