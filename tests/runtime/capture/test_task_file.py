"""A task file of a captured launch, for code that nobody wrote a task for."""

from __future__ import annotations

import importlib.util
import itertools
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime import captured_kernels as kernels

from tilewright.compile.compile import Unit, compile_all
from tilewright.errors import RequestError, TaskError
from tilewright.hardware import architectures as hardware
from tilewright.optimize.loop import optimize
from tilewright.optimize.options import Options
from tilewright.records import MachineCode
from tilewright.runtime.capture.described import described
from tilewright.runtime.capture.facts import DeclaredArray, Factor, captured_launch, declared_array, grid_forms, named
from tilewright.runtime.capture.of_cutile import CapturedCuTile
from tilewright.runtime.capture.record import Recorded
from tilewright.runtime.capture.task_file import task_text
from tilewright.runtime.capture.trying import small_shape
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.task.tensors import ArraySpec
from tilewright.tune.tune import tune
from tilewright.verify.cases import Case
from tilewright.verify.check import check_on
from tilewright.verify.data import KINDS, drawn
from tilewright.verify.interpreted import InterpreterEngine
from tilewright.verify.planning import Scope
from tilewright.verify.schedule import Equipment
from tilewright.verify.tolerance import reference_outputs
from tilewright.verify.verdict import Verdict

torch = pytest.importorskip("torch")
BOARD = hardware.default_board("sm_90")


def task_of(folder: Path, kernel: Any, grid: tuple[int, ...], *args: Any) -> Task:
    text = task_text(Recorded(described(kernel, grid, args), 1), folder)
    (folder / "captured.py").write_text(text)
    return load_task(str(folder / "captured.py"))


