"""The configuration is found in the forms in which people write it, and changed there (P-16)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.playbook.configured import LISTED, LISTED_TASK, MATMUL, SCALE
from tests.playbook.kit import changed_lines

from tilewright.hardware.architectures import board
from tilewright.playbook.analyses.configuration_sites import current, places, written
from tilewright.playbook.base import KernelFacts, NotApplicable
from tilewright.records import Value
from tilewright.source.syntax import Source
from tilewright.testing.entries import facts_of, loaded

WARPS = {"num_worker_warps": 4}


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> KernelFacts:
    return facts_of(loaded(LISTED + LISTED_TASK, tmp_path_factory.mktemp("listed")))


@pytest.fixture(scope="module")
def matmul(tmp_path_factory: pytest.TempPathFactory) -> KernelFacts:
    return facts_of(loaded(MATMUL, tmp_path_factory.mktemp("matmul")))


def change(text: str, facts: KernelFacts, changes: dict[str, Value], place: int = 0) -> str:
    source = Source("file.py", text)
    found = places(source, facts)[place]
    return written(source, found.site("here", (1,)), changes)


def test_a_space_takes_new_values_and_lists_them(matmul: KernelFacts) -> None:
    text = change(MATMUL, matmul, {"TILE_M": 128, "TILE_K": 64})
    gone, new = changed_lines(MATMUL, text)
    assert gone == [
        'constants={"TILE_M": (64,), "TILE_N": (64,), "TILE_K": (32,)},  # as in the tutorial',
        'shipped={"TILE_M": 64, "TILE_N": 64, "TILE_K": 32},',
    ]
    assert new == [
        'constants={"TILE_M": (64, 128), "TILE_N": (64,), "TILE_K": (32, 64)},  # as in the tutorial',
        'shipped={"TILE_M": 128, "TILE_N": 64, "TILE_K": 64},',
    ]


def test_a_value_that_the_space_lists_is_only_shipped(matmul: KernelFacts) -> None:
    text = MATMUL.replace('"TILE_M": (64,)', '"TILE_M": (64,  128,)')
    assert changed_lines(text, change(text, matmul, {"TILE_M": 128})) == (
        ['shipped={"TILE_M": 64, "TILE_N": 64, "TILE_K": 32},'],
        ['shipped={"TILE_M": 128, "TILE_N": 64, "TILE_K": 32},'],
    )


def test_a_hint_that_the_space_lacks_is_added_and_shipped(matmul: KernelFacts, tmp_path: Path) -> None:
    text = change(MATMUL, matmul, {"occupancy": 2})
    task = loaded(text, tmp_path)
    assert task.space.hints == {"occupancy": (None, 2)}
    assert str(task.space.shipped) == "TILE_M=64,TILE_N=64,TILE_K=32,occupancy=2"


def test_a_hint_is_added_to_a_space_without_knobs(tmp_path: Path) -> None:
    facts = facts_of(loaded(SCALE, tmp_path))
    task = loaded(change(SCALE, facts, {"occupancy": 4, "num_worker_warps": 8}), tmp_path)
    assert str(task.space.shipped) == "occupancy=4,num_worker_warps=8"


def test_an_unknown_knob_is_refused(matmul: KernelFacts) -> None:
    with pytest.raises(NotApplicable, match="TILE_X"):
        change(MATMUL, matmul, {"TILE_X": 128})


def test_the_literals_that_say_what_is_shipped_are_places(listed: KernelFacts) -> None:
    found = places(Source("listed.py", LISTED), listed)
    assert [one.line for one in found] == [11, 12]
    assert found[0].promise > found[1].promise
    assert all(one.constants == ("TILE_M", "TILE_N") for one in found)


def test_a_literal_the_decorator_and_a_fixed_hint_change_together(listed: KernelFacts) -> None:
    """TileGym's FMHA: tiles in a generator, warps in the decorator, occupancy in `replace_hints`."""
    text = change(LISTED, listed, {"TILE_M": 64, "TILE_N": 128, "occupancy": 4, **WARPS})
    gone, new = changed_lines(LISTED, text)
    assert sorted(gone) == [
        "@ct.kernel",
        "return fixed.replace_hints(occupancy=2)",
        "yield SimpleNamespace(TILE_M=128, TILE_N=64, num_ctas=1, occupancy=1)",
    ]
    assert sorted(new) == [
        "@ct.kernel(num_worker_warps=4)",
        "return fixed.replace_hints(occupancy=4)",
        "yield SimpleNamespace(TILE_M=64, TILE_N=128, num_ctas=1, occupancy=1)",
    ]


def test_the_change_in_a_literal_is_the_one_that_is_launched(listed: KernelFacts, tmp_path: Path) -> None:
    text = change(LISTED, listed, {"TILE_M": 64, "TILE_N": 128, **WARPS})
    task = loaded(text + LISTED_TASK, tmp_path)
    assert str(task.space.shipped) == "TILE_M=64,TILE_N=128,num_ctas=auto,occupancy=2,num_worker_warps=4"
    second = loaded(change(LISTED, listed, {"TILE_M": 64}, place=1) + LISTED_TASK, tmp_path)
    assert second.space.shipped == listed.task.space.shipped, "the second literal is not in effect"


def test_a_place_keeps_its_name_when_its_values_change(listed: KernelFacts, tmp_path: Path) -> None:
    """The loop knows by the name what it tried."""
    text = change(LISTED, listed, {"TILE_M": 64, "TILE_N": 128, **WARPS})
    new = facts_of(loaded(text + LISTED_TASK, tmp_path))
    before, after = (places(Source("listed.py", each), facts)[0] for each, facts in ((LISTED, listed), (text, new)))
    assert before.what == after.what == "SimpleNamespace(TILE_M, TILE_N, num_ctas, occupancy)"


