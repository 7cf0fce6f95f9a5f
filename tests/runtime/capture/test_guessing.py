"""What a draft guesses from one launch: which axes belong together, and which constants follow them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.runtime import captured_kernels, guessed_kernels
from tests.runtime.capture.test_task_file import task_of, verdict_of

from tilewright.runtime.capture import guessing
from tilewright.runtime.capture.described import described
from tilewright.runtime.capture.facts import Row, captured_launch, merged_extents
from tilewright.runtime.capture.scaling import readings, scalings
from tilewright.runtime.capture.trying import small_shape, too_large
from tilewright.testing.entries import H200

torch = pytest.importorskip("torch")


def of_heads(heads: int, rows: int, columns: int, tile: int = 16) -> tuple[Any, ...]:
    x, y = torch.empty(2, heads, rows, columns), torch.empty(2, heads, rows, columns)
    return guessed_kernels.of_heads, (rows // tile, 2 * heads), x, y, heads, tile, columns


def test_which_axis_a_constant_divides_is_found_by_changing_it() -> None:
    kernel, grid, *args = of_heads(16, 64, 16)
    captured = captured_launch(described(kernel, grid, args))
    assert captured.tiled == {
        "TILE_M": frozenset({("x", 2), ("y", 2)}), "TILE_D": frozenset({("x", 3), ("y", 3)}),
    }  # fmt: skip
    assert captured.followed("TILE_M", 16) == (), "64 rows are four tiles"
    assert captured.followed("TILE_D", 16) == (16,)


def test_the_tiles_of_a_product_are_found() -> None:
    a, b, c = torch.zeros(96, 64), torch.zeros(64, 80), torch.zeros(96, 80)
    captured = captured_launch(described(captured_kernels.matmul, (3, 5), (a, b, c, 32, 16, 32)))
    assert {name: sorted(axes) for name, axes in captured.tiled.items()} == {
        "TILE_M": [("a", 0), ("c", 0)], "TILE_N": [("b", 1), ("c", 1)], "TILE_K": [("a", 1), ("b", 0)],
    }  # fmt: skip


def test_one_row_at_a_time_may_become_several(tmp_path: Path) -> None:
    """By no name: the constant divides only the axis that the grid counts. A width of one element is no such tile."""
    x, y = torch.zeros(64, 32), torch.zeros(64, 32)
    task = task_of(tmp_path, guessed_kernels.some_rows, (64,), x, y, 1, 32)
    assert task.space.constants == {"each": (1, 2, 4, 8, 16)} and verdict_of(task).startswith("correct")
    [workload] = task.selected(None)
    config = task.space.shipped.replace(each=4)
    assert task.launched(config, workload.dims, task.arrays(workload.dims), H200).grid[0] == 16
    narrow = captured_launch(
        described(guessed_kernels.some_rows, (16,), (torch.zeros(64, 1), torch.zeros(64, 1), 4, 1))
    )
    assert narrow.tiled["width"] == {("x", 1), ("y", 1)} and not narrow.tiles


def test_rows_as_long_as_another_axis_are_read_in_two_ways() -> None:
    kernel, grid, *args = of_heads(16, 64, 16)
    first, second = readings(captured_launch(described(kernel, grid, args)))
    assert first.launch.arrays()[0].spec.shape == (2, 16, 64, 16)
    assert second.launch.arrays()[0].spec.shape == (2, 16, 64, Row(16))
    assert Row(16) != 16 and Row(16) == Row(16) and len({Row(16), 16}) == 2


def test_as_many_heads_as_columns_are_two_dimensions(tmp_path: Path) -> None:
    """Together they could not become small: rows and columns stay two tiles long."""
    task = task_of(tmp_path, *of_heads(128, 1024, 128, tile=128))
    shape = task.inputs["x"].shape
    assert len({str(entry) for entry in shape}) == 4, shape
    assert task.space.constants["TILE_M"] == (64, 128, 256)
    assert verdict_of(task).startswith("correct")


def test_the_length_of_a_split_follows_what_is_split(tmp_path: Path) -> None:
    """A shorter row with splits as long as before would leave splits empty."""
    x, y = torch.zeros(32, 2048), torch.zeros(32, 16)
    task = task_of(tmp_path, guessed_kernels.of_splits, (32, 16), x, y, 128, 32)
    dims = dict(task.selected(None)[0].dims)
    names = {extent: name for name, extent in dims.items()}
    assert task.file is not None
    assert f"{names[2048]} // {names[16]}" in task.file.read_text()
    assert verdict_of(task).startswith("correct")


def test_an_extent_that_cannot_be_reduced_stays(tmp_path: Path) -> None:
    x, y, weights = torch.zeros(4096), torch.zeros(4096), torch.zeros(3)
    task = task_of(tmp_path, guessed_kernels.with_table, (64,), x, weights, y, 64)
    assert task.inputs["weights"].shape == (3,)
    assert list(task.selected(None)[0].dims.values()) == [4096]
    assert task.file is not None
    assert "did not work with other extents than 3, so these stay" in task.file.read_text()
    assert verdict_of(task) == "correct"


def test_guesses_keep_no_extent_then_one_then_two() -> None:
    launch = described(*of_heads(8, 64, 32)[:2], of_heads(8, 64, 32)[2:])
    kept = [len(scaling.kept) for scaling in scalings(launch) if scaling.any]
    assert kept == sorted(kept) and max(kept) == 3


@pytest.mark.parametrize("limit", [0.0, 100.0])
@pytest.mark.parametrize(("leaks", "independent"), [(0.0, ("D0",)), (1.0, ())])
def test_rows_are_independent_if_a_comparison_hides_a_nan(
    tmp_path: Path, leaks: float, independent: tuple[str, ...], limit: float
) -> None:
    """A mask of the row, as in sparsemax. With ``leaks``, the mask is that of the next row."""
    arrays = (torch.zeros(64, 32), torch.zeros(64, 32))
    task = task_of(tmp_path, guessed_kernels.kept_below, (64,), *arrays, 32, int(leaks), limit)
    assert task.independent == independent


def test_elements_that_depend_on_their_place_are_not_independent(tmp_path: Path) -> None:
    """A check by slices would compare them with the mask of other places."""
    task = task_of(tmp_path, guessed_kernels.by_place, (16,), torch.zeros(1024), torch.zeros(1024), 64)
    assert task.independent == ()
    assert verdict_of(task) == "correct"


def test_an_array_with_an_element_for_each_block_stays_so(tmp_path: Path) -> None:
    """If both could change alone, no small shape would be one that the kernel works with."""
    x, scales = torch.zeros(1 << 15), torch.zeros(1 << 8)
    task = task_of(tmp_path, guessed_kernels.scaled_by_block, (1 << 8,), x, scales, torch.zeros(1 << 15), 128)
    assert (task.inputs["x"].shape, task.inputs["scales"].shape) == (("D0",), ("D0 // 128",))
    assert verdict_of(task).startswith("correct")


@pytest.mark.parametrize(("rows", "independent"), [(1, ("D0",)), (96, ())])
def test_rows_that_share_a_scale_with_others_are_not_independent(
    tmp_path: Path, rows: int, independent: tuple[str, ...]
) -> None:
    """On a small shape all rows share the first scale, and would seem to be independent."""
    x, scales = torch.zeros(768, 32), torch.zeros(768 // rows)
    task = task_of(tmp_path, guessed_kernels.scaled_by_group, (768,), x, scales, torch.zeros(768, 32), rows, 32)
    assert task.independent == independent


@pytest.mark.parametrize("how", range(5))
def test_rows_that_share_a_scale_by_a_computed_number_are_not_independent(tmp_path: Path, how: int) -> None:
    """By a shift, a product of an argument, a bit mask, or the bounds of a loop. With 896 scales all are inside."""
    x, scales = torch.zeros(768, 32), torch.zeros(896)
    task = task_of(tmp_path, guessed_kernels.scaled_in_steps, (768,), x, scales, torch.zeros(768, 32), 32, how, 32)
    assert task.inputs["x"].shape[0] not in task.independent


@pytest.mark.parametrize(("how", "shared"), [(0, True), (1, True), (2, True), (3, True), (4, False)])
def test_rows_of_several_axes_that_share_a_scale_are_not_independent(tmp_path: Path, how: int, shared: bool) -> None:
    """No axis alone is as long as 256 rows, and on a small shape not all axes together. By a division, a remainder with
    a shift, a product in floating point, or a shift of a product. Last, all rows have one scale."""
    x, y, scales = torch.zeros(12, 14, 36, 32), torch.zeros(12, 14, 36, 32), torch.zeros(97)
    task = task_of(tmp_path, guessed_kernels.scaled_flattened, (12, 14, 36), x, scales, y, 14, 36, how, 32)
    assert task.independent == (() if shared else ("D0", "D1", "D2"))


def test_rows_below_a_loaded_number_are_not_independent(tmp_path: Path) -> None:
    x, count = torch.zeros(768, 32), torch.tensor([100], dtype=torch.int32)
    task = task_of(tmp_path, guessed_kernels.valid_rows, (768,), x, count, torch.zeros(768, 32), 32)
    assert task.inputs["x"].shape[0] not in task.independent


def test_a_shape_is_not_reduced_to_a_part_of_a_tile(tmp_path: Path) -> None:
    """A load without padding would give undefined elements there, which the captured launch has not."""
    task = task_of(tmp_path, guessed_kernels.by_block, (64,), torch.zeros(4096), torch.zeros(4096), 64)
    assert not task.space.constants, "no other tile size gives the captured outputs"
    (name,) = task.selected(None)[0].dims
    assert task.promises({name: 128}) and not task.promises({name: 48})
    assert verdict_of(task) == "correct"


def test_indices_whose_largest_is_not_the_last_may_be_indices_of_a_shorter_axis(tmp_path: Path) -> None:
    """5 M elements as captured, which is too much for a quick check."""
    table = torch.randint(0, 5_000_000, (256,), dtype=torch.int32).clamp_(max=4_999_000)
    task = task_of(tmp_path, captured_kernels.gathered, (4,), torch.empty(5_000_000), table, torch.zeros(256), 64)
    dims = task.selected(None)[0].dims
    assert task.inputs["table"].distribution.upto in dims and 5_000_000 in dims.values()
    assert verdict_of(task).startswith("correct")


def test_rows_of_several_axes_that_the_program_merged(tmp_path: Path) -> None:
    """The grid has the axes apart. If rows and their length changed apart, no smaller shape would work."""
    x, y = torch.zeros(6 * 2048, 2048), torch.zeros(6 * 2048, 2048)
    captured = captured_launch(described(guessed_kernels.masked_rows, (2048, 6), (x, y, 2048, 128)))
    assert merged_extents(captured.launch) == {6 * 2048: (6, 2048)}
    task = task_of(tmp_path, guessed_kernels.masked_rows, (2048, 6), x, y, 2048, 128)
    dims = task.selected(None)[0].dims
    assert sorted(dims.values()) == [6, 2048] and task.arrays(dims)["x"].shape == x.shape
    assert task.independent == (), "an axis that is also a factor of another axis cannot be cut alone"
    assert verdict_of(task).startswith("correct")


def test_an_axis_of_the_grid_that_nothing_explains_keeps_its_blocks(tmp_path: Path) -> None:
    """Six blocks for five parts and one other: the number of rows may change all the same."""
    arrays = [torch.zeros(16384, width) for width in (320, 320, 64, 64)]
    task = task_of(tmp_path, guessed_kernels.in_parts, (16384, 6), *arrays, 5, 64)
    assert [*task.selected(None)[0].dims.values()].count(16384) == 1 and task.file is not None
    assert "rule gives the 6 blocks along one axis of the grid" in task.file.read_text()
    assert verdict_of(task).startswith("correct")


@pytest.mark.long
def test_a_small_shape_has_few_blocks(tmp_path: Path) -> None:
    """Arrays of a few elements may have a grid with many blocks, and each costs the interpreter the same."""
    arrays = [torch.zeros(16384, width) for width in (320, 320, 64, 64)]
    task = task_of(tmp_path, guessed_kernels.in_parts, (16384, 600), *arrays, 5, 64)
    assert not too_large(task, small_shape(task))


def test_as_many_rows_as_columns_are_no_blocks_of_a_persistent_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block of a persistent kernel would then do the work of 8,192 blocks, which takes minutes to interpret."""
    monkeypatch.setattr(guessing, "reference_outputs", None)
    x, y = torch.empty(8192, 8192), torch.empty(8192, 8192)
    task = task_of(tmp_path, guessed_kernels.masked_rows, (8192,), x, y, 8192, 8192)
    assert verdict_of(task).startswith("correct")