def bf16(*shape: int) -> Any:
    return torch.zeros(*shape, dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def matmul(tmp_path_factory: pytest.TempPathFactory) -> Task:
    arrays = (bf16(96, 64), bf16(80, 64).t(), bf16(96, 80))
    return task_of(tmp_path_factory.mktemp("task"), kernels.matmul, (3, 5), *arrays, 32, 16, 32)


def test_grid_tiles_and_layout_are_found(matmul: Task) -> None:
    """A-14: the shipped configuration is the captured one; the grid follows from the tiles."""
    assert dict(matmul.space.shipped) == {
        "TILE_M": 32, "TILE_N": 16, "TILE_K": 32, "num_ctas": None, "occupancy": None, "num_worker_warps": None,
    }  # fmt: skip
    workload = matmul.selected(None)[0]
    launch = matmul.launched(
        matmul.space.shipped.replace(TILE_M=16), workload.dims, matmul.arrays(workload.dims), BOARD
    )
    assert launch.grid == (6, 5)
    assert (launch.args[1].shape, launch.args[1].strides) == ((64, 80), (1, 64))
    assert launch.args[3:] == (16, 16, 32)
    assert sorted(dict(workload.dims).values()) == [64, 80, 96]


@pytest.mark.long
def test_a_row_may_change_where_no_rule_gives_the_grid(tmp_path: Path) -> None:
    """As in group norms: images and groups are in the grid, and neither is an extent."""
    arrays = (torch.zeros(72, 64), torch.zeros(72, 64), torch.zeros(24))
    task = task_of(tmp_path, kernels.group_centred, (6, 4), *arrays, 12, 4, 3, 64)
    (workload,) = task.selected(None)
    assert list(workload.dims.values()) == [64] and small_shape(task) == {"D0": 32}
    launch = task.launched(task.space.shipped, {"D0": 32}, task.arrays({"D0": 32}), BOARD)
    assert launch.grid == (6, 4) and launch.args[3:] == (12, 4, 3, 32)
    assert "gives the grid of (6, 4), so it stays as captured." in (tmp_path / "captured.py").read_text()


def test_work_and_independence_are_found_by_trying(matmul: Task) -> None:
    dims = matmul.selected(None)[0].dims
    assert matmul.work(dims) == pytest.approx(2 * 96 * 80 * 64)
    assert {dims[name] for name in matmul.independent} == {96, 80}


def test_the_reference_is_the_kernel_without_its_rounding(matmul: Task) -> None:
    rng, dims = np.random.default_rng(0), matmul.selected(None)[0].dims
    a, b = rng.normal(size=(96, 64)), rng.normal(size=(80, 64))
    (c,) = reference_outputs(matmul, dims, {"a": a, "b": b}).values()
    np.testing.assert_allclose(c, a @ b.T, rtol=1e-12, atol=1e-12)


def test_it_compiles(matmul: Task) -> None:
    (compiled,) = compile_all(matmul, [Unit(matmul.selected(None)[0], matmul.space.shipped, BOARD)], seconds=60)
    assert isinstance(compiled.code, MachineCode)


def test_the_captured_kernel_is_correct_and_another_is_not(matmul: Task) -> None:
    """What "correct" means here: as captured. A version that computes something else is told."""
    verdict = check_on(matmul, Equipment(InterpreterEngine(matmul, BOARD)), Scope(quick=True))
    assert verdict.verdict.startswith("correct")
    file = matmul.file
    assert file is not None
    other = Path(kernels.__file__).with_suffix(".py")
    changed = file.parent / "changed.py"
    changed.write_text(other.read_text().replace("total.astype", "(total * 1.05).astype"))
    wrong = load_task(str(file), {str(other): str(changed)})
    assert check_on(wrong, Equipment(InterpreterEngine(wrong, BOARD)), Scope(quick=True)).verdict == "incorrect"


def wrong(task: Task, before: str, after: str) -> Task:
    """The task with another version of its kernel's file; the reference stays the file's own."""
    assert task.file is not None
    own = Path(kernels.__file__)
    text = own.read_text()
    assert text.count(before) == 1
    changed = task.file.parent / "changed.py"
    changed.write_text(text.replace(before, after))
    return load_task(str(task.file), {str(own): str(changed)})


def verdict_of(task: Task) -> str:
    return check_on(task, Equipment(InterpreterEngine(task, BOARD)), Scope(quick=True)).verdict.partition(" on ")[0]


# Lists ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """Arrays of unlike length, and the number of blocks among the arguments."""
    xs, ys = ([torch.zeros(extent) for extent in (100, 64, 257)] for _ in "xy")
    return task_of(tmp_path_factory.mktemp("lists"), kernels.grouped, (4,), xs, ys, 16, 4)


def test_each_array_of_a_list_is_a_tensor(lists: Task) -> None:
    assert list(lists.inputs) == ["xs_0", "xs_1", "xs_2"]
    assert list(lists.outputs) == ["ys_0", "ys_1", "ys_2"]
    workload = lists.selected(None)[0]
    config = lists.space.shipped.replace(TILE=32)
    launch = lists.launched(config, workload.dims, lists.arrays(workload.dims), BOARD)
    assert [one.shape for one in launch.args[0]] == [(100,), (64,), (257,)]
    assert [one.name for one in launch.args[1]] == ["ys_0", "ys_1", "ys_2"]
    assert launch.args[2:] == (32, 4) and launch.grid == (4,)


def test_a_kernel_with_lists_is_correct_and_another_is_not(lists: Task) -> None:
    assert verdict_of(lists) == "correct"
    assert verdict_of(wrong(lists, "xs[group], ys[group]", "xs[0], ys[group]")) == "incorrect"


def test_a_tile_need_not_hold_one_array_of_a_list(tmp_path: Path) -> None:
    """One of a single tile, among longer ones: other tile sizes are right too."""
    xs, ys = ([torch.zeros(extent) for extent in (100, 15, 257)] for _ in "xy")
    task = task_of(tmp_path, kernels.grouped, (4,), xs, ys, 16, 4)
    assert task.space.constants["TILE"] == (8, 16, 32)


def test_a_list_beside_an_argument_of_the_name_of_its_part(tmp_path: Path) -> None:
    """A tensor's name is a parameter's; no two of them are one."""
    launch = described(kernels.grouped, (4,), ([torch.zeros(8)], [torch.zeros(8)], 8, 4))
    xs, ys, *others = launch.arguments
    again = named(replace(launch, arguments=(xs, ys, replace(xs.items[0], name="xs_0"), *others)))
    assert sorted(one.name for one in again.arrays()) == ["xs_0", "xs_0_", "ys_0"]


def test_a_list_of_other_things_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="'xs' is a list, and tasks support only lists of arrays"):
        task_of(tmp_path, kernels.grouped, (4,), [1, 2], [torch.zeros(8)], 8, 4)


