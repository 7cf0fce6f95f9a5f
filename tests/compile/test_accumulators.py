"""Accumulators that no thread's registers hold, against what the compiler and an H200 made of them."""

from __future__ import annotations

import gzip
import json
import math
import statistics
from pathlib import Path
from typing import Any

import cuda.tile as ct
import pytest

from tilewright.compile.accumulators import (
    LEAST_STACK,
    SMALLEST,
    Accumulators,
    accumulator_words,
    entry_of,
    is_likely_unfit,
    needs_unfit,
    registers,
)
from tilewright.compile.compile import Unit, lower, tile_sizes
from tilewright.hardware.architectures import board
from tilewright.languages.cutile.cutile import CuTile
from tilewright.machine_code.cubin import headers
from tilewright.records import Built, Configuration, Failed, MachineCode, Workload
from tilewright.task.loading import load_task
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec
from tilewright.tileir.read.reader import read_bytecode

RECORDED = Path(__file__).parent.parent.parent / "bench" / "recorded" / "h200-2026-11-21.json.gz"


@ct.kernel
def product(a, b, c, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int]):  # type: ignore[no-untyped-def]
    total = ct.zeros((TILE_M, TILE_N), ct.float32)
    for k in range(ct.cdiv(a.shape[1], 64)):
        total = ct.mma(ct.load(a, (ct.bid(0), k), (TILE_M, 64)), ct.load(b, (k, ct.bid(1)), (64, TILE_N)), total)
    ct.store(c, (ct.bid(0), ct.bid(1)), total.astype(c.dtype))


@ct.kernel
def copied(x, y, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int]):  # type: ignore[no-untyped-def]
    ct.store(y, (ct.bid(0), 0), ct.load(x, (ct.bid(0), 0), (ROWS, COLUMNS)))


