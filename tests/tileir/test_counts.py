"""The work that the interpreter counts is what can be derived by hand from the examples' sources.

FLOP are those of whole tiles: what lies beyond a tensor's edge is computed all the same. Bytes are those
inside the tensors. The front end makes one ``fma`` (2 FLOP) of a product that is only added.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.hardware.architectures import default_board
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.tileir.run.counting import PER_ELEMENT, Counts
from tilewright.tileir.run.interpreter import IMPLEMENTED, Executed, run
from tilewright.tileir.run.launching import Launcher, Runnable
from tilewright.tileir.run.memory import Memory
from tilewright.verify.images import storage
from tilewright.verify.tolerance import draw

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
BOARD = default_board("sm_90")
BF16, FLOAT = 2, 4
"""Bytes."""

Dims = Mapping[str, Any]


@dataclass(frozen=True)
class Expected:
    """What follows from a source. ``vector``: FLOP by operation; ``touched``: distinct bytes by tensor;
    ``trips``: passes through each loop, over all blocks, in the order of the source."""

    tensor: int
    vector: Mapping[str, int]
    loaded: int
    stored: int
    touched: Mapping[str, int]
    trips: tuple[int, ...] = field(default=())


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


# Derived by hand ------------------------------------------------------------------------------------------


def matmul(M: int, N: int, K: int, TILE_M: int, TILE_N: int, TILE_K: int) -> Expected:
    """R × C tiles of c, each from S products of TILE_M × TILE_K with TILE_K × TILE_N: 2·m·n·k FLOP each.

    A row of tiles of a is read by all C tiles beside it, so a moves C times; likewise b moves R times.
    """
    rows, columns, steps = cdiv(M, TILE_M), cdiv(N, TILE_N), cdiv(K, TILE_K)
    tiles = rows * columns
    return Expected(
        tensor=tiles * steps * 2 * TILE_M * TILE_N * TILE_K,
        vector={},
        loaded=BF16 * (columns * M * K + rows * K * N),
        stored=BF16 * M * N,
        touched={"a": BF16 * M * K, "b": BF16 * K * N, "c": BF16 * M * N},
        trips=(tiles, tiles * steps),
    )


def rms_norm(M: int, N: int, TILE_M: int, BLOCKS_PER_SM: int) -> Expected:
    """Each of the blocks reads the weights once; together they walk over G groups of TILE_M rows.

    A group of m rows, N widened to W, the power of two: rows·rows, ·rsqrt and ·scale are 3·m·W products; a sum of
    W numbers takes W − 1 additions; then a division, an addition and an rsqrt for each row.
    """
    width, groups = 1 << (N - 1).bit_length(), cdiv(M, TILE_M)
    blocks = min(groups, BOARD.sms * BLOCKS_PER_SM)
    each = groups * TILE_M
    return Expected(
        tensor=0,
        vector={"mulf": each * 3 * width, "reduce": each * (width - 1), "divf": each, "addf": each, "rsqrt": each},
        loaded=BF16 * (blocks * N + M * N),
        stored=BF16 * M * N,
        touched={"x": BF16 * M * N, "weight": BF16 * N, "y": BF16 * M * N},
        trips=(groups,),
    )  # fmt: skip


def rope(B: int, H: int, S: int, D: int, TILE_H: int, TILE_S: int) -> Expected:
    """For each pair of elements two products and two fma: x1·cos − (x2·sin), x2·cos + (x1·sin).

    The angles, S × D/2 in float32 twice, are read anew for every tile of heads and every batch.
    """
    half, groups = D // 2, cdiv(H, TILE_H) * B
    computed = groups * cdiv(S, TILE_S) * TILE_H * TILE_S * half
    return Expected(
        tensor=0,
        vector={"mulf": 2 * computed, "fma": 2 * 2 * computed},
        loaded=BF16 * B * H * S * D + groups * 2 * FLOAT * S * half,
        stored=BF16 * B * H * S * D,
        touched={
            "x": BF16 * B * H * S * D,
            "rotated": BF16 * B * H * S * D,
            "cosine": FLOAT * S * half,
            "sine": FLOAT * S * half,
        },
    )


def swiglu(M: int, N: int, TILE_M: int, TILE_N: int) -> Expected:
    """An element: −z·log2 e, z·sigmoid and ·factor are three products; one exp2, one addition, one quotient."""
    computed = cdiv(M, TILE_M) * TILE_M * cdiv(N, TILE_N) * TILE_N
    moved = BF16 * M * N
    return Expected(
        tensor=0,
        vector={"mulf": 3 * computed, "exp2": computed, "addf": computed, "divf": computed},
        loaded=2 * moved,
        stored=moved,
        touched={"gate": moved, "up": moved, "y": moved},
    )


def fmha(B: int, H: int, S: int, D: int, causal: bool, TILE_M: int, TILE_N: int) -> Expected:
    """Block m owns TILE_M queries. It walks over the keys before its own, TILE_N at a time, then over those on
    the diagonal, TILE_M at a time; without a mask, over whole tiles of TILE_N and then over the ragged one.

    A step over w keys, for t = TILE_M queries: two products of 2·t·w·D; two reductions of t rows of w; w·t fma
    and exp2 for the weights; and for each row the product of its highest, the maximum, the difference and exp2
    of the fade, the fma of the weight, and the D products of the total. In the end, a quotient an element.
    """
    t, heads, vector, loaded, tensor = TILE_M, B * H, defaultdict(int), 0, 0
    trips = [0, 0]
    for m in range(cdiv(S, t)):
        whole = (m * t if causal else S) // TILE_N
        steps = [(0, n, TILE_N) for n in range(whole)]
        if causal:
            steps += [(1, n, t) for n in range(whole * TILE_N // t, m + 1)]
        elif S % TILE_N:
            steps += [(1, whole, TILE_N)]
        for loop, n, w in steps:
            trips[loop] += 1
            tensor += 2 * 2 * t * w * D
            for name, flop in {
                "reduce": 2 * t * (w - 1), "fma": 2 * t * w + 2 * t, "exp2": t * w + t, "subf": t, "maxf": t,
                "mulf": t + t * D,
            }.items():  # fmt: skip
                vector[name] += flop
            loaded += 2 * BF16 * D * min(w, S - n * w)
        vector["divf"] += t * D
    moved = BF16 * heads * S * D
    second = causal or S % TILE_N != 0  # else the compiler drops the loop
    return Expected(
        tensor=heads * tensor,
        vector={name: heads * flop for name, flop in vector.items()},
        loaded=moved + heads * loaded,
        stored=moved,
        touched=dict.fromkeys(("q", "k", "v", "out"), moved),
        trips=tuple(heads * one for one in trips[: 2 if second else 1]),
    )


DERIVED = {"matmul": matmul, "rms_norm": rms_norm, "rope": rope, "swiglu": swiglu, "fmha": fmha}
CASES: tuple[tuple[str, Dims, Dims], ...] = (
    ("matmul", {"M": 256, "N": 128, "K": 192}, {"TILE_M": 64, "TILE_N": 64, "TILE_K": 32}),
    ("matmul", {"M": 200, "N": 137, "K": 75}, {"TILE_M": 64, "TILE_N": 128, "TILE_K": 32}),
    ("matmul", {"M": 1, "N": 17, "K": 31}, {"TILE_M": 128, "TILE_N": 64, "TILE_K": 64}),
    ("matmul", {"M": 1000, "N": 900, "K": 40}, {"TILE_M": 64, "TILE_N": 64, "TILE_K": 64}),
    ("rms_norm", {"M": 64, "N": 256}, {"TILE_M": 2, "BLOCKS_PER_SM": 2}),
    ("rms_norm", {"M": 333, "N": 300}, {"TILE_M": 1, "BLOCKS_PER_SM": 2}),
    ("rms_norm", {"M": 1, "N": 1}, {"TILE_M": 4, "BLOCKS_PER_SM": 1}),
    ("rms_norm", {"M": 601, "N": 65}, {"TILE_M": 4, "BLOCKS_PER_SM": 1}),
    ("rope", {"B": 2, "H": 4, "S": 64, "D": 64}, {"TILE_H": 2, "TILE_S": 16}),
    ("rope", {"B": 2, "H": 3, "S": 37, "D": 32}, {"TILE_H": 2, "TILE_S": 16}),
    ("rope", {"B": 3, "H": 5, "S": 1, "D": 16}, {"TILE_H": 4, "TILE_S": 4}),
    ("swiglu", {"M": 8, "N": 1024}, {"TILE_M": 2, "TILE_N": 512}),
    ("swiglu", {"M": 5, "N": 1531}, {"TILE_M": 2, "TILE_N": 1024}),
    ("swiglu", {"M": 3, "N": 7}, {"TILE_M": 1, "TILE_N": 512}),
    *(
        ("fmha", {"B": 1, "H": 2, "S": length, "D": head, "causal": causal}, {"TILE_M": t, "TILE_N": n})
        for causal in (True, False)
        for length, head, t, n in ((256, 32, 64, 64), (256, 64, 128, 32), (100, 32, 64, 32), (300, 16, 64, 128))
    ),
)


# Counted --------------------------------------------------------------------------------------------------


@cache
def example(name: str) -> Task:
    return load_task(str(EXAMPLES / f"{name}.py"))


def runnable(name: str, dims: Dims, knobs: Dims) -> Runnable:
    task = example(name)
    found = Launcher(task, BOARD).runnable(task.space.shipped.replace(**knobs), dims, task.arrays(dims))
    assert isinstance(found, Runnable), found
    return found


def executed(
    name: str, dims: Dims, knobs: Dims, *, dry: bool, **how: Any
) -> tuple[Executed, dict[str, tuple[int, int]]]:
    """The run, and where each tensor lies; with data, and watched, unless ``dry``."""
    task, one = example(name), runnable(name, dims, knobs)
    memory, rng, places = Memory(watch=not dry), np.random.default_rng(0), {}
    for tensor, spec in task.arrays(dims).items():
        data = np.zeros(spec.shape, storage(spec.dtype))
        if not dry and tensor in task.inputs:
            data = draw(task.inputs[tensor].distribution, spec.shape, rng).astype(data.dtype)
        start = memory.allocate(tensor, data, written=tensor in task.inputs).address
        places[tensor] = (start, start + data.nbytes)
    addresses = {tensor: start for tensor, (start, _) in places.items()}
    return run(one.module, one.bound(addresses, memory), one.launch.grid, memory, dry=dry, **how), places


def vector(counts: Counts) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for one in counts.ops:
        if one.flop:
            found[one.op.name] += one.flop
    return dict(found)


def trips(counts: Counts) -> tuple[int, ...]:
    loops = [one for one in counts.ops if one.op.name in ("for", "loop")]
    return tuple(one.iterations for one in loops)


def rows(counts: Counts) -> dict[str, tuple[int, ...]]:
    """By operation and place; an operation that never ran has no row."""
    found: dict[str, tuple[int, ...]] = {}
    for one in counts.ops:
        key = f"{one.op.name} {one.op.results} {one.op.location}"
        found[key] = (one.executed, one.iterations, one.loaded_bytes, one.stored_bytes)
    return found


def names(case: tuple[str, Dims, Dims]) -> str:
    return f"{case[0]}-" + "-".join(str(one) for one in (*case[1].values(), *case[2].values()))


@pytest.mark.parametrize("dry", [True, False], ids=["dry", "watched"])
@pytest.mark.parametrize("case", CASES, ids=names)
def test_counts_are_those_derived_by_hand(case: tuple[str, Dims, Dims], dry: bool) -> None:
    name, dims, knobs = case
    expected = DERIVED[name](**dims, **knobs)
    done, places = executed(name, dims, knobs, dry=dry)
    counts = done.counts
    assert not done.findings
    assert counts.tensor_flop == expected.tensor
    assert vector(counts) == {op: flop for op, flop in expected.vector.items() if flop}
    assert counts.flop == sum(expected.vector.values())
    assert (counts.loaded_bytes, counts.stored_bytes) == (expected.loaded, expected.stored)
    touched = {
        tensor: sum(int(np.diff(np.clip(runs, *place)).sum()) for runs in (counts.loaded_runs, counts.stored_runs))
        for tensor, place in places.items()
    }
    assert touched == expected.touched
    inputs = sum(expected.touched[one] for one in example(name).inputs)
    assert counts.distinct_loaded_bytes == inputs
    assert counts.distinct_stored_bytes == sum(expected.touched.values()) - inputs
    assert trips(counts) == expected.trips
    assert not counts.sampled and counts.blocks == math.prod(runnable(name, dims, knobs).launch.grid)


@pytest.mark.parametrize("case", CASES, ids=names)
def test_a_dry_run_counts_each_operation_as_a_run_with_data(case: tuple[str, Dims, Dims]) -> None:
    assert rows(executed(*case, dry=True)[0].counts) == rows(executed(*case, dry=False)[0].counts)


EVEN = [case for case in CASES if case[0] in ("rope", "swiglu") or (case[0] == "matmul" and case[1]["M"] == 256)]


@pytest.mark.parametrize("dry", [True, False], ids=["dry", "watched"])
@pytest.mark.parametrize("case", EVEN, ids=names)
def test_a_sample_of_equal_blocks_scales_to_the_whole(case: tuple[str, Dims, Dims], dry: bool) -> None:
    """All blocks compute the same number of elements; where they also move the same bytes, so do they."""
    name, dims, knobs = case
    expected = DERIVED[name](**dims, **knobs)
    counts = executed(name, dims, knobs, dry=dry, sample=2, seed=7)[0].counts
    assert counts.blocks == min(2, counts.grid_blocks) and counts.sampled == (counts.grid_blocks > 2)
    assert counts.scaled(counts.tensor_flop) == expected.tensor
    assert counts.scaled(counts.flop) == sum(expected.vector.values())
    if all(dims[axis[-1]] % tile == 0 for axis, tile in knobs.items()):
        assert counts.scaled(counts.loaded_bytes) == expected.loaded
        assert counts.scaled(counts.stored_bytes) == expected.stored


@pytest.mark.parametrize("dry", [True, False], ids=["dry", "watched"])
def test_the_first_blocks_of_a_ragged_grid(dry: bool) -> None:
    """37 rows of 4 make 10 groups; the first 4 blocks of 10 own 16 rows, all 10 own 37."""
    dims, knobs = {"M": 37, "N": 60}, {"TILE_M": 4, "BLOCKS_PER_SM": 1}
    for sample, owned in ((4, 16), (9, 36), (10, 37), (99, 37)):
        counts = executed("rms_norm", dims, knobs, dry=dry, sample=sample, seed=None)[0].counts
        blocks = min(sample, 10)
        assert counts.blocks == blocks and counts.grid_blocks == 10 and counts.sampled == (blocks < 10)
        assert counts.stored_bytes == counts.distinct_stored_bytes == BF16 * owned * 60
        assert counts.loaded_bytes == BF16 * (owned + blocks) * 60
        assert counts.distinct_loaded_bytes == BF16 * (owned + 1) * 60
        assert counts.flop == blocks * 4 * (3 * 64 + 63 + 3)


@pytest.mark.parametrize("dry", [True, False], ids=["dry", "watched"])
def test_lines_of_the_source_carry_what_they_do(dry: bool) -> None:
    dims, knobs = {"M": 200, "N": 137, "K": 75}, {"TILE_M": 64, "TILE_N": 64, "TILE_K": 32}
    expected = matmul(**dims, **knobs)
    source = (EXAMPLES / "matmul.py").read_text().splitlines()
    lines = {
        source[one.location.line - 1].split("=")[0].strip(): one
        for one in executed("matmul", dims, knobs, dry=dry)[0].counts.lines()
        if one.location is not None and one.location.line
    }
    assert lines["left"].loaded_bytes == BF16 * 3 * 200 * 75
    assert lines["right"].loaded_bytes == BF16 * 4 * 75 * 137
    assert lines["total"].tensor_flop == expected.tensor
    assert sum(one.tensor_flop for one in lines.values()) == expected.tensor
    assert lines["ct.store(c, (row, column), total.astype(c.dtype))"].stored_bytes == expected.stored
    assert lines["for k in range(ct.cdiv(a.shape[1], TILE_K)):"].iterations == expected.trips[1]


def test_operations_that_count_exist() -> None:
    assert set(PER_ELEMENT) <= set(IMPLEMENTED)