def test_tuples_of_arrays_numbers_and_constants(tmp_path: Path) -> None:
    """cuda-tile passes each item as a parameter of its own."""
    arrays = (torch.zeros(32, 64), torch.zeros(32, 64, dtype=torch.bfloat16))
    task = task_of(tmp_path, kernels.summed, (4, 2), arrays, (0.5, 2.0), torch.zeros(32, 64), (8, 32))
    assert list(task.inputs) == ["xs_0", "xs_1"]
    assert verdict_of(task) == "correct"
    dims = task.selected(None)[0].dims
    (y,) = reference_outputs(task, dims, {"xs_0": np.ones((32, 64)), "xs_1": np.ones((32, 64))}).values()
    np.testing.assert_allclose(y, np.full((32, 64), 2.5))


@pytest.mark.skipif(importlib.util.find_spec("tilegym") is None, reason="needs TileGym")
def test_grouped_products_of_tilegym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)  # with it TileGym asks for a GPU when it is imported
    from tilegym.ops.cutile.group_gemm import _group_gemm_kernel

    rows, blocks = (96, 40, 64), 4
    a, b, c = [bf16(m, 64) for m in rows], [bf16(64, 80) for _ in rows], [bf16(m, 80) for m in rows]
    task = task_of(tmp_path, _group_gemm_kernel, (blocks, 1, 1), a, b, c, 32, 32, 32, blocks, False)
    assert {name: len(values) for name, values in task.space.constants.items()} == {
        "TILE_M": 3, "TILE_N": 3, "TILE_K": 3,
    }  # fmt: skip
    assert check_on(task, Equipment(InterpreterEngine(task, BOARD)), Scope(quick=True)).verdict.startswith("correct")


# In place ---------------------------------------------------------------------------------------------


def test_in_place_is_declared(tmp_path: Path) -> None:
    """A-41."""
    x = torch.zeros(256)
    task = task_of(tmp_path, kernels.scale, (8,), x, x, 32, 0.5)
    assert task.outputs["y"].in_place_of == "x"
    verdict = check_on(task, Equipment(InterpreterEngine(task, BOARD)))
    assert verdict.verdict.startswith("correct"), verdict.reason
    assert "in place" in {one.case.run for one in verdict.results}


