"""Cases of `differential` about memory and control flow: views, indices, atomics, branches and loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cuda.tile as ct
import differential_kernels as k
import numpy as np
from differential_case import Case, Cases, Oracle, cdiv, normal, padded_rows, patterns, random_for, whole
from differential_classes import EXACT, Array, Inputs, order

from tilewright.verify.images import storage

# Memory ---------------------------------------------------------------------------------------------------


def views() -> Cases:
    for mode, dtype, shape, value in (
        ("ZERO", "bfloat16", (50, 75), 0),
        ("NEG_ZERO", "float32", (17, 33), -0.0),
        ("NAN", "float16", (31, 1), np.nan),
        ("POS_INF", "float32", (1, 61), np.inf),
        ("NEG_INF", "bfloat16", (47, 53), -np.inf),
        ("ZERO", "int32", (19, 23), 0),
    ):
        kind = storage(dtype)
        x = whole(random_for(mode + dtype), kind, *shape)
        grid = cdiv(shape[0], 16), cdiv(shape[1], 32)

        def answer(given: Inputs, grid: tuple[int, int] = grid, value: float = value) -> Mapping[str, Any]:
            x = given["x"]
            full = np.full((grid[0] * 16, grid[1] * 32), value, x.dtype)
            full[: x.shape[0], : x.shape[1]] = x
            return {"out": full}

        yield (
            Case(
                f"padding {mode.lower()}/{dtype}/{shape[0]}x{shape[1]}",
                k.padded(getattr(ct.PaddingMode, mode)),
                grid,
                ("x", "out", 16, 32),
                {"x": x, "out": np.zeros((grid[0] * 16, grid[1] * 32), kind)},
                oracle=answer,
            )
        )
    for dtype, shape, layout in (
        ("float32", (50, 75), "row-major"),
        ("bfloat16", (50, 75), "transposed"),
        ("float16", (37, 41), "sliced"),
        ("int8", (61, 67), "row-major"),
        ("float64", (1, 1), "row-major"),
        ("int16", (31, 64), "misaligned"),
    ):
        x = patterns(random_for("copied" + dtype + layout), storage(dtype), shape[0] * shape[1]).reshape(shape)
        grid = cdiv(shape[0], 16), cdiv(shape[1], 32)
        tensors = {"x": x, "out": np.zeros(shape, x.dtype)}
        yield (
            Case(
                f"copied/{dtype}/{shape[0]}x{shape[1]}/{layout}",
                k.copied,
                grid,
                ("x", "out", 16, 32),
                tensors,
                oracle=lambda given: {"out": given["x"]},
                layouts={"x": layout, "out": layout},
            )
        )
    x = patterns(random_for("turned"), "float32", 50 * 75).reshape(50, 75)
    yield (
        Case(
            "turned/float32/50x75",
            k.turned,
            (cdiv(50, 16), cdiv(75, 32)),
            ("x", "out", 16, 32),
            {"x": x, "out": np.zeros((75, 50), "float32")},
            oracle=lambda given: {"out": given["x"].T},
        )
    )
    x = whole(random_for("overlapping"), "int32", 40, 64)
    yield (
        Case(
            "overlapping view/int32/40x64",
            k.overlapping,
            (5, 2),
            ("x", "out", 16, 32),
            {"x": x, "out": np.zeros((5, 16, 64), "int32")},
            oracle=lambda given: {
                "out": np.stack([np.pad(given["x"], ((0, 16), (0, 0)))[8 * i : 8 * i + 16] for i in range(5)])
            },
        )
    )


def indexed() -> Cases:
    rng = random_for("indexed")
    for dtype in ("float32", "bfloat16", "int64"):
        x = whole(rng, storage(dtype), 40, 23)
        rows = rng.integers(-5, 45, 32).astype("int32")

        def answer(given: Inputs) -> Mapping[str, Any]:
            x, rows = given["x"], given["rows"][:, None]
            columns = np.arange(32)[None, :]
            inside = (rows >= 0) & (rows < 40) & (columns < 23)
            taken = x[np.clip(rows, 0, 39), np.clip(columns, 0, 22)]
            masked = inside & ((rows + columns) % 3 != 0)
            return {
                "out": np.stack([np.where(inside, taken, x.dtype.type(0)), np.where(masked, taken, x.dtype.type(7))])
            }

        yield (
            Case(
                f"gather/{dtype}/40x23",
                k.gathered,
                (2,),
                ("x", "rows", "out", 16, 32),
                {"x": x, "rows": rows, "out": np.zeros((2, 32, 32), x.dtype)},
                oracle=answer,
            )
        )
        places = (rng.permutation(44) - 2)[:32].astype("int32")
        x = whole(rng, storage(dtype), 32, 23)

        def put(given: Inputs) -> Mapping[str, Any]:
            out, x = given["out"].copy(), given["x"]
            for row, place in enumerate(given["rows"]):
                if 0 <= place < 40:
                    columns = np.arange(23)[np.arange(23) % 3 != 1]
                    out[place, columns] = x[row, columns]
            return {"out": out}

        yield (
            Case(
                f"scatter/{dtype}/40x23",
                k.scattered,
                (2,),
                ("x", "rows", "out", 16, 32),
                {"x": x, "rows": places, "out": np.ones((40, 23), x.dtype)},
                oracle=put,
            )
        )
    x, rows = whole(rng, "float32", 40, 64), rng.integers(0, 40, 32).astype("int32")
    yield (
        Case(
            "advanced indexing/float32/40x64",
            k.advanced,
            (2,),
            ("x", "rows", "out", 16, 64),
            {"x": x, "rows": rows, "out": np.zeros((32, 64), "float32")},
            oracle=lambda given: {"out": given["x"][given["rows"]]},
        )
    )


def atomics() -> Cases:
    rng = random_for("atomics")
    yield (
        Case(
            "atomic histogram/int32/1024",
            k.histogram,
            (4,),
            ("x", "out", 256),
            {"x": rng.integers(0, 50, 1024).astype("int32"), "out": np.zeros(50, "int32")},
            oracle=lambda given: {"out": np.bincount(given["x"], minlength=50)},
        )
    )
    for dtype in ("int32", "uint32", "int64"):
        start = patterns(rng, dtype, 6 * 16).reshape(6, 16)

        def answer(given: Inputs) -> Mapping[str, Any]:
            out = given["out"].copy()
            for row, ufunc in enumerate(
                (np.add, np.maximum, np.minimum, np.bitwise_and, np.bitwise_or, np.bitwise_xor)
            ):
                ufunc.at(out[row], given["places"], given["x"])
            return {"out": out}

        yield (
            Case(
                f"atomics/{dtype}/512",
                k.contended,
                (4,),
                ("x", "places", "out", 128),
                {"x": patterns(rng, dtype, 512), "places": rng.integers(0, 16, 512).astype("int32"), "out": start},
                oracle=answer,
            )
        )
    for dtype, small in (("float32", True), ("float32", False), ("float64", False)):
        x, places = (whole if small else normal)(rng, dtype, 512), rng.integers(0, 16, 512).astype("int32")

        def total(given: Inputs) -> Mapping[str, Any]:
            return {"out": np.bincount(given["places"], given["x"].astype(np.float64), 16)}

        def bounds(given: Inputs, total: Oracle = total, dtype: str = dtype) -> Mapping[str, Array]:
            return {"out": 512 * np.finfo(dtype).eps * total({**given, "x": np.abs(given["x"])})["out"]}

        yield (
            Case(
                f"atomic sum/{dtype}/512/{'whole' if small else 'any'}",
                k.float_sum,
                (4,),
                ("x", "places", "out", 128),
                {"x": x, "places": places, "out": np.zeros(16, dtype)},
                within=EXACT if small else order(bounds),
                oracle=total,
            )
        )
    for dtype in ("int32", "uint64"):
        x, memory = patterns(rng, dtype, 200), patterns(rng, dtype, 200)
        yield (
            Case(
                f"exchanged/{dtype}/200",
                k.exchanged,
                (2,),
                ("x", "memory", "old", 128),
                {"x": x, "memory": memory, "old": np.zeros((4, 200), dtype)},
                ("memory", "old"),
                oracle=lambda given: {
                    "memory": given["x"] * 2 + 1,
                    "old": np.stack([given["memory"], given["x"], given["x"] + 1, given["x"] + 1]),
                },
            )
        )
    yield (
        Case(
            "atomic sum through a view/int32/50x60",
            k.view_sum,
            (4, 2),
            ("x", "out", 16, 32),
            {"x": whole(rng, "int32", 50, 60), "out": np.zeros((16, 60), "int32")},
            oracle=lambda given: {"out": padded_rows(given["x"], 16, 60).reshape(4, 16, 60).sum(0)},
        )
    )
    yield (
        Case(
            "tickets/int32/100",
            k.counter,
            (100,),
            ("out", "tickets"),
            {"out": np.zeros(1, "int32"), "tickets": np.zeros(100, "int32")},
            ("out", "tickets"),
            oracle=lambda given: {"out": np.array([100]), "tickets": np.ones(100)},
        )
    )


def steps_to_one(value: int) -> int:
    steps = 0
    while value != 1 and steps < 60:
        value = value // 2 if value % 2 == 0 else 3 * value + 1
        steps += 1
    return steps


def control() -> Cases:
    rng = random_for("control")
    x = rng.integers(1, 200, 97).astype("int32")
    yield (
        Case(
            "collatz/int32/97",
            k.collatz,
            (97,),
            ("x", "out"),
            {"x": x, "out": np.zeros(97, "int32")},
            oracle=lambda given: {"out": [steps_to_one(int(one)) for one in given["x"]]},
        )
    )
    for dtype in ("int32", "int64"):
        a, b = (rng.integers(0, 10**6, 64).astype(dtype) for _ in "ab")
        yield (
            Case(
                f"greatest common divisor/{dtype}/64",
                k.divisor,
                (64,),
                ("x", "y", "out"),
                {"x": a, "y": b, "out": np.zeros(64, dtype)},
                oracle=lambda given: {"out": np.gcd(given["x"], given["y"])},
            )
        )
    x, lengths = whole(rng, "int32", 23, 100), rng.integers(0, 101, 23).astype("int32")
    lengths[:3] = 0, 1, 100

    def ragged(given: Inputs) -> Mapping[str, Any]:
        place = np.arange(100)
        kept = (place[None, :] < given["lengths"][:, None]) & (place // 16 % 2 == 0)[None, :]
        return {"out": np.where(given["lengths"] == 0, -1, (given["x"] * kept).sum(1))}

    yield (
        Case(
            "ragged sums/int32/23x100",
            k.ragged_sums,
            (23,),
            ("x", "lengths", "out", 16),
            {"x": x, "lengths": lengths, "out": np.zeros(23, "int32")},
            oracle=ragged,
        )
    )
    x = whole(rng, "int32", 32, 16)
    x[5] = 0

    def ways(given: Inputs) -> Mapping[str, Any]:
        rows = given["x"].reshape(32, 16)
        total = rows.sum(1, keepdims=True)
        positive = np.where(total % 2 == 0, rows * 2, rows - 1)
        return {"out": np.where(total > 0, positive, np.where(total == 0, 0, rows + 12)).reshape(-1)}

    yield (
        Case(
            "branches/int32/512",
            k.branches,
            (32,),
            ("x", "out", 16),
            {"x": x.reshape(-1), "out": np.zeros(512, "int32")},
            oracle=ways,
        )
    )
