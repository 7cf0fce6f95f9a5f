"""Which arrays a kernel reads and writes, from real Tile IR."""

from __future__ import annotations

from typing import Any

import cuda.tile as ct
import pytest

from tilewright.languages.cutile.cutile import CuTile
from tilewright.records import Configuration, Failed
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec
from tilewright.tileir.analysis.touched import TouchedArrays, touched
from tilewright.tileir.read.reader import read_bytecode


@ct.kernel
def copies(x, y, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)))


@ct.kernel
def in_place(x, n, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    for tile in range(ct.bid(0), n, ct.num_blocks(0)):
        ct.store(x, (tile,), ct.load(x, (tile,), (TILE,)) * 2)


@ct.kernel
def scatters(index, values, out, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    where = ct.load(index, (ct.bid(0),), (TILE,))
    ct.scatter(out, where, ct.load(values, (ct.bid(0),), (TILE,)))


@ct.kernel
def adds(x, total, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    ct.atomic_add(total, ct.arange(TILE, dtype=ct.int32), ct.load(x, (ct.bid(0),), (TILE,)))


@ct.kernel
def either(x, y, z, FIRST: ct.Constant[bool], TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    values = ct.load(x, (ct.bid(0),), (TILE,))
    if FIRST:
        ct.store(y, (ct.bid(0),), values)
    else:
        ct.store(z, (ct.bid(0),), values)


@ct.kernel
def lists(sources, targets, scales, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    for one in range(len(sources)):
        scale = ct.load(scales, (one,), (1,))
        values = ct.load(sources[one], (ct.bid(0), 0), (TILE, 16), padding_mode=ct.PaddingMode.ZERO)
        ct.store(targets[one], (ct.bid(0), 0), values * scale)


def array(name: str, *shape: int, dtype: str = "float32") -> ArraySpec:
    return ArraySpec(name, shape or (1024,), dtype)


X, Y, Z = array("x"), array("y"), array("z")
SOURCES, TARGETS = ([array(f"{kind}{n}", 32, 16) for n in range(2)] for kind in "st")
CASES: dict[str, tuple[Any, tuple[Any, ...], str, str]] = {
    "copies": (copies, (X, Y, 64), "x", "y"),
    "in place": (in_place, (X, 16, 64), "x", "x"),
    "an index is read only": (
        scatters, (array("index", dtype="int32"), X, Y, 64), "index x", "y",
    ),
    "atomics do both": (adds, (X, Y, 64), "x y", "y"),
    "one branch": (either, (X, Y, Z, True, 64), "x", "y"),
    "the other branch": (either, (X, Y, Z, False, 64), "x", "z"),
    "lists": (lists, (SOURCES, TARGETS, Z, 8), "s0 s1 z", "t0 t1"),
}  # fmt: skip


def of(kernel: Any, args: tuple[Any, ...]) -> TouchedArrays:
    language, launch = CuTile(), Launch(kernel, (1,), args)
    lowered = language.lower(launch, {}, Configuration(()), "sm_90")
    assert not isinstance(lowered, Failed), lowered
    return touched(read_bytecode(lowered.code).entry(), language.arguments(launch))


@pytest.mark.parametrize("name", CASES)
def test_reads_and_writes(name: str) -> None:
    kernel, args, read, written = CASES[name]
    assert of(kernel, args) == TouchedArrays(frozenset(read.split()), frozenset(written.split()))


def test_what_does_not_fit_the_entry_is_everything() -> None:
    language, launch = CuTile(), Launch(copies, (1,), (X, Y, 64))
    lowered = language.lower(launch, {}, Configuration(()), "sm_90")
    assert not isinstance(lowered, Failed)
    both = frozenset({"x", "y"})
    assert touched(read_bytecode(lowered.code).entry(), [X, Y]) == TouchedArrays(both, both)
