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

from tilewright.languages.cutile.cutile import CuTile
from tilewright.machine_code.cubin import Header, headers
from tilewright.records import Built, Configuration, Failed
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec
from tilewright.tileir.read.reader import read_bytecode
from tilewright.tileir.run.slicing import accumulator_words, must_spill

RECORDED = Path(__file__).parent.parent.parent / "bench" / "recorded" / "h200-2026-11-21.json.gz"


@ct.kernel
def product(a, b, c, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int]):  # type: ignore[no-untyped-def]
    total = ct.zeros((TILE_M, TILE_N), ct.float32)
    for k in range(ct.cdiv(a.shape[1], 64)):
        total = ct.mma(ct.load(a, (ct.bid(0), k), (TILE_M, 64)), ct.load(b, (k, ct.bid(1)), (64, TILE_N)), total)
    ct.store(c, (ct.bid(0), ct.bid(1)), total.astype(c.dtype))


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
    assert must_spill(entry, hints.get("num_ctas"), hints.get("num_worker_warps")) is spills
    built = CuTile().assemble(one, 60)
    assert isinstance(built, Built)
    (header,) = headers([built.cubin])
    assert isinstance(header, Header)
    assert (header.stack_bytes > 128) is spills


def test_what_is_no_product_is_not_counted() -> None:
    """Whether other sums stay in registers is the compiler's choice."""
    x, y = (ArraySpec(name, (1 << 16,), "float32") for name in "xy")
    assert accumulator_words(read_bytecode(lowered(row_sums, (x, y, 1 << 15)).code).entry()) == 0


def test_no_recorded_configuration_that_must_spill_is_near_the_best() -> None:
    """The rule on every matmul that an H200 ran: it fires often, and never on one within 1.19 of the best."""
    with gzip.open(RECORDED, "rt") as file:
        (matmul,) = [task for task in json.load(file)["tasks"] if task["task"] == "matmul"]
    fired = []
    for workload in matmul["workloads"]:
        rows = [row for row in workload["rows"] if "samples_us" in row]
        times = [statistics.median(row["samples_us"]) for row in rows]
        for row, us in zip(rows, times, strict=True):
            config = row["config"]
            threads = 32 * (config["num_worker_warps"] or 4) * (config["num_ctas"] or 1)
            if config["TILE_M"] * config["TILE_N"] > 254 * threads:
                fired.append(us / min(times))
                assert row["code"]["stack_bytes"] > 128, config
    assert len(fired) > 30 and min(fired) > 1.19 and math.isfinite(max(fired))
