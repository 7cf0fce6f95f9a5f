"""Lists of arrays as kernel arguments: their signature, and the interpreter on what they become."""

from __future__ import annotations

import cuda.tile as ct
import numpy as np
import pytest

import tilewright as tw
from tilewright.hardware.architectures import default_board
from tilewright.languages.base import ListArgument
from tilewright.languages.cutile.cutile import CuTile, signature_of
from tilewright.records import Configuration, Failed
from tilewright.task.task import Launch, Task
from tilewright.task.tensors import ArraySpec
from tilewright.tileir.run.interpreter import run
from tilewright.tileir.run.launching import Launcher, Runnable
from tilewright.tileir.run.memory import Memory

ROWS = (32, 17, 48)
"""Extents of the arrays in the lists: the kernel reads them, and one does not fill its last tile."""


@ct.kernel
def doubled(sources, targets, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    for one in range(len(sources)):
        source = sources[one]
        target = targets[one]
        for row in range(ct.bid(0), ct.cdiv(source.shape[0], TILE), ct.num_blocks(0)):
            values = ct.load(source, (row, 0), (TILE, 16), padding_mode=ct.PaddingMode.ZERO)
            ct.store(target, (row, 0), values + values)


def arrays(dtype: str = "float32") -> dict[str, ArraySpec]:
    return {f"{kind}{n}": ArraySpec(f"{kind}{n}", (rows, 16), dtype) for kind in "st" for n, rows in enumerate(ROWS)}


def launch(s0, s1, s2, t0, t1, t2) -> Launch:  # type: ignore[no-untyped-def]
    return Launch(doubled, (2,), ([s0, s1, s2], [t0, t1, t2], 8))


TASK = Task(
    name="doubled",
    tensors={
        **{f"s{n}": tw.Tensor((rows, 16), "float32") for n, rows in enumerate(ROWS)},
        **{f"t{n}": tw.Output((rows, 16), "float32") for n, rows in enumerate(ROWS)},
    },
    reference=lambda **given: tuple(2 * given[f"s{n}"] for n in range(len(ROWS))),
    launch=launch,
    space=tw.Space(shipped={}),
    workloads={"one": {}},
    flops=lambda: 0,
)


def runnable() -> Runnable:
    found = Launcher(TASK, default_board("sm_90")).runnable(Configuration(()), {}, TASK.arrays({}))
    assert isinstance(found, Runnable), found
    return found


@ct.kernel
def first(sources, target, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    ct.store(target, (0, 0), ct.load(sources[0], (0, 0), (TILE, TILE)))


@pytest.mark.parametrize(
    ("shape", "rows", "observed"),
    [
        ((1, 64), 8, "first_Kt1_LiA2f32_1v4l0_2i16t1_p16_A2f32_1v4l0_2i16t1_p16_I8"),
        ((1, 1), 8, "first_Kt1_LiA2f32_3t1_p16_A2f32_1v4l0_2i16t1_p16_I8"),
        ((8, 64), 8, "first_Kt1_LiA2f32_1v4l0_2i16t1_p16_A2f32_1v4l0_2i16t1_p16_I8"),
        ((1, 64), 1, "first_Kt2_LiA2f32_1s1v4l0_2i16t1_p16_A2f32_1s1v4l0_2i16t1_p16_I8"),
        ((8, 64), 1, "first_Kt2_LiA2f32_1v4l0_2i16t1_p16_A2f32_1s1v4l0_2i16t1_p16_I8"),
    ],
)
def test_an_extent_of_1_in_a_list_is_a_constant_only_if_another_one_is(
    shape: tuple[int, ...], rows: int, observed: str
) -> None:
    """Lists as `KernelSignature.from_kernel_args` gives them on an H200 for conventions v1 and v2, cuda-tile 1.7.0."""
    sources = [ArraySpec(f"s{n}", shape, "float32") for n in range(2)]
    assert signature_of(first, (sources, ArraySpec("t", (rows, 64), "float32"), 8)).symbol == observed


def test_the_interpreter_follows_the_arrays_of_a_list() -> None:
    one, memory, rng = runnable(), Memory(), np.random.default_rng(0)
    data = {name: rng.normal(size=spec.shape).astype(np.float32) for name, spec in TASK.arrays({}).items()}
    addresses = {
        name: memory.allocate(name, values, written=name in TASK.inputs).address for name, values in data.items()
    }
    done = run(one.module, one.bound(addresses, memory), one.launch.grid, memory)
    assert not done.findings
    for n in range(len(ROWS)):
        np.testing.assert_array_equal(data[f"t{n}"], 2 * data[f"s{n}"])


def test_a_run_without_data_knows_what_a_list_holds() -> None:
    """Addresses come out of the table, which the launch fills: no data are needed to follow them."""
    done, placed = runnable().dry_run(TASK.arrays({}))
    moved = sum(ROWS) * 16 * 4
    assert done.counts.distinct_stored_bytes == moved
    assert moved <= done.counts.distinct_loaded_bytes <= moved + sum(one.nbytes for one in placed[-2:])


def test_a_list_becomes_a_table_and_its_length() -> None:
    table, count, *_ = CuTile().arguments(launch(**arrays()))
    assert count == len(ROWS)
    assert isinstance(table, ListArgument)
    first = arrays()["s0"]
    assert table.rows[0] == (first, *first.shape, *first.strides)


def test_the_signature_of_a_list_promises_what_holds_for_each_array() -> None:
    """17 rows are no multiple of 16, so the list promises none; a row of all is one of 16 elements."""
    constraint = signature_of(doubled, launch(**arrays()).args).parameters[0].element
    assert constraint.shape_divisible_by == (1, 16)
    assert constraint.stride_constant == (None, 1)
    even = [ArraySpec(f"s{n}", (32 * (n + 1), 16), "float32") for n in range(3)]
    assert signature_of(doubled, (even, even, 8)).parameters[0].element.shape_divisible_by == (16, 16)


def test_one_misaligned_array_makes_the_list_promise_no_alignment() -> None:
    odd = [ArraySpec("s0", (32, 16), "float32"), ArraySpec("s1", (32, 16), "float32", address_offset=4)]
    assert signature_of(doubled, (odd, odd, 8)).parameters[0].element.base_addr_divisible_by == 1


@pytest.mark.parametrize("other", [ArraySpec("s1", (32, 16), "float16"), ArraySpec("s1", (32,), "float32")])
def test_a_list_of_unlike_arrays_is_refused(other: ArraySpec) -> None:
    mixed = [ArraySpec("s0", (32, 16), "float32"), other]
    lowered = CuTile().lower(Launch(doubled, (1,), (mixed, mixed, 8)), {}, Configuration(()), "sm_90")
    assert isinstance(lowered, Failed) and "one dtype and one number of axes" in lowered.reason
