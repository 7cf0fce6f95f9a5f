"""Outputs in place of inputs on the Tile IR route: tokens order loads and stores of both arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.candidate.client import Candidates
from tilewright.compile.compile import Unit, compile_all, lower
from tilewright.hardware.architectures import default_board
from tilewright.languages.triton import LANGUAGE
from tilewright.records import Built
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.tileir.analysis.tokens import TokenChains
from tilewright.tileir.read.reader import read_bytecode
from tilewright.verify.check import check

pytest.importorskip("triton")

import triton
import triton.language as tl


@triton.jit
def swapped(out, x, half, BLOCK: tl.constexpr):
    """Exchanges the halves of a row: both loads must come before each store."""
    at = tl.program_id(0).to(tl.int64) * 2 * half + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < half
    first = tl.load(x + at, mask=inside, other=0.0)
    second = tl.load(x + half + at, mask=inside, other=0.0)
    tl.store(out + at, second, mask=inside)
    tl.store(out + half + at, first, mask=inside)


@triton.jit
def swapped_by_descriptors(out, x, half, BLOCK: tl.constexpr):
    left = tl.make_tensor_descriptor(x, [tl.num_programs(0), 2 * half], [2 * half, 1], [1, BLOCK])
    right = tl.make_tensor_descriptor(out, [tl.num_programs(0), 2 * half], [2 * half, 1], [1, BLOCK])
    row = tl.program_id(0)
    first, second = left.load([row, 0]), left.load([row, half])
    right.store([row, 0], second)
    right.store([row, half], first)


@triton.jit
def swapped_too_late(out, x, half, BLOCK: tl.constexpr):
    """Right, but not in place: the second store overwrites what the second load reads."""
    at = tl.program_id(0).to(tl.int64) * 2 * half + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < half
    tl.store(out + half + at, tl.load(x + at, mask=inside, other=0.0), mask=inside)
    tl.store(out + at, tl.load(x + half + at, mask=inside, other=0.0), mask=inside)


def task_of(kernel: Any, in_place: bool = True) -> Task:
    return Task(
        name="swapped",
        tensors={"x": tw.Tensor(("M", "N"), "float32"),
                 "out": tw.Output(("M", "N"), "float32", in_place_of="x" if in_place else None)},
        reference=lambda x: np.concatenate([x[:, x.shape[1] // 2:], x[:, : x.shape[1] // 2]], axis=1),
        launch=lambda out, x, M, N: tw.Launch(kernel, (M,), (out, x, N // 2, 64)),
        flops=lambda M, N: M * N,
        independent=("M",),
        serves=lambda N: N == 128,
        space=tw.Space(hints={"route": ("ptx", "tileir")}, shipped={"route": "tileir"}),
        workloads={"small": {"M": 8, "N": 128}},
    )  # fmt: skip


def waits(task: Task) -> list[set[str]]:
    """For each store, the names of the accesses before it."""
    made = lower(task, unit(task))
    assert isinstance(made, tuple), made
    chains = TokenChains(read_bytecode(made[1].code).entry(None))
    stores = [op for op in chains.ops if op.name.startswith("store")]
    return [{wait.op.name for wait in chains.all_before(store)} for store in stores]


def unit(task: Task) -> Unit:
    return Unit(task.workload("small"), task.space.shipped, default_board("sm_90"))


@pytest.mark.parametrize("kernel", [swapped, swapped_by_descriptors], ids=["pointers", "descriptors"])
def test_stores_wait_for_the_loads_of_the_input_in_whose_place_they_are(kernel: Callable[..., None]) -> None:
    first, second = waits(task_of(kernel))
    assert all(any(name.startswith("load") for name in one) for one in (first, second))
    assert not any(name.startswith("load") for one in waits(task_of(kernel, in_place=False)) for name in one)


@pytest.mark.parametrize("kernel", [swapped, swapped_by_descriptors], ids=["pointers", "descriptors"])
def test_it_compiles_and_is_right_in_place(kernel: Callable[..., None]) -> None:
    task = task_of(kernel)
    (compiled,) = compile_all(task, [unit(task)])
    assert isinstance(compiled.built, Built), compiled.built
    (verdict,) = check(task, engine="interpreter")
    assert verdict.verdict.startswith("correct"), verdict


def test_a_kernel_that_is_wrong_in_place_alone_is_incorrect() -> None:
    (verdict,) = check(task_of(swapped_too_late), engine="interpreter")
    assert verdict.verdict == "incorrect", verdict
    (verdict,) = check(task_of(swapped_too_late, in_place=False), engine="interpreter")
    assert verdict.verdict.startswith("correct"), verdict


def test_what_runs_in_place_is_what_is_compiled() -> None:
    """The check of a run in place names both arrays alike; the code must be that of the search, which does not."""
    task = task_of(swapped)
    dims, config, board = task.workload("small").dims, task.space.shipped, default_board("sm_90")
    arrays = task.arrays(dims)
    codes = []
    for out in (arrays["out"], arrays["x"]):
        launch = task.launched(config, dims, {**arrays, "out": out}, board)
        codes.append(LANGUAGE.tile_ir_of(launch, {"route": "tileir"}, config, "sm_90"))
    assert codes[0] == codes[1]


FILE = """\
import triton
import triton.language as tl
import tilewright as tw

@triton.jit
def swapped(out, x, half, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * 2 * half + tl.arange(0, BLOCK)
    first, second = tl.load(x + at), tl.load(x + half + at)
    tl.store(out + at, second)
    tl.store(out + half + at, first)

task = tw.Task(
    name="swapped",
    tensors={"x": tw.Tensor(("M", 128), "float32"), "out": tw.Output(("M", 128), "float32", in_place_of="x")},
    reference=lambda x: x,
    launch=lambda out, x, M: tw.Launch(swapped, (M,), (out, x, 64, 64)),
    flops=lambda M: M,
    space=tw.Space(hints={"route": ("tileir",)}, shipped={"route": "tileir"}),
    workloads={"small": {"M": 8}},
)
"""


def test_a_version_cannot_drop_what_is_declared(tmp_path: Path) -> None:
    file, edited = tmp_path / "swapped.py", tmp_path / "edited.py"
    file.write_text(FILE)
    edited.write_text(FILE.replace(', in_place_of="x"', ""))
    assert edited.read_text() != FILE
    with Candidates([file]) as candidates:
        version = candidates.task(load_task(str(file)), str(file), {str(file): str(edited)})
        first, second = waits(version)
    assert any(name.startswith("load") for name in first) and any(name.startswith("load") for name in second)
