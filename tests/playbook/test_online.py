"""The maximum of a row and the sum of its exponentials are computed in one pass."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from tests.playbook.kit import verdict
from tests.playbook.plain import HEAD, SCALE_ROWS, applied, launch_facts
from tests.playbook.row_loops import SOFTMAX, TWICE

from tilewright.inspect.work import count
from tilewright.playbook.analyses.chunk_loops import SHORT
from tilewright.playbook.entries.online import ENTRY, ONLINE
from tilewright.source.syntax import Source
from tilewright.testing.entries import H200, EntryContract, loaded

LOGSUMEXP = (
    HEAD
    + """
@ct.kernel
def logsumexp(x, y, COLUMNS: ct.Constant[int], TILE: ct.Constant[int]):
    row = ct.bid(0)
    most = ct.full((1, 1), -np.inf, dtype=ct.float32)
    for n in range(ct.cdiv(COLUMNS, TILE)):
        values = ct.load(x, (row, n), (1, TILE), padding_mode=ct.PaddingMode.NEG_INF)
        most = ct.maximum(ct.max(values, axis=1, keepdims=True), most)
    total = ct.zeros((1, TILE), ct.float32)
    for step in range(ct.cdiv(COLUMNS, TILE)):
        again = ct.load(x, (row, step), (1, TILE), padding_mode=ct.PaddingMode.NEG_INF)
        total += ct.exp2((again - most) * 1.4426950408889634, flush_to_zero=True)
    ct.store(y, (row,), (most + ct.log(ct.sum(total, axis=1, keepdims=True))).reshape((1,)))


def launch(x, y, M, N, config):
    return tw.Launch(logsumexp, (M,), (x, y, N, config.TILE))


task = tw.Task(
    name="logsumexp",
    tensors={"x": tw.Tensor(("M", "N"), "float32"), "y": tw.Output(("M",), "float32")},
    reference=lambda x: np.log(np.exp(x - x.max(axis=1, keepdims=True)).sum(axis=1)) + x.max(axis=1),
    launch=launch,
    flops=lambda M, N: 4 * M * N,
    independent=("M",),
    space=tw.Space(constants={"TILE": (256,)}, shipped={"TILE": 256}),
    workloads={"rows": {"M": 512, "N": 1000}},
)
"""
)


class TestOnline(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"softmax": SOFTMAX, "logsumexp": LOGSUMEXP}
    elsewhere: ClassVar = {
        "no loop": SCALE_ROWS,
        "a mean": TWICE,
        "a sum that stores": LOGSUMEXP.replace("        total +=", "        ct.store(y, (row,), most.reshape((1,)))\n"
                                               "        total +="),
        "another use of the maximum": LOGSUMEXP.replace("(again - most)", "(again - most) * most"),
        "no exponential": LOGSUMEXP.replace("ct.exp2((again - most) * 1.4426950408889634, flush_to_zero=True)",
                                            "ct.sqrt(again - most)"),
    }  # fmt: skip


@pytest.mark.parametrize(("text", "passes"), [(SOFTMAX, (4, 3)), (LOGSUMEXP, (2, 1))], ids=["softmax", "logsumexp"])
def test_the_row_is_read_once_less_and_the_result_is_right(text: str, passes: tuple[int, int], tmp_path: Path) -> None:
    """Reads and writes of the row: three and one become two and one; two become one."""
    new = loaded(applied(ENTRY, text, tmp_path, ONLINE), tmp_path)
    moved = [count(task, task.workload("rows"), H200).moved for task in (loaded(text, tmp_path), new)]
    assert moved[1] / moved[0] == pytest.approx(passes[1] / passes[0], rel=0.02)
    assert verdict(new).verdict.startswith("correct")


def test_the_sum_shrinks_as_the_maximum_grows(tmp_path: Path) -> None:
    new = applied(ENTRY, SOFTMAX, tmp_path, ONLINE)
    loop = new[new.index("        # Pass 1") : new.index("        inverse")].rstrip()
    assert loop == '''
        # Pass 1: the maximum
        for n in range(chunks):
            columns = ct.full((TILE,), n * TILE, dtype=ct.int32) + first
            chunk_1 = ct.gather(x, (row, columns), padding_value=-np.inf)
            chunk = ct.astype(chunk_1, ct.float32)
            chunk_max = ct.max(chunk, 0, keepdims=True)
            row_max_before = row_max
            row_max = ct.maximum(row_max, chunk_max)
            # Pass 2: the sum
            shifted = chunk - row_max
            numerator = ct.exp(shifted)
            total = total * ct.exp(row_max_before - row_max) + ct.sum(numerator, 0, keepdims=True)
'''.strip("\n").rstrip()  # fmt: skip


def test_rows_that_fit_into_registers_promise_less(tmp_path: Path) -> None:
    """`one_pass` reads them once."""
    long = LOGSUMEXP.replace('"N": 1000', '"N": 100000')
    promises = [
        ENTRY.sites(Source("task.py", text), launch_facts(text, tmp_path))[0].promise for text in (LOGSUMEXP, long)
    ]
    assert promises == [SHORT, 1.0]