@ct.kernel
def row_sums(x, y, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    total = ct.zeros((TILE,), ct.float32)
    for k in range(ct.cdiv(x.shape[0], TILE)):
        total = total + ct.load(x, (k,), (TILE,))
    ct.store(y, (0,), total)


def lowered(kernel: Any, args: tuple[Any, ...], **hints: int | None) -> Any:
    found = CuTile().lower(Launch(kernel, (1,), args), hints, Configuration(()), "sm_90")
    assert not isinstance(found, Failed), found
    return found


def launch(kernel: Any, *tile: int) -> Launch:
    return Launch(kernel, (1,), (*arrays(*"abc"), *tile))


def arrays(*names: str) -> tuple[ArraySpec, ...]:
    return tuple(ArraySpec(name, (512, 512), "bfloat16") for name in names)


@pytest.mark.parametrize(
    ("m", "n", "hints", "spills"),
    [
        (128, 128, {}, False),
        (128, 256, {}, True),
        (256, 128, {"num_worker_warps": 8}, False),
        (256, 128, {"num_ctas": 2}, False),
    ],
)
def test_the_compiler_spills_what_must_spill(m: int, n: int, hints: dict[str, int], spills: bool) -> None:
    one = lowered(product, (*arrays(*"abc"), m, n), **hints)
    entry = read_bytecode(one.code).entry()
    assert accumulator_words(entry) == m * n
    assert (accumulator_words(entry) > registers(entry, "sm_90")) is spills
    assert Accumulators().unfit(CuTile(), launch(product, m, n), one) is spills
    built = CuTile().assemble(one, 60)
    assert isinstance(built, Built)
    (header,) = headers([built.cubin])
    assert isinstance(header, MachineCode)
    assert (header.stack_bytes > 128) is spills


def test_what_is_no_product_is_not_counted() -> None:
    """Whether other sums stay in registers is the compiler's choice."""
    x, y = (ArraySpec(name, (1 << 16,), "float32") for name in "xy")
    assert accumulator_words(read_bytecode(lowered(row_sums, (x, y, 1 << 15)).code).entry()) == 0


@pytest.fixture
def read() -> list[Any]:
    """What was decoded."""
    return []


def test_only_code_that_could_have_such_a_tile_is_read(read: list[Any]) -> None:
    """To read a kernel takes as long as its front end (20 to 50 ms)."""

    def reading(one: Any) -> Any:
        read.append(one)
        return entry_of(one)

    accumulators = Accumulators(reading)
    for m, n in ((64, 64), (128, 128), (256, 64)):
        assert not accumulators.unfit(CuTile(), launch(product, m, n), lowered(product, launch(product, m, n).args))
    assert not read, "no tile of 16,384 elements is too large"
    large = launch(product, 256, 128)
    assert accumulators.unfit(CuTile(), large, lowered(product, large.args)) and len(read) == 1
    x, y = (ArraySpec(name, (1 << 16,), "float32") for name in "xy")
    for tile in (1 << 15, 1 << 16):
        sums = Launch(row_sums, (1,), (x, y, tile))
        assert not accumulators.unfit(CuTile(), sums, lowered(row_sums, sums.args))
    assert len(read) == 1, "one constant is no tile of two extents"
    assert not accumulators.unfit(CuTile(), large, lowered(product, large.args, num_ctas=2))
    assert len(read) == 2


def test_of_a_kernel_without_products_one_configuration_is_read(read: list[Any]) -> None:
    accumulators = Accumulators(lambda one: (read.append(one), entry_of(one))[1])
    x, y = (ArraySpec(name, (1 << 10, 1 << 10), "float32") for name in "xy")
    for rows in (32, 64, 128):
        one = Launch(copied, (1,), (x, y, rows, 1024))
        assert not accumulators.unfit(CuTile(), one, lowered(copied, one.args))
    assert len(read) == 1


def test_other_architectures_are_compiled() -> None:
    """On sm_100 accumulators are in tensor memory."""
    one = launch(product, 256, 256)
    found = CuTile().lower(one, {}, Configuration(()), "sm_100")
    assert not isinstance(found, Failed) and not Accumulators().unfit(CuTile(), one, found)


def test_unfit_ones_are_needed_where_no_correct_one_has_less_stack() -> None:
    assert needs_unfit([]) and needs_unfit([1792, 640])
    assert not needs_unfit([1792, 256])


@pytest.fixture(scope="module")
def recorded() -> list[Any]:
    with gzip.open(RECORDED, "rt") as file:
        return list(json.load(file)["tasks"])


def test_no_recorded_winner_is_left_out(recorded: list[Any]) -> None:
    """The rule, on the code of every configuration that an H200 ran: it fires often, and never on what ships or on one
    within 1.19 of the best. Those that it leaves out have at least `LEAST_STACK`. The guess from the configuration
    alone is right for all."""
    fired, guesses_are_right = [], []
    for each in recorded:
        task = load_task(str(RECORDED.parents[2] / "examples" / f"{each['task']}.py"))
        accumulators = Accumulators()
        for workload in each["workloads"]:
            rows = [row for row in workload["rows"] if "samples_us" in row]
            times = [statistics.median(row["samples_us"]) for row in rows]
            for row, us in zip(rows, times, strict=True):
                if not _large(row["config"]):
                    continue
                config = Configuration.of(row["config"])
                found = lower(task, Unit(Workload(workload["workload"], workload["dims"]), config, board("H200")))
                assert not isinstance(found, Failed)
                language, code, launched = found
                unfit = accumulators.unfit(language, launched, code)
                guesses_are_right.append(is_likely_unfit(config, tile_sizes(config), "sm_90") == unfit)
                if unfit:
                    fired.append(us / min(times))
                    assert config != task.space.shipped and row["code"]["stack_bytes"] >= LEAST_STACK, config
    assert len(fired) > 30 and min(fired) > 1.19 and math.isfinite(max(fired))
    assert all(guesses_are_right)


def test_triton_kernels_are_not_left_out_so_none_is_likely_unfit() -> None:
    unfit = [Configuration.of({"BLOCK_M": 256, "BLOCK_N": 256, hint: 4}) for hint in ("num_worker_warps", "num_warps")]
    assert [is_likely_unfit(each, (256, 256), "sm_90") for each in unfit] == [True, False]


def _large(config: dict[str, Any]) -> bool:
    """Whether the two largest numbers of a configuration could be the extents of such a tile; saves the front end."""
    numbers = sorted(value for value in config.values() if isinstance(value, int))
    return math.prod(numbers[-2:]) >= SMALLEST
