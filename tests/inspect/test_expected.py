"""Expected times: read from Tile IR before anything is compiled, and close enough to order configurations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.compile.accumulators import entry_of
from tilewright.compile.compile import Unit, lower
from tilewright.hardware.architectures import default_board
from tilewright.inspect.expected import ExpectedTimes
from tilewright.records import Candidate, Configuration, Failed, MachineCode, Workload
from tilewright.space.space import Space
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.tileir.analysis.outline import Outline, outline

ROOT = Path(__file__).parents[2]
CODE = MachineCode("k", 90, 40, 0, 1024, 128, 1, 0, 0, "none", 0, {}, 200, "ab" * 32)
H200 = default_board("sm_90")


def spaced(file: str, **values: tuple[int | None, ...]) -> Task:
    """Returns a task whose space has these values. The first of each ships."""
    task = load_task(str(ROOT / file))
    hints = {name: each for name, each in values.items() if name in ("occupancy", "num_worker_warps", "num_ctas")}
    constants = {name: each for name, each in values.items() if name not in hints}
    return replace(
        task, space=Space(constants=constants, hints=hints, shipped={name: each[0] for name, each in values.items()})
    )


def outlined(task: Task, workload: Workload) -> Outline:
    done = lower(task, Unit(workload, task.space.shipped, H200))
    assert not isinstance(done, Failed)
    entry = entry_of(done[1])
    assert entry is not None
    return outline(entry)


def first(task: Task) -> Workload:
    return task.selected(None)[0]


def test_the_outline_of_a_product() -> None:
    task = spaced("examples/naive/matmul.py", TILE_M=(64,), TILE_N=(128,), TILE_K=(32,))
    found = outlined(task, first(task))
    outside, loop = found.parts
    assert (outside.inside, loop.inside) == (None, 0)
    assert loop.flop == 2 * 64 * 128 * 32 and loop.accumulators == 64 * 128 and found.on_tensor_cores
    assert loop.loaded == 2 * (64 * 32 + 32 * 128) and outside.stored == 2 * 64 * 128
    assert found.contiguous == 2 * 32
    assert found.live == pytest.approx(64 * 128, rel=0.3), "the factors stay in shared memory"


def test_products_of_float32_are_not_on_tensor_cores() -> None:
    task = spaced("examples/naive/matmul_fp32.py", TILE_M=(64,), TILE_N=(64,), TILE_K=(16,))
    assert outlined(task, first(task)).products and not outlined(task, first(task)).on_tensor_cores


def test_the_outline_of_a_softmax() -> None:
    task = spaced("examples/naive/softmax.py", occupancy=(None,))
    (only,) = outlined(task, Workload("row", {"M": 128, "N": 1024})).parts
    assert only.folds == 2 and only.loaded == only.stored == 2 * 1024 and not only.products


def test_more_live_values_with_larger_tiles() -> None:
    live = []
    for tile in (32, 64):
        task = spaced("bench/aside/transpose.py", TILE_M=(tile,), TILE_N=(64,))
        live.append(outlined(task, first(task)).live)
    assert live == [32 * 64 / 2, 64 * 64 / 2]


def times(task: Task, like: Candidate | None = None) -> dict[Configuration, float]:
    every = task.space.configurations(90, {})
    found = ExpectedTimes(task, first(task), H200).us(every, like)
    assert all(found)
    return {config: us for config, us in zip(every, found, strict=True) if us}


def test_accumulators_that_spill_are_slow() -> None:
    task = spaced("examples/naive/matmul.py", TILE_M=(128,), TILE_N=(128, 256), TILE_K=(64,))
    fits, spills = times(task).values()
    assert spills > 1.3 * fits


def test_small_tiles_of_a_product_are_slower() -> None:
    task = spaced("examples/naive/matmul.py", TILE_M=(128, 64, 32), TILE_N=(128,), TILE_K=(64,))
    large, middle, small = times(task).values()
    assert large < middle < small


def test_the_left_factor_of_a_product_needs_registers_if_it_is_computed() -> None:
    """Weights of attention in bfloat16. Both factors of the first product are loaded."""
    task = spaced("examples/naive/attention.py", TILE_M=(64,), TILE_N=(128,))
    assert outlined(task, first(task)).parts[1].factors == 64 * 128 / 2


def test_warpgroups_that_share_the_rows_of_attention_are_slow() -> None:
    """A warpgroup multiplies 64 rows. Of a tile with 64 rows, two warpgroups share all."""
    hints = {"occupancy": (2,), "num_worker_warps": (4, 8)}
    shared = times(spaced("examples/naive/attention.py", TILE_M=(64,), TILE_N=(64,), **hints))
    own = times(spaced("examples/naive/attention.py", TILE_M=(128,), TILE_N=(64,), **hints))
    (four, eight), (_, eight_own) = shared.values(), own.values()
    assert eight > four and eight > 1.2 * eight_own


def test_the_occupancy_is_not_lowered_for_products_on_cuda_cores() -> None:
    """The accumulators are spilled, and those of tensor cores are not."""
    found = []
    for file in ("examples/naive/matmul_fp32.py", "examples/naive/matmul.py"):
        task = spaced(file, TILE_M=(128,), TILE_N=(128,), TILE_K=(16,), occupancy=(1, 4), num_worker_warps=(8,))
        one, four = times(task).values()
        found.append(four / one)
    assert found[0] > 1.5 > found[1]


def test_code_of_workloads_is_equal_unless_the_kernel_depends_on_them() -> None:
    task = spaced("examples/naive/matmul.py", TILE_M=(64, 128), TILE_N=(64,), TILE_K=(32,))
    sizes = {"one": 2048, "two": 4096, "odd": 2047}
    one, two, odd = (
        ExpectedTimes(task, Workload(name, {"M": size, "N": size, "K": size}), H200).code(task.space.shipped)
        for name, size in sizes.items()
    )
    assert one == two != odd


def made(task: Task, threads: int) -> Candidate:
    """A compiled candidate whose machine code has so many threads."""
    return Candidate(task.space.shipped, "predicted", "made up", replace(CODE, threads=threads))


def test_occupancy_counts_if_one_warpgroup_copies_for_the_others() -> None:
    task = spaced("examples/naive/softmax.py", occupancy=(None, 4), num_worker_warps=(4,))
    apart, together = times(task, made(task, 256)), times(task, made(task, 128))
    (one, four), (same, also) = apart.values(), together.values()
    assert four < 0.5 * one and same == also


def test_without_machine_code_both_ways_are_averaged() -> None:
    task = spaced("examples/naive/softmax.py", occupancy=(None, 4), num_worker_warps=(4,))
    for config, us in times(task).items():
        one, other = times(task, made(task, 256))[config], times(task, made(task, 128))[config]
        assert us == pytest.approx((one * other) ** 0.5)


def test_what_is_not_known_has_no_time() -> None:
    task = spaced("bench/aside/transpose.py", TILE_M=(64,), TILE_N=(64,))
    good, bad = task.space.shipped, task.space.shipped.replace(TILE_M=48)  # no power of two: the front end refuses it
    known, unknown = ExpectedTimes(task, first(task), H200).us((good, bad))
    assert known and unknown is None
    assert ExpectedTimes(task, first(task), default_board("sm_100")).us((good,)) == (None,)


def test_default_hints_have_the_identity_of_none() -> None:
    task = spaced("bench/aside/transpose.py", TILE_M=(64, 32), TILE_N=(64,), occupancy=(None, 1, 2))
    expected, shipped = ExpectedTimes(task, first(task), H200), task.space.shipped
    assert expected.identity(shipped) == expected.identity(shipped.replace(occupancy=1))
    assert expected.identity(shipped) != expected.identity(shipped.replace(occupancy=2))
    assert expected.identity(shipped) != expected.identity(shipped.replace(TILE_M=32))


def test_hints_that_change_neither_threads_nor_registers_have_one_identity() -> None:
    """Two CTAs of 256 threads do not have the registers for the accumulators, so the compiler makes the code for one.

    A softmax in which all warps copy needs fewer registers than either hint allows.
    """
    hints = {"occupancy": (1, 2), "num_worker_warps": (8,)}
    product = spaced("examples/naive/matmul.py", TILE_M=(128,), TILE_N=(256,), TILE_K=(64,), **hints)
    softmax = spaced("examples/naive/softmax.py", occupancy=(1, 2), num_worker_warps=(4,))
    for task, like, codes in ((product, None, 1), (softmax, made(softmax, 128), 1), (softmax, made(softmax, 256), 2)):
        expected = ExpectedTimes(task, first(task), H200)
        assert len({expected.identity(config, like) for config in task.space.configurations(90, {})}) == codes


OCCUPIED = """\
import cuda.tile as ct
import tilewright as tw

@ct.kernel(occupancy=4)
def softmax(x, y, N: ct.Constant[int]):
    values = ct.exp(ct.load(x, (ct.bid(0), 0), (1, N)))
    ct.store(y, (ct.bid(0), 0), values / ct.sum(values))

task = tw.Task(
    name="occupied",
    tensors={"x": tw.Tensor(("M", "N"), "float32"), "y": tw.Output(("M", "N"), "float32")},
    reference=lambda x: x,
    launch=lambda x, y, M, N: tw.Launch(softmax, (M,), (x, y, N)),
    flops=lambda M, N: M * N,
    space=tw.Space(HINTS),
    workloads={"rows": {"M": 4096, "N": 1024}},
)
"""


def test_hints_of_the_decorator_count(tmp_path: Path) -> None:
    """Unless the space has the hint: None then removes it."""
    found = []
    for name, hints in (
        ("own", "shipped={}"),
        ("removed", 'hints={"occupancy": (None,)}, shipped={"occupancy": None}'),
    ):
        file = tmp_path / f"{name}.py"
        file.write_text(OCCUPIED.replace("HINTS", hints))
        task = load_task(str(file))
        found += times(task, made(task, 256)).values()
    assert found[0] < 0.5 * found[1]
