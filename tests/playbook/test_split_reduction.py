"""A long reduction is split over blocks; the last block that finishes combines the parts, in one order."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import libcst as cst
import numpy as np
import pytest
from tests.playbook.kit import verdict
from tests.playbook.plain import BATCHED_PRODUCT, HALF_PRODUCT, HEAD, PRODUCT, applied, launch_facts
from tests.playbook.row_loops import TWICE

from tilewright.playbook.base import NotApplicable, Site
from tilewright.playbook.entries.split_reduction import ENTRY, _range
from tilewright.source.syntax import Source
from tilewright.testing.entries import H200, EntryContract, loaded
from tilewright.verify.check import check
from tilewright.verify.images import POISONS, ROW_MAJOR, images_for
from tilewright.verify.interpreted import InterpreterEngine, RunOptions

LONG_SUMS = Path("bench/planted/too_few_blocks.py").read_text().replace('"M": 24, "N": 1 << 22', '"M": 24, "N": 70000')
FEW = '{"M": 64, "N": 96, "K": 4096}'
LONG_PRODUCT = PRODUCT.replace("DTYPE", "float32").replace('{"M": 2000, "N": 1999, "K": 64}', FEW)
THREE_AXES = BATCHED_PRODUCT.replace('"B": 3, "M": 700, "N": 999', '"B": 2, "M": 64, "N": 96')
EXTREMES = (
    HEAD
    + """
@ct.kernel
def extremes(x, low, high, SIZE: ct.Constant[int]):
    row = ct.bid(0)
    least = ct.full((1, SIZE), np.inf, ct.float32)
    most = ct.full((1, SIZE), -np.inf, ct.float32)
    for start in range(0, x.shape[1], SIZE):
        at = start + ct.arange(SIZE, dtype=ct.int32)[None, :]
        least = ct.minimum(least, ct.gather(x, (row, at), padding_value=np.inf))
        most = ct.maximum(ct.gather(x, (row, at), padding_value=-np.inf), most)
    # the ends of a row
    ct.store(low, (row,), ct.min(least, axis=1))
    widest = ct.max(most, axis=1)
    ct.store(high, (row,), widest)


def launch(x, low, high, M):
    return tw.Launch(extremes, (M,), (x, low, high, 128))


