"""The workload's full size: kernels that are right on small shapes and wrong on large ones are found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright.hardware.architectures import default_board
from tilewright.records import Configuration
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.tileir.run.launching import Launcher, Runnable
from tilewright.tileir.watch.decisions import Decisions
from tilewright.verify import schedule
from tilewright.verify.cases import Case
from tilewright.verify.check import check_on
from tilewright.verify.examining import Examiner, Result
from tilewright.verify.following import BlockNumbers
from tilewright.verify.interpreted import InterpreterEngine
from tilewright.verify.judge import Unverified, Wrong
from tilewright.verify.own_shape import OwnShapes, _drawn_blocks
from tilewright.verify.planning import Scope
from tilewright.verify.reference import FloatReference
from tilewright.verify.schedule import Equipment
from tilewright.verify.shapes import Limit
from tilewright.verify.verdict import Verdict

BOARD = default_board("sm_90")
HEAD = """import cuda.tile as ct
import tilewright as tw
import numpy as np
"""
ROWS = """
@ct.kernel
def double(x, y, ROWS: ct.Constant[int], TILE: ct.Constant[int]):
    for row in range(ct.bid(0), x.shape[0], ct.num_blocks(0)):
        ct.store(y, (row, 0), ct.load(x, (row, 0), (1, TILE)) * FACTOR)

def launch(x, y, M, N, config, hardware):
    return tw.Launch(double, (min(M, hardware.sms),), (x, y, M, config.TILE))

