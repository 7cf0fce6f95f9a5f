"""trust.md 8: addresses beyond 2³¹ elements, followed without the memory."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.hardware.architectures import default_board
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.verify.addresses import ELEMENTS, LONGEST, Reached, Reaching, huge
from tilewright.verify.cases import parse
from tilewright.verify.check import check_on
from tilewright.verify.interpreted import InterpreterEngine
from tilewright.verify.planning import Scope
from tilewright.verify.schedule import Equipment
from tilewright.verify.shapes import moduli

BOARD = default_board("sm_90")
OPS = """\
import cuda.tile as ct
import tilewright as tw

@ct.kernel
def by_tile(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0), 0), ct.load(x, (ct.bid(0), 0), (TILE, 64)))

@ct.kernel
def by_number(x, y, TILE: ct.Constant[int], CHECK: ct.Constant[bool]):
    number = ct.bid(0) * (TILE * 64) + ct.arange(TILE * 64, dtype=ct.int32)
    at = (number // 64, number % 64)
    ct.scatter(y, at, ct.gather(x, at, check_bounds=CHECK), check_bounds=CHECK)

@ct.kernel
def by_content(x, y, TILE: ct.Constant[int]):
    row = ct.gather(x, (0, 0)).astype(ct.int32)
    ct.store(y, (row, 0), ct.load(x, (ct.bid(0), 0), (TILE, 64)))

def task_of(name, kernel, *flags, **more):
    return tw.Task(
        name=name,
        tensors={"x": tw.Tensor(("M", 64), "bfloat16"), "y": tw.Output(("M", 64), "bfloat16")},
        reference=lambda x: x,
        launch=lambda x, y, M, config: tw.Launch(kernel, (-(-M // config.TILE),), (x, y, config.TILE, *flags)),
        flops=lambda M: M, independent=("M",),
        space=tw.Space(constants={"TILE": (16,)}, shipped={"TILE": 16}),
        workloads={"only": {"M": 1 << 12}}, **more,
    )

tiles = task_of("tiles", by_tile)
numbers = task_of("numbers", by_number, False)
masked = task_of("masked", by_number, True)
content = task_of("content", by_content)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("addresses") / "ops.py"
    path.write_text(OPS)
    return path


def reached(task: Task) -> Reached:
    config, dims = task.space.shipped, task.workloads["only"]
    long = huge(task, dims, moduli(task, config, dims))
    assert long is not None
    assert math.prod(task.arrays(long)["x"].shape) > ELEMENTS
    return Reaching(task, BOARD)(config, long, 1)


def test_tile_loads_reach_as_far_as_a_tensor_may_go(file: Path) -> None:
    found = reached(load_task(f"{file}:tiles"))
    assert (found.verdict, found.findings) == ("correct", ())


@pytest.mark.parametrize("name", ["numbers", "masked"])
def test_an_index_of_32_bits_wraps_round(file: Path, name: str) -> None:
    """Also where a mask hides it: what is not read and not written is wrong too."""
    found = reached(load_task(f"{file}:{name}"))
    assert found.verdict == "incorrect"
    assert "overflows 32 bits" in found.reason and "ops.py:1" in found.reason


def test_where_data_decides_it_is_unverified(file: Path) -> None:
    found = reached(load_task(f"{file}:content"))
    assert found.verdict == "unverified" and "depend on data" in found.reason


def test_only_shapes_that_the_task_serves_and_that_can_be_launched(file: Path) -> None:
    task = load_task(f"{file}:tiles")
    tiles = moduli(task, task.space.shipped, task.workloads["only"])
    few = replace(task, serves=lambda M: M < 1 << 20)
    assert huge(few, task.workloads["only"], tiles) is None
    long = huge(task, {"M": 4099}, tiles)
    assert long is not None and isinstance(long["M"], int) and long["M"] % 16 == 4099 % 16
    assert all(extent < LONGEST for extent in task.arrays(long)["x"].shape)


def test_it_is_one_case_of_a_check_and_its_text_reads_back(file: Path) -> None:
    task = load_task(f"{file}:masked")
    tools = Equipment(InterpreterEngine(task, BOARD), reaches=Reaching(task, BOARD))
    verdict = check_on(task, tools, Scope(seed=3))
    (found,) = [one for one in verdict.results if one.case.run == "addresses"]
    assert verdict.verdict == found.verdict == "incorrect"
    assert [one for one in verdict.results if one.verdict == "incorrect"] == [found], "nothing else is wrong"
    assert parse(str(found.case), task).run == "addresses"