@pytest.fixture(scope="module")
def rotated(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """Both halves of each row, read and written through one argument."""
    x, cosine, sine = torch.zeros(48, 128), torch.zeros(48, 64), torch.zeros(48, 64)
    return task_of(tmp_path_factory.mktemp("rotated"), kernels.rotated, (6,), x, cosine, sine, 8, 64)


def test_one_argument_that_is_read_and_written_is_declared_twice(rotated: Task) -> None:
    assert list(rotated.inputs) == ["x_before", "cosine", "sine"]
    assert rotated.outputs["x"].updates == "x_before"
    workload = rotated.selected(None)[0]
    launch = rotated.launched(rotated.space.shipped, workload.dims, rotated.arrays(workload.dims), BOARD)
    assert launch.args[0].name == "x"


def test_rows_twice_as_long_as_others_stay_so(rotated: Task) -> None:
    """They cannot shrink on their own; the rows' number can."""
    assert {name: str(spec.shape) for name, spec in rotated.inputs.items()} == {
        "x_before": "('D0', 'D1 * 2')", "cosine": "('D0', 'D1')", "sine": "('D0', 'D1')",
    }  # fmt: skip


def test_the_reference_starts_from_what_was_there_before(rotated: Task) -> None:
    dims, rng = rotated.selected(None)[0].dims, np.random.default_rng(0)
    x, angle = rng.normal(size=(48, 2, 64)), rng.normal(size=(48, 64))
    cosine, sine = np.cos(angle), np.sin(angle)
    given = {"x_before": x.reshape(48, 128), "cosine": cosine, "sine": sine}
    (found,) = reference_outputs(rotated, dims, given).values()
    wanted = [x[:, 0] * cosine - x[:, 1] * sine, x[:, 1] * cosine + x[:, 0] * sine]
    np.testing.assert_allclose(found, np.concatenate(wanted, axis=1), atol=1e-12)


def test_a_kernel_in_place_is_correct_and_another_is_not(rotated: Task) -> None:
    assert verdict_of(rotated) == "correct"
    before = "    ct.store(x, (row, 0), first * cos - second * sin)\n"
    later = "    first = ct.load(x, (row, 0), (TILE, HALF))\n"
    assert verdict_of(wrong(rotated, before, before + later)) == "incorrect"


def test_what_blocks_add_up_need_not_have_equal_bits(tmp_path: Path) -> None:
    task = task_of(tmp_path, kernels.added, (32,), torch.zeros(32, 64), torch.zeros(64), 64)
    assert not task.deterministic and task.outputs["total"].updates == "total_before"
    assert verdict_of(task) == "correct"
    assert verdict_of(wrong(task, "1, TILE)).reshape((TILE,))", "1, TILE)).reshape((TILE,)) * 1.01")) == "incorrect"


def test_one_array_twice_that_is_also_read_where_it_is_written_is_refused(tmp_path: Path) -> None:
    x = torch.zeros(32, 128)
    with pytest.raises(RequestError, match="gets one array as 'cosine' and as 'x'"):
        task_of(tmp_path, kernels.rotated, (4,), x, x, torch.zeros(32, 64), 8, 64)


def test_a_number_that_is_the_grid_by_chance_rules_nothing(tmp_path: Path) -> None:
    """One block alone does not do the work of eight here."""
    task = task_of(tmp_path, kernels.scale, (8,), torch.zeros(256), torch.zeros(256), 32, 8)
    workload = task.selected(None)[0]
    config = task.space.shipped.replace(TILE=16)
    assert task.launched(config, workload.dims, task.arrays(workload.dims), BOARD).grid == (16,)


# Tables -----------------------------------------------------------------------------------------------


LENGTHS = (30, 7, 19, 40)


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Task:
    offsets = torch.tensor([0, *np.cumsum(LENGTHS)], dtype=torch.int32)
    x, y = torch.zeros(96, 32), torch.zeros(96, 32)
    folder = tmp_path_factory.mktemp("sequences")
    return task_of(folder, kernels.by_sequence, (4, 5), x, offsets, y, 8, 32)


def test_a_table_rises_to_the_end_of_what_it_divides(sequences: Task) -> None:
    """As it was at the captured extents; at others another that steps no further."""
    dims = dict(sequences.selected(None)[0].dims)
    (rows,) = (name for name, extent in dims.items() if extent == 96)
    (count,) = (name for name, extent in dims.items() if extent == 4)
    assert drawn(sequences, dims, "declared", 3)["offsets"].tolist() == [0, 30, 37, 56, 96]
    for kind in KINDS:
        table = drawn(sequences, {**dims, rows: 64, count: 3}, kind, 3)["offsets"].tolist()
        assert (len(table), table[0], table[-1]) == (4, 0, 64)
        assert all(1 <= after - before <= 40 for before, after in itertools.pairwise(table))
    assert not sequences.promises({**dims, rows: 96, count: 2}), "two sequences of at most 40"


def test_the_grid_follows_from_the_table(sequences: Task) -> None:
    workload = sequences.selected(None)[0]
    config = sequences.space.shipped.replace(TILE=16)
    launch = sequences.launched(config, workload.dims, sequences.arrays(workload.dims), BOARD)
    assert launch.grid == (4, 3), "sequences, and tiles of the longest"
    assert not {"D0", "D2"} & {*sequences.independent}


def test_a_kernel_with_a_table_is_correct_and_another_is_not(sequences: Task) -> None:
    assert verdict_of(sequences) == "correct"
    assert verdict_of(wrong(sequences, "inside = rows < last", "inside = rows < last - sequence")) == "incorrect"


def test_a_table_that_reaches_into_no_known_axis_stays(tmp_path: Path) -> None:
    """It ends at 40 of 50: what that is of other extents is not known."""
    table = torch.tensor([0, 3, 7, 7, 9, 12, 15, 40] * 2, dtype=torch.int32).sort().values
    task = task_of(tmp_path, kernels.gathered, (1,), torch.zeros(50), table, torch.zeros(16), 16)
    assert drawn(task, task.selected(None)[0].dims, "declared", 0)["table"].tolist() == table.tolist()
    assert verdict_of(task) == "correct"
    assert verdict_of(wrong(task, "ct.gather(x, places)", "ct.gather(x, places + 1)")) == "incorrect"


def test_one_table_that_is_given_twice_is_one_tensor(tmp_path: Path) -> None:
    """As offsets of queries and of keys: drawn apart, they would not fit."""
    offsets = torch.tensor([0, 8, 24, 32], dtype=torch.int32)
    x, y = torch.zeros(32, 16), torch.zeros(32, 16)
    args = (x, offsets, offsets.clone(), y, 8, 16)
    task = task_of(tmp_path, kernels.between_two, (3, 2), *args)
    assert list(task.inputs) == ["x", "first"]
    workload = task.selected(None)[0]
    launch = task.launched(task.space.shipped, workload.dims, task.arrays(workload.dims), BOARD)
    assert [one.name for one in launch.args[:4]] == ["x", "first", "first", "y"]
    assert verdict_of(task) == "correct"


def test_a_table_that_nobody_read_is_named(tmp_path: Path) -> None:
    """The reason why a launch that was recorded into a graph is no task."""
    offsets = torch.tensor([0, 8, 24, 32], dtype=torch.int32)
    one = described(kernels.by_sequence, (3, 2), (torch.zeros(32, 16), offsets, torch.zeros(32, 16), 8, 16))
    arguments = tuple(replace(argument, contents=None) for argument in one.arguments)
    with pytest.raises(RequestError, match="'offsets' are not known, since the array is larger than 64 KiB"):
        task_text(Recorded(replace(one, arguments=arguments), 1), tmp_path)


def test_a_flat_array_as_long_as_a_product_has_no_blocks(tmp_path: Path) -> None:
    """Rows of a flat array have one mean each, and the rows' length is an argument: as if the means were of blocks."""
    rows, weight, mean = (torch.zeros(length) for length in (512 * 64, 64, 512))
    task = task_of(tmp_path, kernels.flat_means, (512, 1), rows, weight, mean, 64)
    shapes = {name: tensor.shape for name, tensor in task.tensors.items()}
    assert shapes == {"x": ("D0 * D1",), "weight": ("D0",), "mean": ("D1",)}


def test_a_tile_that_equals_an_extent_is_still_a_tile(tmp_path: Path) -> None:
    """Where no other size of it is right, it stays the number that it was."""
    x, y = torch.zeros(64, 64), torch.zeros(64, 64)
    offsets = torch.tensor([0, 40, 64], dtype=torch.int32)
    task = task_of(tmp_path, kernels.by_sequence, (2, 1), x, offsets, y, 64, 64)
    assert verdict_of(task) == "correct"


def test_indices_stay_in_an_axis_that_shrinks(tmp_path: Path) -> None:
    """Up to its last: then they are drawn up to the end of the axis, whatever that is."""
    table = torch.randperm(1024, dtype=torch.int32)
    task = task_of(tmp_path, kernels.gathered, (8,), torch.zeros(1024), table, torch.zeros(1024), 128)
    assert task.inputs["table"].distribution.upto in task.selected(None)[0].dims
    assert verdict_of(task) == "correct"


def test_a_tile_that_must_hold_an_axis_stays(tmp_path: Path) -> None:
    """Half of it would leave the rest of the axis out."""
    task = task_of(tmp_path, kernels.centred, (12,), torch.zeros(12, 100), torch.zeros(12, 100), 128)
    assert not task.space.constants
    assert 12 in {task.selected(None)[0].dims[name] for name in task.independent}


def test_a_grid_without_a_rule_stays_and_the_file_says_so(tmp_path: Path) -> None:
    task = task_of(tmp_path, kernels.scale, (5,), torch.zeros(40), torch.zeros(40), 16, 0.5)
    assert not task.space.constants
    assert task.file is not None
    assert "no rule of extents and tiles (TILE) gives the grid of (5,)" in task.file.read_text().replace("No", "no")
    workload = task.selected(None)[0]
    assert task.launched(task.space.shipped, workload.dims, task.arrays(workload.dims), BOARD).grid == (5,)


def test_a_kernel_without_a_tile_learns_how_tiles_are_named(tmp_path: Path) -> None:
    arrays = torch.ones(5 * 64), torch.ones(64), torch.zeros(7)
    task_of(tmp_path, kernels.flat_means, (5,), *arrays, 64)
    why = "(no tile: the name of one begins with TILE or BLOCK) gives the grid of (5,)"
    assert why in (tmp_path / "captured.py").read_text()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot write into .*gone: No such file or directory; choose another"):
        task_of(tmp_path / "gone", kernels.scale, (5,), torch.zeros(40), torch.zeros(40), 16, 0.5)


def test_indices_stay_indices(tmp_path: Path) -> None:
    table = torch.tensor([5, 0, 3, 1] * 16, dtype=torch.int32)
    task = task_of(tmp_path, kernels.gathered, (4,), torch.zeros(8), table, torch.zeros(64), 16)
    spread = task.inputs["table"].distribution
    assert (spread.kind, spread.a, spread.b) == ("integers", 0, 6)


def test_what_cannot_become_a_task_says_why(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="defined inside nested"):
        task_of(tmp_path, kernels.nested(), (8,), torch.zeros(64), 8)
    assert not list(tmp_path.iterdir()), "drafts are removed"


def test_blocks_that_leave_a_part_of_the_output_leave_what_was_there(tmp_path: Path) -> None:
    task = task_of(tmp_path, kernels.scale, (4,), torch.zeros(64)[:40], torch.zeros(64)[:40], 8, 1.0)
    assert [output.updates for output in task.outputs.values()] == ["y_before"]


def test_a_cache_of_which_one_row_is_written_is_updated(tmp_path: Path) -> None:
    """It has 16 M elements, of which the check interprets a part."""
    places = torch.tensor([5, 4000, 17, 0], dtype=torch.int32)
    task = task_of(tmp_path, kernels.appended, (4,), torch.zeros(4, 64), places, torch.zeros(4, 65_536, 64), 64)
    assert [output.updates for output in task.outputs.values()] == ["cache_before"]
    check = Scope(case=Case(tuple(small_shape(task).items()), why="asked for"))
    assert check_on(task, Equipment(InterpreterEngine(task, BOARD)), check).verdict == "correct"
    other = wrong(task, "ct.store(cache, (sequence, place, 0), row)", "ct.store(cache, (sequence, place, 0), row * 2)")
    assert check_on(other, Equipment(InterpreterEngine(other, BOARD)), check).verdict == "incorrect"


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu checks it there")
def test_a_shape_that_cannot_be_reduced_needs_a_gpu(tmp_path: Path) -> None:
    x, y = torch.empty(2 * kernels.FAR), torch.empty(kernels.FAR)
    with pytest.raises(RequestError, match="25165824 elements, too many to interpret; where a GPU is, it is checked"):
        task_of(tmp_path, kernels.far, (kernels.FAR // 1024,), x, y, 1024)


def test_overlapping_outputs_are_refused(tmp_path: Path) -> None:
    base = torch.zeros(100)
    with pytest.raises(RequestError, match="overlaps 'x' without being the same array"):
        task_of(tmp_path, kernels.scale, (8,), base[:64], base[8:72], 8, 1.0)


PROGRAM = """
from __future__ import annotations

import torch
import cuda.tile as ct

TWICE = 2.0

@ct.kernel
def twice(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) * TWICE)

raise SystemExit("runs")
"""


def launched_by_program(file: Path) -> Any:
    file.write_text(PROGRAM)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with pytest.raises(SystemExit):
        exec(compile(PROGRAM, str(file), "exec"), namespace)
    return namespace["twice"]


def test_a_kernel_of_a_program_is_copied(tmp_path: Path) -> None:
    """Loading the program would run it."""
    kernel = launched_by_program(tmp_path / "program.py")
    task = task_of(tmp_path, kernel, (8,), torch.zeros(64), torch.zeros(64), 8)
    assert task.edit == ("captured.py",)
    assert check_on(task, Equipment(InterpreterEngine(task, BOARD)), Scope(quick=True)).verdict.startswith("correct")


def test_a_kernel_that_changed_since_is_no_reference(tmp_path: Path) -> None:
    """The reference would be another than what was captured (X-21)."""
    kernel = launched_by_program(tmp_path / "program.py")
    task = task_of(tmp_path, kernel, (8,), torch.zeros(64), torch.zeros(64), 8)
    (tmp_path / "program.py").write_text(PROGRAM.replace("TWICE = 2.0", "TWICE = 3.0"))
    assert task.file is not None
    again = load_task(str(task.file))
    with pytest.raises(TaskError, match="has changed since it was captured"):
        reference_outputs(again, again.selected(None)[0].dims, {"x": np.zeros(64)})


def test_a_kernel_that_a_function_makes_is_copied(tmp_path: Path) -> None:
    """With the values of the function's variables that it uses."""
    x = torch.zeros(64)
    task = task_of(tmp_path, kernels.times(3.0), (8,), x, torch.zeros(64), 8)
    assert verdict_of(task) == "correct"
    (y,) = reference_outputs(task, task.selected(None)[0].dims, {"x": np.ones(64)}).values()
    np.testing.assert_array_equal(y, np.full(64, 3.0 * kernels.FACTOR))
    text = (tmp_path / "captured.py").read_text()
    (tmp_path / "captured.py").write_text(text.replace("factor = 3.0", "factor = 3.5"))
    assert verdict_of(load_task(str(tmp_path / "captured.py"))) == "incorrect"


def test_a_record_of_another_machine_becomes_a_task(tmp_path: Path) -> None:
    launch = described(kernels.scale, (8,), (torch.zeros(64), torch.zeros(64), 8, 0.5))
    text = task_text(Recorded(replace(launch, file="/elsewhere/captured_kernels.py"), 1), tmp_path)
    (tmp_path / "captured.py").write_text(text)
    assert "/elsewhere" not in text
    assert verdict_of(load_task(str(tmp_path / "captured.py"))) == "correct"


# What it is for ---------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A task with few configurations, in a repository of its own."""
    monkeypatch.setattr(CapturedCuTile, "tried", {})
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    kernel = launched_by_program(tmp_path / "program.py")
    task_of(tmp_path, kernel, (8,), torch.zeros(1024), torch.zeros(1024), 128)
    for words in (("init", "-q"), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    return tmp_path / "captured.py"


@pytest.mark.skipif(torch.cuda.is_available(), reason="without a GPU: predicted")
def test_tune_without_a_gpu(small: Path) -> None:
    (found,) = tune(load_task(str(small)), arch="sm_90", seed=0).workloads
    assert found.best is not None and found.best.configuration["TILE"] in (64, 128, 256)


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="without a GPU: predicted")
def test_optimize_without_a_gpu(small: Path) -> None:
    """The baseline is the captured launch; one change is tried and judged against it."""
    found = optimize(str(small), arch="sm_90", options=Options(iterations=1), seed=0)
    assert [one.correctness for one in found.iterations][:1] == ["PASS"]
    assert len(found.iterations) == 2


# Facts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "strides", "how"),
    [
        ((4, 6), None, DeclaredArray((4, 6))),
        ((6, 4), (1, 6), DeclaredArray((4, 6), (1, 0))),
        ((2, 3, 4), (4, 8, 1), DeclaredArray((3, 2, 4), (1, 0, 2))),
        ((4, 6), (8, 1), DeclaredArray((30,), flat=True)),
        ((4, 6), (0, 1), DeclaredArray((6,), flat=True)),
    ],
)
def test_how_an_array_is_declared(shape: tuple[int, ...], strides: Any, how: DeclaredArray) -> None:
    assert declared_array(ArraySpec("x", shape, "float32", strides)) == how


def test_forms_of_a_grid_give_the_grid() -> None:
    args = (bf16(96, 64), bf16(64, 80), bf16(96, 80), 32, 16, 32)
    launch = described(kernels.matmul, (3, 5), args)
    forms = grid_forms(captured_launch(launch))
    sizes = launch.constants
    assert forms[0] == ((Factor(96, "TILE_M"),), (Factor(80, "TILE_N"),))
    for form in forms:
        blocks = [
            math.prod(-(-f.extent // sizes[f.tile]) if f.tile else f.extent for f in axis)  # type: ignore[operator]
            for axis in form
        ]
        assert blocks == [3, 5]


def causal_sums(folder: Path) -> tuple[Task, Case, Case]:
    """A captured task, and its only workload with large and with declared data."""
    task = task_of(folder, kernels.causal_sum, (64,), torch.zeros(64, 64), torch.zeros(64, 1), 16)
    dims = tuple(task.selected(None)[0].dims.items())
    large, declared = (Case(dims, data=data, seed=3, why="asked for") for data in ("large", "declared"))
    return task, large, declared


def judged(task: Task, case: Case, **config: int) -> Verdict:
    scope = Scope((task.space.shipped.replace(**config),), case=case)
    return check_on(task, Equipment(InterpreterEngine(task, BOARD)), scope)


def test_data_on_which_the_captured_kernel_depends_on_its_tiles_decide_nothing(tmp_path: Path) -> None:
    """Then an equal result is that of the captured kernel with these tiles; another one is still incorrect."""
    task, large, declared = causal_sums(tmp_path)
    assert judged(task, large).verdict == judged(task, declared, TILE=32).verdict == "correct"
    undecided = judged(task, large, TILE=32)
    assert undecided.verdict == "unverified" and "the captured kernel itself gives another result" in undecided.reason
    doubled = "ct.where(largest < -49.0, 2 * total, total)"  # for large numbers only
    other = wrong(task, "ct.store(y, (row, 0), total)", f"ct.store(y, (row, 0), {doubled})")
    assert judged(other, declared, TILE=32).verdict == "correct"
    assert judged(other, large, TILE=32).verdict == "incorrect"
    scope = Scope((task.space.shipped.replace(TILE=32),), seconds=60)
    assert check_on(task, Equipment(InterpreterEngine(task, BOARD)), scope).verdict.startswith("correct")


def test_a_wrong_version_whose_tiles_the_captured_kernel_refuses_is_incorrect(tmp_path: Path) -> None:
    """It is no mistake of the task, whose check would end."""
    task, large, declared = causal_sums(tmp_path)
    doubled = "ct.where(largest < -49.0, 2 * total, total)"
    other = wrong(task, "ct.store(y, (row, 0), total)", f"ct.store(y, (row, 0), {doubled})")
    first = "    largest, total = ct.full((1, 1), -1e30, ct.float32)"
    changed = tmp_path / "changed.py"
    assert changed.read_text().count(first) == 1
    changed.write_text(changed.read_text().replace(first, f"    TILE = 16\n{first}"))
    other = load_task(str(task.file), {kernels.__file__: str(changed)})
    assert judged(other, declared, TILE=48).verdict == "correct"
    verdict = judged(other, large, TILE=48)
    assert verdict.verdict == "incorrect" and "'y'[0, 0] is 30, should be 15" in verdict.reason
