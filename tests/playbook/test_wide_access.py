"""Numbers of the launch that become constants, and the masks and bound checks that are not needed then."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import libcst as cst
import pytest
from tests.playbook.configured import MATMUL
from tests.playbook.gathers import ROW, copy
from tests.playbook.kit import changed_lines, only, verdict
from tests.playbook.test_alignment_facts import FLAT

from tilewright.playbook.base import NotApplicable
from tilewright.playbook.entries import check_bounds, constant_arguments, wide_access
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, codes_of, facts_of, loaded

GROUPS = '''\
"""Groups of a flat array, each divided by its largest element."""

import cuda.tile as ct
import numpy as np
import tilewright as tw


@ct.kernel
def scaled(x, q, s, stride, n, size, groups, BLOCK: ct.Constant[int], ROWS: ct.Constant[int]):
    rows = ct.bid(0) * ROWS + ct.arange(ROWS, dtype=ct.int32)[:, None]
    columns = ct.arange(BLOCK, dtype=ct.int32)
    mask = columns < n
    places = rows * stride + columns
    values = ct.astype(ct.gather(x, (places,), check_bounds=True, padding_value=0.0), ct.float32)
    largest = ct.max(ct.abs(values), axis=1, keepdims=True)
    beyond = ct.full((BLOCK,), size, dtype=ct.int32)
    masked = ct.where(mask, places, beyond)
    ct.scatter(q, (masked,), ct.astype(values / ct.maximum(largest, 1e-10), q.dtype), check_bounds=True)
    ct.scatter(s, (ct.where(rows < groups, rows, groups),), largest)


def reference(x, G):
    rows = x.reshape(G, 128)
    largest = np.abs(rows).max(axis=1, keepdims=True)
    return (rows / np.maximum(largest, 1e-10)).reshape(-1), largest.reshape(-1)


def launch(x, q, s, G, config):
    return tw.Launch(scaled, (-(-G // config.ROWS),), (x, q, s, 128, 128, G * 128, G, 128, config.ROWS))


task = tw.Task(
    name="scaled",
    tensors={
        "x": tw.Tensor(("G * 128",), "bfloat16"),
        "q": tw.Output(("G * 128",), "bfloat16"),
        "s": tw.Output(("G",), "float32"),
    },
    reference=reference,
    launch=launch,
    flops=lambda G: 256 * G,
    space=tw.Space(constants={"ROWS": (8, 16)}, shipped={"ROWS": 8}),
    workloads={"many": {"G": 4096}, "ragged": {"G": 1001}},
)
'''
RAGGED = GROUPS.replace('"many": {"G": 4096}', '"many": {"G": 4095}')
NARROW = GROUPS.replace("128, 128, G * 128", "128, 100, G * 128")


class TestConstantArguments(EntryContract):
    entry = constant_arguments.ENTRY
    examples: ClassVar = {"groups": GROUPS}
    elsewhere: ClassVar = {"no integer": MATMUL, "another number for each width": FLAT}


class TestWideAccess(EntryContract):
    entry = wide_access.ENTRY
    examples: ClassVar = {"groups": GROUPS}
    elsewhere: ClassVar = {"no integer": copy(ROW), "ragged": RAGGED}


def wide(text: str, folder: Path) -> str:
    """The text after both parts of the entry."""
    for entry in wide_access.ENTRY.parts:
        site = only(entry.sites(Source("task.py", text), facts_of(loaded(text, folder))))
        text = entry.apply(Source("task.py", text), site, site.values[0])
    return text


def test_masks_and_checks_fall_away_where_the_launch_is_even(tmp_path: Path) -> None:
    _, new = changed_lines(GROUPS, text := wide(GROUPS, tmp_path))
    assert "def scaled(x, q, s, stride: ct.Constant[int], n: ct.Constant[int], size, groups," in text
    assert "masked = ct.where(mask, places, beyond) if RAGGED else places" in new
    assert sum("check_bounds=RAGGED" in line for line in new) == 3
    assert "or G % config.ROWS != 0" in new, new
    codes = codes_of(loaded(text, tmp_path))
    before = codes_of(loaded(GROUPS, tmp_path))
    assert before != codes and codes["many"] != codes["ragged"]
    copies = facts_of(loaded(text, tmp_path)).codes["many"].copies
    assert copies == {"LDG.128": 1, "STG.128": 1, "STG.32": 1}, "16 bytes at a time"
    said = verdict(loaded(text, tmp_path))
    assert said.verdict.startswith("correct"), said.reason


def test_it_says_what_keeps_it_from_a_kernel(tmp_path: Path) -> None:
    """Groups and strides that change together with the extent are no constants, although each alone cannot change."""
    square = GROUPS
    for old, new in (
        ('Tensor(("G * 128",)', 'Tensor(("G * S",)'), ('Output(("G * 128",)', 'Output(("G * S",)'),
        ("(x, q, s, 128, 128, G * 128, G,", "(x, q, s, S, S, G * S, G,"), ("s, G, config", "s, G, S, config"),
        ("(x, G)", "(x, G, S)"), ("(G, 128)", "(G, S)"), ("lambda G: 256 * G", "lambda G, S: 2 * S * G"),
        ('{"many": {"G": 4096}, "ragged": {"G": 1001}}', '{"many": {"G": 128, "S": 128}}'),
        ("    work", "    serves=lambda G, S: G == S,\n    work"),
    ):  # fmt: skip
        square = square.replace(old, new)
    facts, source = facts_of(loaded(square, tmp_path)), Source("task.py", square)
    assert not constant_arguments.ENTRY.sites(source, facts)
    reason = "stride, n, size, groups differ between served shapes"
    assert constant_arguments.ENTRY.why_not(source, facts) == reason == wide_access.ENTRY.why_not(source, facts)
    ragged = facts_of(loaded(RAGGED, tmp_path))
    assert check_bounds.ENTRY.why_not(Source("task.py", RAGGED), ragged) == "no workload consists of whole tiles"


def test_a_signature_of_several_lines_gets_a_parameter_in_its_form(tmp_path: Path) -> None:
    text = GROUPS.replace("scaled(x,", "scaled(\n    x,").replace(
        "ROWS: ct.Constant[int])", "ROWS: ct.Constant[int]\n)"
    )
    assert "ROWS: ct.Constant[int], RAGGED: ct.Constant[bool]\n):" in wide(text, tmp_path)


def test_a_number_that_follows_a_dimension_is_no_constant(tmp_path: Path) -> None:
    """One workload alone: half as many groups are served, too."""
    text = GROUPS.replace(', "ragged": {"G": 1001}', "").replace(
        "workloads=", "serves=lambda G: G % 512 == 0,\n    workloads="
    )
    site = only(constant_arguments.ENTRY.sites(Source("task.py", text), facts_of(loaded(text, tmp_path))))
    assert site.values == ("stride n",)


@pytest.mark.parametrize("value", ["", "x width", "BLOCK"])
def test_only_plain_parameters_become_constants(value: str, tmp_path: Path) -> None:
    site = only(constant_arguments.ENTRY.sites(Source("task.py", GROUPS), facts_of(loaded(GROUPS, tmp_path))))
    with pytest.raises(NotApplicable, match="are not plain"):
        constant_arguments.ENTRY.apply(Source("task.py", GROUPS), site, value)


def test_a_mask_that_is_needed_stays(tmp_path: Path) -> None:
    text = wide(NARROW, tmp_path)
    assert "masked = ct.where(mask, places, beyond)\n" in text and text.count("check_bounds=RAGGED") == 2


def test_an_index_of_another_shape_keeps_its_mask(tmp_path: Path) -> None:
    """Without the mask, the index would have one element, and store less."""
    text = GROUPS.replace("ct.where(rows < groups, rows, groups)", "ct.where(columns < n, rows, groups)")
    text = text.replace(",), largest)", ",), ct.broadcast_to(largest, (ROWS, BLOCK)))")
    source = Source("task.py", text)
    [site] = check_bounds.ENTRY.sites(source, facts_of(loaded(text, tmp_path)))
    changed = Source("task.py", check_bounds.ENTRY.apply(source, site, site.values[0]))
    assert len(changed.every(cst.IfExp, changed.functions["scaled"])) == 1
    assert "ct.where(columns < n, rows, groups)," in changed.text


TYPED = """\
import cuda.tile as ct
import numpy as np
import tilewright as tw