task = tw.Task(
    name="double",
    tensors={"x": tw.Tensor(("M", "N"), "float32"), "y": tw.Output(("M", "N"), "float32")},
    reference=lambda x: 2 * x, launch=launch, flops=lambda M, N: M * N, independent=("M",),
    space=tw.Space(constants={"TILE": (1024,)}, shipped={"TILE": 1024}),
    workloads={"large": {"M": 4096, "N": 1024}},
)
"""
PRODUCT = """
@ct.kernel
def product(a, b, c, TILE: ct.Constant[int], TILE_K: ct.Constant[int], K: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    acc = ct.full((TILE, TILE), 0.0, ct.float32)
    for k in range(TRIPS):
        left = ct.load(a, (i, k), (TILE, TILE_K), padding_mode=ct.PaddingMode.ZERO)
        acc = ct.mma(left, ct.load(b, (k, j), (TILE_K, TILE), padding_mode=ct.PaddingMode.ZERO), acc)
    ct.store(c, (i, j), acc)

def launch(a, b, c, M, N, K, config):
    grid = (-(-M // config.TILE), -(-N // config.TILE))
    return tw.Launch(product, grid, (a, b, c, config.TILE, config.TILE_K, K))

task = tw.Task(
    name="product",
    tensors={"a": tw.Tensor(("M", "K"), "float32"), "b": tw.Tensor(("K", "N"), "float32"),
             "c": tw.Output(("M", "N"), "float32")},
    reference=lambda a, b: a @ b, launch=launch, flops=lambda M, N, K: 2 * M * N * K, independent=("M", "N"),
    precision="tf32", space=tw.Space(constants={"TILE": (64,), "TILE_K": (32,)}, shipped={"TILE": 64, "TILE_K": 32}),
    workloads={"large": {"M": 1024, "N": 768, "K": 1024}},
)
"""
FULL_K = "ct.num_tiles(a, 1, (TILE, TILE_K))"
RIGHT = {"rows": ROWS.replace("FACTOR", "2.0"), "product": PRODUCT.replace("TRIPS", FULL_K)}

ALL_ROWS = "range(ct.bid(0), x.shape[0], ct.num_blocks(0))"
ONE_ROW = RIGHT["rows"].replace(ALL_ROWS, "range(ct.bid(0), ct.bid(0) + 1)")
EACH_ROW = ONE_ROW.replace("min(M, hardware.sms)", "M")
APART = "(ct.bid(0) - 1777).astype(ct.float32)"
WRONG = {
    "a grid of at most 8 blocks": (ONE_ROW.replace("min(M, hardware.sms)", "min(M, 8)"), "no block stores 'y'[8, 0]"),
    "a grid of at most 132 blocks": (ONE_ROW.replace("hardware.sms", "132"), "no block stores 'y'[132, 0]"),
    "a loop that stops after 6 tiles": (PRODUCT.replace("TRIPS", f"min({FULL_K}, 6)"), "block 0 of the workload's own"),
    "unrolled by 5, the rest dropped": (
        PRODUCT.replace("TRIPS", f"{FULL_K} if K < 512 else {FULL_K} // 5 * 5"), "block 0 of the workload's own grid"
    ),
    "wrong from row 300": (ROWS.replace("FACTOR", "ct.where(row < 300, 2.0, 3.0)"), "of the workload's own grid"),
    "a branch on the number of rows": (
        ROWS.replace("FACTOR", "(2.0 if ROWS < 1024 else 2.5)"), "block 0 of the workload's own grid"
    ),
    "another launch for many SMs": (
        ONE_ROW.replace("min(M, hardware.sms)", "M if hardware.sms < 9 else 100"), "no block stores 'y'[100, 0]"
    ),
    "one of 4096 blocks branches": (
        EACH_ROW.replace("* 2.0", "* (3.0 if ct.bid(0) == 1777 else 2.0)"), "block 1777 of the workload's own grid"
    ),
    "one of 4096 blocks selects": (
        EACH_ROW.replace("* 2.0", "* ct.where(ct.bid(0) == 2901, 3.0, 2.0)"), "block 2901 of the workload's own grid"
    ),
    "one of 4096 blocks, by arithmetic alone": (
        EACH_ROW.replace("* 2.0", "* (3.0 - ct.minimum((ct.bid(0) - 1777) * (ct.bid(0) - 1777), 1))"),
        "block 1777 of the workload's own grid",
    ),
    "one of 4096 blocks, by a function without comparison": (
        EACH_ROW.replace("* 2.0", "* (2.0 + ct.exp2(OFF * OFF * -64.0))").replace("OFF", APART),
        "block 1777 of the workload's own grid",
    ),
    "one of 4096 blocks, by the address it loads": (
        EACH_ROW.replace("ct.load(x, (row, 0)", "ct.load(x, (row + BUMP, 0)").replace(
            "BUMP", "ct.exp2(OFF * OFF * -64.0).astype(ct.int32)").replace("OFF", APART),
        "block 1777 of the workload's own grid",
    ),
    "one element of the output": (
        EACH_ROW.replace("* 2.0", "* ct.where(ct.arange(TILE, dtype=ct.int32) + row * TILE == 3000000, 3.0, 2.0)"),
        "block 2929 of the workload's own grid",
    ),
    "one block's sum is one tile short": (
        PRODUCT.replace("TRIPS", f"{FULL_K} - ct.where(i * 100 + j == 907, 1, 0)"), "of the workload's own grid"
    ),
    "the last blocks do nothing": (
        RIGHT["product"].replace("ct.store(c", "if i < 15:\n        ct.store(c"), "no block stores 'c'[960, 0]"
    ),
}  # fmt: skip
"""Name → the task, and what is said of it."""


def made(tmp_path: Path, text: str) -> Task:
    file = tmp_path / "ops.py"
    file.write_text(HEAD + text)
    return load_task(str(file))


def checked(task: Task, own_shapes: bool = True) -> Verdict:
    tools = Equipment(InterpreterEngine(task, BOARD), own_shapes=OwnShapes(task, BOARD) if own_shapes else None)
    return check_on(task, tools, Scope(quick=True, seed=3))


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_is_correct_at_its_own_extents(tmp_path: Path, name: str) -> None:
    verdict = checked(made(tmp_path, RIGHT[name]))
    assert verdict.verdict == "correct", verdict.reason
    own = [result for result in verdict.results if result.case.run == "own shape"]
    assert [result.case.sizes for result in own] == [dict(made(tmp_path, RIGHT[name]).workloads["large"])]


@pytest.mark.usefixtures("failing_case_stays")
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_on_large_shapes_alone_is_found(tmp_path: Path, name: str) -> None:
    text, said = WRONG[name]
    reduced = checked(made(tmp_path, text), own_shapes=False)
    assert reduced.verdict == "correct on reduced shapes", "small shapes do not show it"
    verdict = checked(made(tmp_path, text))
    assert verdict.verdict == "incorrect" and said in verdict.reason, verdict.reason


def test_without_its_own_extents_a_kernel_is_correct_on_reduced_shapes(tmp_path: Path) -> None:
    verdict = checked(made(tmp_path, RIGHT["rows"]), own_shapes=False)
    assert verdict.verdict == "correct on reduced shapes"
    assert "large was run at reduced size only" in verdict.reason


def test_all_workloads_that_were_reduced_are_named(tmp_path: Path) -> None:
    text = RIGHT["rows"].replace('{"M": 4096, "N": 1024}', '{"M": 4096, "N": 1024}, "tall": {"M": 9001, "N": 1024}')
    assert "large, tall were run at reduced size only" in checked(made(tmp_path, text), own_shapes=False).reason


def test_a_failing_own_shape_is_not_run_whole_to_make_it_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all its data a workload of 2³¹ elements took 50 GiB: the process was killed, and the verdict lost."""
    task, ran = made(tmp_path, WRONG["a grid of at most 132 blocks"][0]), []
    monkeypatch.setattr(schedule, "PLAIN", Limit(elements=1 << 20))
    examine = Examiner.examine

    def noted(self: Examiner, configuration: Configuration, case: Case) -> Result:
        ran.append(case)
        return examine(self, configuration, case)

    monkeypatch.setattr(Examiner, "examine", noted)
    verdict = checked(task)
    assert verdict.verdict == "incorrect" and verdict.smallest is not None
    assert verdict.smallest.case.sizes["M"] < 4096, "it is made smaller all the same"
    assert all(schedule.PLAIN.allows(task, case.sizes) for case in ran if case.run != "own shape")


def test_a_case_that_does_not_fit_in_memory_is_unverified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError("Unable to allocate 16.0 GiB")

    monkeypatch.setattr("tilewright.verify.examining.drawn", full)
    verdict = checked(made(tmp_path, RIGHT["rows"]), own_shapes=False)
    assert verdict.verdict == "unverified" and "out of memory: Unable" in verdict.reason


def test_what_takes_longer_than_the_budget_is_said(tmp_path: Path) -> None:
    task = made(tmp_path, RIGHT["product"])
    with pytest.raises(Unverified, match="would take about .* more than the budget of 1e-06 s"):
        OwnShapes(task, BOARD, 1e-6).check(task.space.shipped, task.workloads["large"], 0, FloatReference(task, None))


def test_a_grid_of_very_many_blocks_is_not_followed(tmp_path: Path) -> None:
    task = made(tmp_path, ONE_ROW.replace("min(M, hardware.sms)", "1 << 28"))
    with pytest.raises(Unverified, match="following all blocks would take about"):
        OwnShapes(task, BOARD).check(task.space.shipped, task.workloads["large"], 0, FloatReference(task, None))


def test_the_first_element_that_no_block_stores_is_named(tmp_path: Path) -> None:
    task = made(tmp_path, WRONG["a grid of at most 8 blocks"][0])
    with pytest.raises(Wrong, match=r"no block stores 'y'\[8, 0\] at the workload's full size"):
        OwnShapes(task, BOARD).check(task.space.shipped, task.workloads["large"], 0, FloatReference(task, None))


ADDS = """
@ct.kernel
def total(x, y, TILE: ct.Constant[int]):
    ct.atomic_add(y, (0,), ct.sum(ct.load(x, (ct.bid(0),), (TILE,))))

task = tw.Task(
    name="total", tensors={"x": tw.Tensor(("N",), "float32"), "y": tw.Output((1,), "float32")},
    reference=lambda x: np.sum(x, keepdims=True), deterministic=False,
    launch=lambda x, y, N, config: tw.Launch(total, (N // config.TILE,), (x, y, config.TILE)),
    flops=lambda N: N, space=tw.Space(constants={"TILE": (128,)}, shipped={"TILE": 128}),
    workloads={"large": {"N": 1 << 20}},
)
"""


def test_blocks_that_depend_on_one_another_are_not_run_alone(tmp_path: Path) -> None:
    task = made(tmp_path, ADDS)
    with pytest.raises(Unverified, match="blocks depend on one another"):
        OwnShapes(task, BOARD).check(task.space.shipped, task.workloads["large"], 0, FloatReference(task, None))


def test_the_walk_and_the_values_report_the_work_that_is_done(tmp_path: Path) -> None:
    """Within one batch, too: each of the 4 blocks of a persistent kernel loops over a fourth of the rows."""
    task = made(tmp_path, RIGHT["rows"].replace("hardware.sms", "4"))
    told: list[tuple[str, int, int | None]] = []

    def progress(stage: str, done: int, total: int | None, note: str = "") -> None:
        told.append((stage, done, total))

    dims = {**task.workload("large").dims, "M": 256}
    OwnShapes(task, BOARD).check(task.space.shipped, dims, 3, FloatReference(task, None), progress)
    for stage in ("addresses", "values"):
        percents = [done for name, done, total in told if name == stage and total == 100]
        assert percents == sorted(set(percents)) and percents[-1] == 100 and len(percents) > 20


def test_a_check_shows_the_progress_of_its_full_size_cases(tmp_path: Path) -> None:
    task, stages = made(tmp_path, RIGHT["product"]), set()
    tools = Equipment(InterpreterEngine(task, BOARD), own_shapes=OwnShapes(task, BOARD))
    check_on(task, tools, Scope(quick=True, seed=3), lambda stage, done, total, note="": stages.add(stage))
    assert stages == {"check", "addresses", "values"}


VANISHING = " * ".join(["1e-9", *(f"(row - {block}).astype(ct.float32)" for block in _drawn_blocks(4096, 3))])
"""A product that is zero in the rows of the blocks that a check with this seed compares in any case."""


@pytest.mark.parametrize("kernel", [EACH_ROW, RIGHT["rows"].replace("hardware.sms", "4096")])
@pytest.mark.parametrize("wrong", [f"* (2.0 + {VANISHING})", f"* 2.0 + ({VANISHING})"])
def test_a_product_that_vanishes_in_the_drawn_blocks_is_found(tmp_path: Path, kernel: str, wrong: str) -> None:
    """Sums and products alone, and the author knows the seed."""
    task = made(tmp_path, kernel.replace("* 2.0", wrong))
    dims = task.workload("large").dims
    with pytest.raises(Wrong, match="of the workload's own grid"):
        OwnShapes(task, BOARD).check(task.space.shipped, dims, 3, FloatReference(task, None))


def step(first: int) -> str:
    """A number that is smaller by one from row ``first`` on, by a product that wraps around there."""
    moved = f"(row + {2048 - first})"
    return f"(({moved} * 1048576).astype(ct.float32) - {moved}.astype(ct.float32) * 1048576.0) * {2.0**-32}"


def jump(first: int) -> str:
    """A number that is larger by one from row ``first`` on, by a sum that is rounded there."""
    return f"(((row.astype(ct.float32) + {4097 - first}.0) + {2.0**36}) - {2.0**36}) * {2.0**-13}"


PART = "ct.load(x.slice(axis=0, start=0, stop={}), (row, 0), (1, TILE), padding_mode=ct.PaddingMode.ZERO)"
TABLE = "ct.extract(ct.where(ct.arange(4096, dtype=ct.int32) == 1777, 1.0, 0.0), (row,), (1,)).reshape((1, 1))"
DECOYS = "".join(f" + ct.where(row == {100 + 9 * at}, 1.0, 0.0) * 0.0" for at in range(12))
MERGING = {
    "products that wrap around": f"* 2.0 + (({step(1777)}) - ({step(1778)}))",
    "products that wrap around, in two steps that only data join": f"* 2.0 + ({step(1777)}) - ({step(1778)})",
    "sums that are rounded": f"* 2.0 + (({jump(1777)}) - ({jump(1778)}))",
    "two slices, of which one ends a row later": f"* 2.0 + ({PART.format(1778)} - {PART.format(1777)})",
    "a table of constants": f"* 2.0 + {TABLE}",
    "a comparison among many that have no effect": f"* 2.0{DECOYS} + ct.where(row == 1777, 1.0, 0.0)",
}


@pytest.mark.parametrize("name", MERGING)
def test_one_block_set_apart_without_an_unusual_operation_is_found(tmp_path: Path, name: str) -> None:
    task = made(tmp_path, EACH_ROW.replace("* 2.0", MERGING[name]))
    dims = task.workload("large").dims
    with pytest.raises(Wrong, match="block 1777 of the workload's own grid"):
        OwnShapes(task, BOARD).check(task.space.shipped, dims, 5, FloatReference(task, None))


TILE = "ct.load(x, (row, 0), (1, TILE))"
ZERO = f"({TILE} * 0.0)"
EQUAL_BITS = [f"((row >> {bit}) & 1) == {1777 >> bit & 1}" for bit in range(12)]
LAUNDERED = {
    "a zero from data, as an integer": f"* ct.where(row + {ZERO}.astype(ct.int32) == 1777, 3.0, 2.0)",
    "what was loaded, less the same": f"* ct.where(row + 0.0 + ({TILE} - {TILE}) == 1777.0, 3.0, 2.0)",
    "a comparison that no data meets":
        f"* (2.0 + ct.minimum(ct.where({TILE} > 1e30, 1.0, 0.0) + ct.maximum(1.0 - ct.abs(row - 1777.0), 0.0), 1.0))",
    "a sum of zeros": f"* (3.0 - ct.minimum(ct.abs(row - 1777 + ct.sum({ZERO})), 1.0))",
    "the bits of the number, counted with zeros from data":
        "* ct.where(" + " + ".join(f"ct.where({one}, 1.0, 0.0) + {ZERO}" for one in EQUAL_BITS) + " > 11.5, 3.0, 2.0)",
    "the bits of the number, each with a comparison of data":
        "* ct.where(" + " & ".join(f"(({one}) ^ ({TILE} > 1e30))" for one in EQUAL_BITS) + ", 3.0, 2.0)",
    "rounded sums of the number and a zero from data":
        f"* 2.0 + (({jump(1777)}) - ({jump(1778)}))".replace("row.astype(ct.float32)", f"(row + 0.0 + {ZERO})"),
}  # fmt: skip


@pytest.mark.parametrize("name", LAUNDERED)
def test_a_block_number_behind_data_that_adds_nothing_is_found(tmp_path: Path, name: str) -> None:
    """Item 36: all blocks are computed with the same data, so that only their number makes them differ."""
    task = made(tmp_path, EACH_ROW.replace("* 2.0", LAUNDERED[name]))
    dims = task.workload("large").dims
    with pytest.raises(Wrong, match="block 1777 of the workload's own grid"):
        OwnShapes(task, BOARD).check(task.space.shipped, dims, 5, FloatReference(task, None))


def test_a_block_number_read_back_from_an_output_is_not_followed(tmp_path: Path) -> None:
    text = EACH_ROW.replace(
        "ct.store(y", "ct.store(y, (row, 0), ct.full((1, TILE), row, ct.float32))\n        ct.store(y"
    )
    once = text.replace("(row, 0), ct.full", "(row, 1), ct.full").replace(
        '"y": tw.Output(("M", "N")', '"y": tw.Output(("M", "2 * N")'
    )
    task = made(
        tmp_path,
        once.replace("* 2.0", "* ct.where(ct.load(y, (row, 1), (1, TILE)) == 1777.0, 3.0, 2.0)")
        .replace(
            "lambda x: 2 * x",
            "lambda x: np.concatenate([2 * x, np.tile(np.arange(len(x))[:, None], (1, x.shape[1]))], 1)",
        )
        .replace('independent=("M",)', "independent=()"),
    )
    dims = {"M": 256, "N": 1024}
    with pytest.raises(Unverified, match="blocks read elements of 'y' that they store"):
        OwnShapes(task, BOARD).check(task.space.shipped, dims, 5, FloatReference(task, None))


def test_values_that_depend_on_one_axis_are_computed_once_along_the_others(tmp_path: Path) -> None:
    """A mask of the rows of tiles, with data and in a product: computed in 16 blocks, not in 192."""
    text = RIGHT["product"].replace(
        "ct.store(c, (i, j), acc)", "rows = i * TILE + ct.arange(TILE, dtype=ct.int32)[:, None]\n"
        "    ct.store(c, (i, j), ct.exp2(ct.where(rows == 777, acc + 0.5, acc)) * 0.0 + acc)")  # fmt: skip
    task = made(tmp_path, text)
    dims = task.workload("large").dims
    runnable = Launcher(task, BOARD).runnable(task.space.shipped, dims, task.arrays(dims))
    assert isinstance(runnable, Runnable)
    following = BlockNumbers(task, runnable, dims, 0)
    assert {tuple(axes) for axes in following.others} == {(0,)}
    assert len(np.unique(following.alike((0,)))) == 16 and len(following.alike((0,))) == 192
    decisions = Decisions(192, 0)
    following.follow(decisions, 60.0, lambda share: None)
    assert 777 // 64 in {block % 16 for block in decisions.unusual(6, (), 32)}


def test_another_kernel_for_large_shapes_meets_hostile_data(tmp_path: Path) -> None:
    """Right on the data of the workload; beyond float32 on data 256 times as large."""
    task = made(
        tmp_path, EACH_ROW.replace("* 2.0", "* (1e37 if ROWS > 2048 else 2.0) * (2e-37 if ROWS > 2048 else 1.0)")
    )
    with pytest.raises(Wrong, match="of the workload's own grid .*, data 'large'"):
        OwnShapes(task, BOARD).check(task.space.shipped, task.workloads["large"], 5, FloatReference(task, None))


def test_a_block_that_reads_what_another_one_stores_is_a_race(tmp_path: Path) -> None:
    """At full size only: few blocks have no such neighbour. Whether the result is wrong depends on their order."""
    neighbour = "ct.load(y, (ct.minimum(row + ROWS // 2048, ROWS - 1), 0), (1, TILE))"
    task = made(tmp_path, EACH_ROW.replace("* 2.0", f"* 2.0 + ct.where({neighbour} == 7.0, 1.0, 0.0)"))
    with pytest.raises(Wrong, match=r"race: block 0 reads 'y'\[2, 0\], which another block stores"):
        OwnShapes(task, BOARD).check(task.space.shipped, task.workloads["large"], 5, FloatReference(task, None))