def test_hints_of_the_kernel_count_where_the_space_names_none(tmp_path: Path) -> None:
    text = SCALE.replace("@ct.kernel", "@ct.kernel(occupancy=4)")
    now = current(facts_of(loaded(text, tmp_path)))
    assert (now["occupancy"], now["num_worker_warps"]) == (4, None)


@pytest.mark.parametrize(
    ("before", "hints", "after"),
    [
        ("@ct.kernel", {"occupancy": 2}, "@ct.kernel(occupancy=2)"),
        ("@ct.kernel(occupancy=4)", {"occupancy": 2, **WARPS}, "@ct.kernel(occupancy=2, num_worker_warps=4)"),
        ("@ct.kernel(occupancy=4)", {"occupancy": None}, "@ct.kernel"),
    ],
)
def test_the_decorator_of_the_launched_kernel(
    listed: KernelFacts, before: str, hints: dict[str, Value], after: str
) -> None:
    """A module of kernels only: nothing but hints can be changed."""
    start, end = LISTED.index("@ct.kernel"), LISTED.index("\n\ndef tuned")
    text = "import cuda.tile as ct\n\n\n" + LISTED[start:end].replace("@ct.kernel", before)
    assert changed_lines(text, change(text, listed, hints)) == ([before], [after])
    with pytest.raises(NotApplicable, match="TILE_M"):
        change(text, listed, {"TILE_M": 64})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("    tile_m = 128\n    tile_n = 64\n", "    tile_m = 64\n    tile_n = 128\n"),
        ("    TILE_M, TILE_N = 128, 64  # both\n", "    TILE_M, TILE_N = 64, 128  # both\n"),
    ],
)
def test_assignments_to_the_name_of_a_knob(listed: KernelFacts, before: str, after: str) -> None:
    around = LISTED[LISTED.index("@ct.kernel") : LISTED.index("\n\ndef tuned")]
    text = f"import cuda.tile as ct\n\n\n{around}\ndef run(x):\n{before}    return fixed, tile_m\n"
    assert change(text, listed, {"TILE_M": 64, "TILE_N": 128}) == text.replace(before, after)


def test_a_dictionary_of_the_shipped_values(listed: KernelFacts) -> None:
    text = 'TUNED = {"H200": {"TILE_M": 128, "TILE_N": 64}, "B200": {"TILE_M": 256, "TILE_N": 64}}\n'
    assert change(text, listed, {"TILE_N": 128}) == text.replace('128, "TILE_N": 64', '128, "TILE_N": 128')


def test_values_that_differ_or_are_computed_are_no_place(listed: KernelFacts) -> None:
    for text in ("f(TILE_M=256, TILE_N=64)\n", "f(TILE_M=128, TILE_N=size)\n", "f(a=128, TILE_M=128)\n"):
        assert not places(Source("file.py", text), listed)


LOOPS = """\
def configurations():
    capability = torch.cuda.get_device_capability()
    if capability in [(12, 0), (12, 1)]:
        yield SimpleNamespace(TILE_M=128, TILE_N=64)
    elif capability[0] < 9:
        for tile_m in [64, 128]:
            yield SimpleNamespace(TILE_M=tile_m, TILE_N=64)
    else:
        # Hopper and newer
        for tile_m in [64, 128]:
            for occupancy in [1, 2]:
                yield SimpleNamespace(TILE_M=tile_m, TILE_N=64, occupancy=occupancy)  # all
"""


def test_a_configuration_is_yielded_before_the_loops_that_yield_the_shipped_one(listed: KernelFacts) -> None:
    source = Source("file.py", LOOPS)
    (place,) = places(source, listed)
    assert (place.line, place.what, dict(place.fixed)) == (
        10, "the list of configurations", {"TILE_M": 128, "occupancy": 2},
    )  # fmt: skip
    value = place.value({"TILE_N": 32, "TILE_M": 64})
    assert value == "TILE_M=64,occupancy=2,TILE_N=32"
    text = written(source, place.site("here", (value,)), {"TILE_M": 64, "occupancy": 2, "TILE_N": 32})
    comment = "        # Hopper and newer\n"
    new = "        yield SimpleNamespace(TILE_M=64, TILE_N=32, occupancy=2)\n"
    assert text == LOOPS.replace(comment, comment + new)
    with pytest.raises(NotApplicable, match="every knob that the loops set"):
        written(source, place.site("here", (value,)), {"TILE_M": 64})


@pytest.mark.parametrize(("board_name", "lines"), [("H200", [10]), ("A100-80GB", [6]), ("RTX 5090", [4])])
def test_another_architecture_s_list_is_no_place(listed: KernelFacts, board_name: str, lines: list[int]) -> None:
    found = places(Source("file.py", LOOPS), replace(listed, board=board(board_name)))
    assert [one.line for one in found] == lines


def test_an_assignment_in_a_function_must_name_all_constants(listed: KernelFacts) -> None:
    assert not places(Source("file.py", "def other():\n    TILE_M = 128\n    return TILE_M\n"), listed)
    (place,) = places(Source("file.py", "TILE_M = 128\n"), listed)
    assert place.constants == ("TILE_M",)


def test_hints_that_are_not_those_launched_make_a_place_less_likely(listed: KernelFacts) -> None:
    for hints, promise in (("occupancy=2", 1.0), ("occupancy=3", 0.5)):
        (place,) = places(Source("file.py", f"f(TILE_M=128, TILE_N=64, {hints})\n"), listed)
        assert place.promise == promise