@ct.kernel
def typed(x, y, s, m, TILE: ct.Constant[int]):
    i = ct.bid(0) * TILE + ct.arange(TILE, dtype=ct.int32)
    ct.scatter(y, i, ct.astype({value}, ct.int32))


task = tw.Task(
    name="typed",
    tensors={{"x": tw.Tensor(("N",), "{dtype}"), "y": tw.Output(("N",), "int32")}},
    reference=lambda x: {reference},
    launch=lambda x, y, N, config: tw.Launch(typed, (-(-N // config.TILE),), (x, y, {s}, {m}, config.TILE)),
    flops=lambda: 1,
    space=tw.Space(constants={{"TILE": (64,)}}, shipped={{"TILE": 64}}),
    workloads={{"only": {{"N": 256}}}},
)
"""
NARROW_TILE = TYPED.format(value="ct.gather(x, i) * s", dtype="int8", reference="x.astype(np.int64) * 100", s=100, m=1)
BEYOND_8_BITS = NARROW_TILE.replace("* 100", "* 300").replace("y, 100", "y, 300")
WRAPPED = TYPED.format(
    value="ct.gather(x, i) + (s * m) // 65536", dtype="int32", s=1103515245, m=12345,
    reference="x + int(np.int64(1103515245 * 12345).astype(np.int32) // 65536)",
)  # fmt: skip
OTHER_MODULE = NARROW_TILE.replace(
    "import cuda.tile as ct",
    "from cuda.tile import Constant, arange, astype, bid, full, gather, int32, kernel, scatter",
).replace("ct.", "")


@pytest.mark.parametrize(
    "text", [NARROW_TILE, BEYOND_8_BITS, WRAPPED, OTHER_MODULE], ids=["8 bits", "beyond 8 bits", "wrapped", "imported"]
)
def test_arithmetic_keeps_its_types(text: str, tmp_path: Path) -> None:
    """A constant would take the type of the tile that it meets; two constants would not wrap."""
    site = only(constant_arguments.ENTRY.sites(Source("task.py", text), facts_of(loaded(text, tmp_path))))
    changed = constant_arguments.ENTRY.apply(Source("task.py", text), site, site.values[0])
    for each in (text, changed):
        said = verdict(loaded(each, tmp_path))
        assert said.verdict.startswith("correct"), said.reason


def test_a_launch_with_a_number_that_is_no_integer_stays_right(tmp_path: Path) -> None:
    text = TYPED.format(value="ct.gather(x, i) * s", dtype="float32", reference="x * 3", s=3, m=1)
    text = text.replace("ct.astype(ct.gather(x, i) * s, ct.int32)", "ct.gather(x, i) * s").replace(
        'tw.Output(("N",), "int32")', 'tw.Output(("N",), "float32")'
    )
    site = only(constant_arguments.ENTRY.sites(Source("task.py", text), facts_of(loaded(text, tmp_path))))
    changed = constant_arguments.ENTRY.apply(Source("task.py", text), site, site.values[0])
    said = verdict(loaded(changed.replace("x * 3", "x * 2.5").replace("y, 3, 1", "y, 2.5, 1"), tmp_path))
    assert said.verdict.startswith("correct"), said.reason
