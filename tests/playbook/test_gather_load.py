"""Entry A in reverse: tile accesses as gathers and scatters (X-17)."""

from pathlib import Path
from typing import ClassVar

import pytest
from tests.playbook.gathers import copy
from tests.playbook.kit import verdict

from tilewright.playbook.base import NotApplicable, Site
from tilewright.playbook.entries.gather_load import ENTRY, EVERY, gathered
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, codes_of, loaded

NAIVE = Path(__file__).parents[2] / "examples" / "naive"
GRID = "(-(-M // config.TILE), -(-N // config.TILE))"
TILES = """
i, j = ct.bid(0), ct.bid(1)
ct.store(y, (i, j), ct.load(x, (i, j), (TILE, TILE), padding_mode=ct.PaddingMode.ZERO))
"""
ROW = """
row = ct.bid(0)
for n in range(ct.cdiv(x.shape[1], TILE)):
    values = ct.load(x, (row, n), (1, TILE), padding_mode=ct.PaddingMode.NEG_INF)
    ct.store(y, (row, n), values)
"""


class TestGatherLoad(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"tiles": copy(TILES, grid=GRID), "row": copy(ROW)}
    elsewhere: ClassVar = {"product": (NAIVE / "matmul_fp32.py").read_text()}


def one(line: str, shape: str = '("M", "N")') -> str:
    source = Source("task.py", copy(line, shape=shape))
    return gathered(source, source.calls("load", "store", inside=source.functions["copy"])[0]).text()


def every(text: str) -> str:
    source = Source("task.py", text)
    line, column = source.place(source.kernels["copy"])
    return ENTRY.apply(source, Site("copy", line, column, "2 tile loads and stores", (EVERY,)), EVERY)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        ("ct.load(x, (3,), (TILE,))", "ct.gather(x, 3 * TILE + ct.arange(TILE, dtype=ct.int32))"),
        ("ct.load(x, (0,), (64,), latency=3)", "ct.gather(x, ct.arange(64, dtype=ct.int32), latency=3)"),
        ("ct.load(x, (n, 0), (1, TILE))", "ct.gather(x, (n, ct.arange(TILE, dtype=ct.int32)[None, :]))"),
        (
            "ct.load(x, index=(ct.bid(0) + 1, 0), shape=(TILE, 1), padding_mode=ct.PaddingMode.NEG_INF)",
            'ct.gather(x, ((ct.bid(0) + 1) * TILE + ct.arange(TILE, dtype=ct.int32)[:, None], 0), '
            'padding_value=-float("inf"))',
        ),
    ],
)  # fmt: skip
def test_each_axis_counts_its_elements(load: str, expected: str) -> None:
    assert one(f"v = {load}") == expected


@pytest.mark.parametrize(
    ("access", "reason"),
    [
        ("v = ct.load(x, (0, 0), (TILE, TILE), order=(1, 0))", "no counterpart"),
        ("v = ct.load(x, (0, 0), (1, 1))", "single element"),
        ("v = ct.load(x, where, (1, TILE))", "not written as a tuple"),
        ("ct.store(y, (0, 0), helper(x))", "shape of helper"),
        ("v = ct.load(x, (0, 0), (1, TILE), memory_order=ct.MemoryOrder.ACQUIRE)", "no counterpart"),
    ],
)
def test_other_accesses_are_left_alone_with_the_reason(access: str, reason: str) -> None:
    with pytest.raises(NotApplicable, match=reason):
        one(access)


@pytest.mark.parametrize("name", list(TestGatherLoad.examples))
def test_the_result_is_right_and_other_code(name: str, tmp_path: Path) -> None:
    text = TestGatherLoad.examples[name]
    task = loaded(every(text), tmp_path)
    said = verdict(task)
    assert said.verdict.startswith("correct"), said.reason
    before, after = codes_of(loaded(text, tmp_path)), codes_of(task)
    assert all(before[workload] != after[workload] for workload in before)
