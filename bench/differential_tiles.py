"""Cases of `differential` that combine elements of tiles: products, reductions, scans, shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cuda.tile as ct
import differential_kernels as k
import numpy as np
from differential_case import (
    DOUBLE_SUM,
    FLOAT_SUM,
    FP8_SUM,
    Case,
    Cases,
    Oracle,
    cdiv,
    normal,
    padded_rows,
    patterns,
    product_bound,
    product_of,
    random_for,
    renamed,
    to_tf32,
    whole,
)
from differential_classes import EXACT, Array, Inputs, order

from tilewright.verify.images import storage

# Products -------------------------------------------------------------------------------------------------


def product(
    dtype: str,
    m: int,
    n: int,
    k_: int,
    tiles: tuple[int, int, int],
    *,
    small: bool,
    out: str = "float32",
    kernel: Any = None,
    unit: float = FLOAT_SUM,
    layouts: Mapping[str, str] | None = None,
) -> Case:
    kind, note = storage(dtype), "whole" if small else "any"
    name = f"product/{dtype} to {out}/{m}x{n}x{k_}/{note}" + ("/" + "+".join(layouts.values()) if layouts else "")
    rng, draw = random_for(name), (whole if small else normal)
    if kind.kind in "iu":
        a, b = patterns(rng, kind, m * k_).reshape(m, k_), patterns(rng, kind, k_ * n).reshape(k_, n)
    else:
        a, b = draw(rng, kind, m, k_), draw(rng, kind, k_, n)
    accumulator = {"float64": ct.float64, "int8": ct.int32, "uint8": ct.int32}.get(dtype, ct.float32)
    return Case(
        name,
        kernel or k.product(accumulator),
        (cdiv(m, tiles[0]), cdiv(n, tiles[1])),
        ("a", "b", "c", *tiles),
        {"a": a, "b": b, "c": np.zeros((m, n), storage(out))},
        ("c",),
        EXACT if small or kind.kind in "iu" else product_bound(unit),
        product_of,
        layouts or {},
    )


def products() -> Cases:
    aligned, ragged = (128, 128, 128), (100, 75, 50)
    for dtype in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
        unit = FP8_SUM if "8_e" in dtype else FLOAT_SUM
        yield product(dtype, *aligned, (64, 64, 64), small=True)
        yield product(dtype, *aligned, (64, 64, 64), small=False, unit=unit)
    yield product("float16", *ragged, (32, 32, 32), small=False)
    yield product("bfloat16", *ragged, (32, 32, 32), small=False, out="bfloat16")
    yield product("bfloat16", *ragged, (32, 32, 32), small=True)
    yield product("bfloat16", 64, 64, 128, (32, 32, 32), small=True, layouts={"a": "transposed", "b": "sliced"})
    yield product("bfloat16", 1, 16, 31, (16, 16, 16), small=True)  # not 1 × 17: see one_row_store.py
    yield product("float32", 64, 96, 48, (32, 32, 16), small=True)
    yield product("float32", 61, 53, 47, (32, 32, 16), small=False)
    tf32 = k.product(ct.float32, ct.tfloat32)
    yield renamed(
        product("float32", 64, 64, 64, (32, 32, 32), small=True, kernel=tf32, out="float32"),
        "product/tf32/64x64x64/whole",
    )
    yield renamed(
        product("float32", 61, 53, 47, (32, 32, 32), small=False, kernel=tf32),
        "product/tf32/61x53x47/any",
        lambda given: product_of({one: to_tf32(given[one]) for one in "ab"}),
    )
    yield product("float64", 64, 48, 33, (32, 16, 16), small=False, out="float64", unit=DOUBLE_SUM)
    yield product("int8", 64, 64, 96, (32, 32, 32), small=True, out="int32")
    yield product("uint8", 61, 53, 47, (32, 32, 32), small=True, out="int32")
    half = k.product(ct.float16)
    yield product("float16", 64, 64, 64, (32, 32, 32), small=True, kernel=half, out="float16")
    for dtype, small in (("float16", True), ("bfloat16", False)):
        kind, rng = storage(dtype), random_for("batched" + dtype)
        draw = whole if small else normal
        yield (
            Case(
                f"batched product/{dtype}/6x30x20x25",
                k.batched,
                (3,),
                ("a", "b", "c", 2, 32, 32, 32),
                {
                    "a": draw(rng, kind, 6, 30, 25),
                    "b": draw(rng, kind, 6, 25, 20),
                    "c": np.zeros((6, 30, 20), "float32"),
                },
                ("c",),
                EXACT if small else product_bound(FLOAT_SUM),
                product_of,
            )
        )


# Reductions, scans, shapes --------------------------------------------------------------------------------


def reductions() -> Cases:
    m, n = 8, 64
    for dtype, shape, small in (
        ("float32", (32, 64), True),
        ("float32", (29, 53), False),
        ("int32", (16, 50), True),
        ("float16", (16, 64), True),
        ("float64", (13, 64), False),
        ("int64", (8, 1), True),
    ):
        name = f"reductions/{dtype}/{shape[0]}x{shape[1]}/{'whole' if small else 'any'}"
        x = (whole if small else normal)(random_for(name), storage(dtype), *shape)
        groups = cdiv(shape[0], m)

        def answer(given: Inputs, groups: int = groups) -> Mapping[str, Any]:
            tiles = padded_rows(given["x"].astype(np.float64), m, n)
            by_group = tiles.reshape(groups, m, n)
            rows = np.stack([tiles.sum(1), tiles.max(1), tiles.min(1)])
            return {"rows": rows, "columns": np.stack([by_group.sum(1), by_group.max(1), by_group.min(1)], 1)}

        def bounds(given: Inputs, groups: int = groups, dtype: str = dtype) -> Mapping[str, Array]:
            unit = np.finfo(dtype).eps
            tiles = padded_rows(np.abs(given["x"].astype(np.float64)), m, n)
            one = np.array([1.0, 0, 0])  # only the sums
            return {
                "rows": one[:, None] * n * unit * tiles.sum(1),
                "columns": one[None, :, None] * m * unit * tiles.reshape(groups, m, n).sum(1)[:, None],
            }

        tensors = {"x": x, "rows": np.zeros((3, groups * m), x.dtype), "columns": np.zeros((groups, 3, n), x.dtype)}
        yield (
            Case(
                name,
                k.reductions,
                (groups,),
                ("x", "rows", "columns", m, n),
                tensors,
                ("rows", "columns"),
                EXACT if small else order(bounds),
                answer,
            )
        )
    rng = random_for("places")
    for dtype in ("int32", "float32"):
        x = np.stack([rng.permutation(64) for _ in range(16)]).astype(dtype)
        yield (
            Case(
                f"argmax, argmin/{dtype}/16x64",
                k.places,
                (2,),
                ("x", "out", 8, 64),
                {"x": x, "out": np.zeros((2, 16), "int32")},
                oracle=lambda given: {"out": np.stack([given["x"].argmax(1), given["x"].argmin(1)])},
            )
        )
    powers = (2.0 ** rng.integers(-2, 3, (16, 32))).astype("float32")
    yield (
        Case(
            "product of a row/float32/16x32",
            k.total_product,
            (2,),
            ("x", "out", 8, 32),
            {"x": powers, "out": np.zeros(16, "float32")},
            oracle=lambda given: {"out": given["x"].prod(1)},
        )
    )
    holes = normal(rng, "float32", 16, 32)
    holes[rng.random(holes.shape) < 0.05] = np.nan
    yield (
        Case(
            "extremes of a row with NaN/float32/16x32",
            k.with_nan,
            (2,),
            ("x", "out", 8, 32),
            {"x": holes, "out": np.zeros((2, 16), "float32")},
            oracle=lambda given: {"out": np.stack([given["x"].max(1), np.fmin.reduce(given["x"], 1)])},
        )
    )
    x = whole(rng, "int32", 16, 50, low=-9, high=9)
    yield (
        Case(
            "own reduction/int32/16x50",
            k.own_reduction,
            (2,),
            ("x", "values", "found", 8, 64),
            {"x": x, "values": np.zeros(16, "int32"), "found": np.zeros(16, "int32")},
            ("values", "found"),
            oracle=lambda given: {
                "values": padded_rows(given["x"], 8, 64).max(1),
                "found": padded_rows(given["x"], 8, 64).argmax(1),
            },
        )
    )


def scans() -> Cases:
    m, n = 8, 32
    for dtype, shape, small in (
        ("float32", (16, 32), True),
        ("float32", (13, 27), False),
        ("int32", (16, 32), True),
        ("float64", (8, 32), False),
    ):
        name = f"sums so far/{dtype}/{shape[0]}x{shape[1]}/{'whole' if small else 'any'}"
        x, rows = ((whole if small else normal)(random_for(name), storage(dtype), *shape), cdiv(shape[0], m) * m)

        def answer(given: Inputs, rows: int = rows) -> Mapping[str, Any]:
            x = padded_rows(given["x"].astype(np.float64), m, n)
            down = x.reshape(-1, m, n).cumsum(1).reshape(rows, n)
            return {"out": np.stack([x.cumsum(1), x[:, ::-1].cumsum(1)[:, ::-1], down])}

        def bounds(given: Inputs, answer: Oracle = answer, dtype: str = dtype) -> Mapping[str, Array]:
            return {"out": n * np.finfo(dtype).eps * answer({"x": np.abs(given["x"])})["out"]}

        yield (
            Case(
                name,
                k.sums,
                (rows // m,),
                ("x", "out", m, n),
                {"x": x, "out": np.zeros((3, rows, n), x.dtype)},
                within=EXACT if small else order(bounds),
                oracle=answer,
            )
        )
    rng = random_for("scans")
    powers = (2.0 ** rng.integers(-2, 3, (16, 32))).astype("float32")

    def so_far(given: Inputs) -> Mapping[str, Any]:
        x = given["x"]
        return {"out": np.stack([x.cumprod(1), x[:, ::-1].cumprod(1)[:, ::-1]])}

    yield (
        Case(
            "products so far/float32/16x32",
            k.products,
            (2,),
            ("x", "out", 8, 32),
            {"x": powers, "out": np.zeros((2, 16, 32), "float32")},
            oracle=so_far,
        )
    )
    x = whole(rng, "int32", 16, 32, low=-99, high=99)
    yield (
        Case(
            "own scan/int32/16x32",
            k.own_scan,
            (2,),
            ("x", "out", 8, 32),
            {"x": x, "out": np.zeros((16, 32), "int32")},
            oracle=lambda given: {"out": np.maximum.accumulate(given["x"], 1)},
        )
    )


def shapes() -> Cases:
    def answer(given: Inputs) -> Mapping[str, Any]:
        x = given["x"]
        placed = x.T.copy()
        placed[16:] = x.T[:16]
        return {
            "out": np.stack(
                [
                    x.reshape(4, 4, 32).transpose(1, 2, 0).reshape(32, 16),
                    x.T,
                    np.concatenate([x[:, :16], x[:, 16:]]),
                    np.broadcast_to(x[:1, :16], (32, 16)),
                    np.broadcast_to(x[3:4].T, (32, 16)),
                    placed,
                ]
            )
        }

    for dtype in ("float32", "bfloat16", "int8", "int64"):
        x = patterns(random_for("shapes" + dtype), storage(dtype), 512).reshape(16, 32)
        yield (
            Case(
                f"shapes/{dtype}/16x32",
                k.shapes,
                (1,),
                ("x", "out"),
                {"x": x, "out": np.zeros((6, 32, 16), x.dtype)},
                oracle=answer,
            )
        )