task = tw.Task(
    name="extremes",
    tensors={"x": tw.Tensor(("M", "N"), "float32"), "low": tw.Output(("M",), "float32"),
             "high": tw.Output(("M",), "float32")},
    reference=lambda x: (x.min(axis=1), x.max(axis=1)),
    launch=launch,
    flops=lambda M, N: 2 * M * N,
    independent=("M",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"rows": {"M": 5, "N": 9000}},
)
"""
)


class TestSplitReduction(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"rows": LONG_SUMS, "product": LONG_PRODUCT}
    elsewhere: ClassVar = {"enough blocks": LONG_SUMS.replace('"M": 24', '"M": 132')}


@pytest.mark.parametrize(
    "text", [LONG_SUMS, LONG_PRODUCT, THREE_AXES, EXTREMES], ids=["rows", "product", "three axes", "extremes"]
)
def test_more_blocks_compute_what_one_did(text: str, tmp_path: Path) -> None:
    """K17: under drawn orders of the blocks, and with the races that the sanitizer finds."""
    old, new = loaded(text, tmp_path), loaded(applied(ENTRY, text, tmp_path, 4), tmp_path)
    grids = [launch_facts(each.file.read_text(), tmp_path).launches[0].grid for each in (old, new) if each.file]
    assert math.prod(grids[1]) == 4 * math.prod(grids[0])
    assert verdict(new).verdict.startswith("correct"), verdict(new).reason


def test_the_kernel_reads_aloud(tmp_path: Path) -> None:
    new = applied(ENTRY, EXTREMES, tmp_path, 8)
    assert new[new.index("    part = ") : new.index("def launch")].rstrip() == '''
    part = ct.bid(1)
    for start in range(part * SIZE, x.shape[1], 8 * SIZE):
        at = start + ct.arange(SIZE, dtype=ct.int32)[None, :]
        least = ct.minimum(least, ct.gather(x, (row, at), padding_value=np.inf))
        most = ct.maximum(ct.gather(x, (row, at), padding_value=-np.inf), most)
    item = ct.bid(0)
    least = ct.min(least, axis=1)
    ct.store(least_parts, (item, part, 0), ct.reshape(least, (1, 1, 1)), allow_tma=False)
    most = ct.max(most, axis=1)
    ct.store(most_parts, (item, part, 0), ct.reshape(most, (1, 1, 1)), allow_tma=False)
    # the last part
    if ct.atomic_add(arrived, (item,), 1).item() == SPLITS - 1:
        least = ct.reshape(ct.load(least_parts, (item, 0, 0), (1, 1, 1), allow_tma=False), (1,))
        most = ct.reshape(ct.load(most_parts, (item, 0, 0), (1, 1, 1), allow_tma=False), (1,))
        for other in range(1, SPLITS):
            least = ct.minimum(least, ct.reshape(ct.load(least_parts, (item, other, 0), (1, 1, 1), allow_tma=False), (1,)))
            most = ct.maximum(most, ct.reshape(ct.load(most_parts, (item, other, 0), (1, 1, 1), allow_tma=False), (1,)))
        # the ends of a row
        ct.store(low, (row,), least)
        widest = most
        ct.store(high, (row,), widest)
'''.strip("\n").replace("8 * SIZE", "SPLITS * SIZE").rstrip()  # fmt: skip  # noqa: E501


def test_the_order_of_the_blocks_does_not_change_a_bit(tmp_path: Path) -> None:
    """The parts are added in one order, by whichever block is the last. Other additions are not."""
    outputs = []
    x = np.random.default_rng(5).normal(size=(3, 70000)).astype(np.float32)
    for text in (LONG_SUMS, applied(ENTRY, LONG_SUMS, tmp_path, 16)):
        task, dims = loaded(text, tmp_path), {"M": 3, "N": 70000}
        for seed in range(3):
            images = images_for(task, dims, {"x": x}, ROW_MAJOR, POISONS[0])
            ran = InterpreterEngine(task, H200).run(task.space.shipped, dims, images, RunOptions(seed=seed, launches=2))
            assert not ran.findings and ran.failed is None and ran.refused is None
            outputs.append(images["total"].array.copy())
    before, after = outputs[:3], outputs[3:]
    assert all((each == before[0]).all() for each in before) and all((each == after[0]).all() for each in after)
    assert (before[0] != after[0]).any(), "another order of additions"
    assert after[0] == pytest.approx(x.astype(np.float64).sum(axis=1), abs=1e-2)


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ("(item,), 1)", "(item,), 1, memory_order=ct.MemoryOrder.RELAXED)", "race"),
        ("== SPLITS - 1", "== SPLITS - 2", "race|total"),
    ],
    ids=["without order", "before the last"],
)
def test_a_wrong_protocol_is_found(right: str, wrong: str, found: str, tmp_path: Path) -> None:
    text = applied(ENTRY, LONG_SUMS, tmp_path, 4)
    assert text.count(right) == 1
    judged = verdict(loaded(text.replace(right, wrong), tmp_path))
    assert judged.verdict == "incorrect" and re.search(found, judged.reason), judged.reason


@pytest.mark.long
def test_a_part_that_is_left_out_is_found(tmp_path: Path) -> None:
    """The reduced shapes of a quick check have fewer chunks than parts; the checks of a kept version do not."""
    text = applied(ENTRY, LONG_SUMS, tmp_path, 4)
    wrong = text.replace("range(1, SPLITS)", "range(2, SPLITS)")
    verdicts = [check(loaded(each, tmp_path), engine="interpreter", seconds=30)[0] for each in (text, wrong)]
    assert [each.verdict for each in verdicts] == ["correct on reduced shapes", "incorrect"]


REFUSED = {
    "an online maximum": (
        Path("bench/aside/cross_entropy.py").read_text(), "the loop does more with weight than to add to it",
    ),
    "a second pass": (TWICE, "has 2 loops in its body"),
    "a start that is not 0": (
        LONG_SUMS.replace("ct.zeros((1, TILE_N), ct.float32)", "ct.full((1, TILE_N), 1.0, ct.float32)"),
        "sums does not begin at 0",
    ),
    "a moving average": (
        LONG_SUMS.replace("sums = sums + ct", "sums += -0.5 * sums + ct"),
        "the loop does more with sums than to add to it",
    ),
    "a recurrence": (
        LONG_PRODUCT.replace("mma(left, right", "mma(left + total, right"),
        "the loop does more with total than to add to it",
    ),
    "a maximum of itself": (
        EXTREMES.replace("-np.inf), most)", "-np.inf) + most * 0.5, most)"), "the loop does more with most",
    ),
    "a maximum that keeps NaN": (
        EXTREMES.replace("-np.inf), most)", "-np.inf), most, propagate_nan=True)"), "the loop does more with most",
    ),
    "a store in the loop": (
        LONG_SUMS.replace("        sums =", "        ct.store(total, (row,), ct.sum(sums, axis=1))\n        sums ="),
        "stores before the end of its loop",
    ),
    "a loop that may end early": (
        LONG_SUMS.replace("        sums = sums", "        if step > 7:\n            break\n        sums = sums"),
        "may end early",
    ),
    "the number of blocks": (LONG_SUMS.replace("row = ct.bid(0)", "row = ct.num_blocks(0) - 1 - ct.bid(0)"),
                             "reads the number of blocks"),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_it_says_what_it_does_not_change(why: str) -> None:
    text, reason = REFUSED[why]
    source = Source("task.py", text)
    [kernel] = source.kernels.values()
    with pytest.raises(NotApplicable, match=reason):
        ENTRY.apply(source, Site.at(source, kernel, "", (4,)), 4)


def test_a_start_that_is_an_expression_keeps_its_value() -> None:
    source = Source("task.py", "for n in range(M & 1, N, 2):\n    pass\n")
    [loop] = source.every(cst.For)
    assert source.code(_range(source, loop, "part", "SPLITS")) == "range((M & 1) + part * 2, N, SPLITS * 2)"


def test_the_ledger_gets_the_reason(tmp_path: Path) -> None:
    few, enough = launch_facts(LONG_SUMS, tmp_path), launch_facts(LONG_SUMS.replace('"M": 24', '"M": 700'), tmp_path)
    source, other = Source("task.py", LONG_SUMS), Source("task.py", TWICE)
    assert ENTRY.why_not(source, enough) == "its 700 blocks are enough for 132 SMs"
    assert ENTRY.why_not(source, few) == "" and ENTRY.why_not(other, few) == ""
    twice = launch_facts(TWICE.replace('"M": 2048', '"M": 20'), tmp_path)
    assert "has 2 loops in its body" in ENTRY.why_not(other, twice)


def test_products_with_enough_blocks_are_left_alone(tmp_path: Path) -> None:
    text = HALF_PRODUCT
    assert not ENTRY.sites(Source("task.py", text), launch_facts(text, tmp_path))
    few = launch_facts(text, tmp_path, replace(H200, sms=100_000))
    assert ENTRY.sites(Source("task.py", text), few)
