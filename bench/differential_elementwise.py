"""Cases of `differential`, element by element: integers, floats, conversions, functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import differential_kernels as k
import numpy as np
from differential_case import Case, Cases, Oracle, cdiv, mixed, normal, patterns, random_for, to_tf32
from differential_classes import EXACT, ROUNDING, Array, Inputs, Within, order, ulps

from tilewright.verify.images import storage


def elementwise(
    name: str,
    function: Any,
    inputs: Mapping[str, Array],
    out: Any,
    rows: int,
    within: Within,
    oracle: Callable[..., Any] | None = None,
    tile: int = 256,
) -> Case:
    """A case whose ``out`` has a row for each result of ``function``."""
    size = len(next(iter(inputs.values())))
    answer: Oracle | None = None
    if oracle is not None:

        def answer(given: Inputs) -> Mapping[str, Any]:
            with np.errstate(all="ignore"):
                results = oracle(*(given[one] for one in inputs))
                return {"out": np.stack([np.asarray(one).astype(out) for one in results])}

    return Case(
        name,
        k.elementwise(function, len(inputs)),
        (cdiv(size, tile),),
        (*inputs, "out", tile),
        {**inputs, "out": np.zeros((rows, size), out)},
        within=within,
        oracle=answer,
    )


# Element-wise: integers -----------------------------------------------------------------------------------


def arithmetic_of_integers(x: Array, y: Array) -> tuple[Array, ...]:
    return x + y, x - y, x * y, x & y, x | y, x ^ y, ~x, -x, np.minimum(x, y), np.maximum(x, y)


def integers() -> Cases:
    for dtype, size in (
        ("int8", 256),
        ("int16", 1000),
        ("int32", 4096),
        ("int64", 512),
        ("uint8", 1),
        ("uint32", 1000),
        ("uint64", 997),
    ):
        rng = random_for("integers" + dtype)
        x, y = patterns(rng, dtype, size), patterns(rng, dtype, size)
        yield elementwise(
            f"integers/{dtype}/{size}", k.integer_arithmetic, {"x": x, "y": y}, dtype, 10, EXACT, arithmetic_of_integers
        )
        if dtype in ("int8", "int32", "int64"):
            below = np.where(y == 0, 3, y).astype(dtype)
            below = np.where((below == -1) & (x == np.iinfo(dtype).min), 5, below) if dtype[0] == "i" else below
            below = below.astype(dtype)
            shrunk = (x // 4).astype(dtype)  # so that the sum in a rounding-up division stays in range
            yield elementwise(
                f"integer division/{dtype}/{size}",
                k.integer_division,
                {"x": shrunk, "y": below},
                dtype,
                3,
                EXACT,
                lambda a, b: (a // b, a % b, -(-a.astype(object) // b.astype(object))),
            )
        if dtype in ("int8", "int32", "int64", "uint32"):
            amount = (y % np.array(8 * np.dtype(dtype).itemsize, dtype)).astype(dtype)
            yield elementwise(
                f"shifts/{dtype}/{size}",
                k.shifts,
                {"x": x, "y": amount},
                dtype,
                2,
                EXACT,
                lambda a, b: (a << b, a >> b),
            )


def unsigned_division() -> Cases:
    rng = random_for("unsigned division")
    for dtype in ("uint32", "uint8"):
        x, y = patterns(rng, dtype, 1024), patterns(rng, dtype, 1024)
        yield elementwise(
            f"unsigned division/{dtype}/1024", k.unsigned_division, {"x": x, "y": np.maximum(y, 1)}, dtype, 2, EXACT,
            lambda a, b: (a % b, -(-a.astype(object) // b.astype(object))),
        )  # fmt: skip


def orderings(x: Array, y: Array) -> tuple[Array, ...]:
    return x < y, x <= y, x > y, x >= y, x == y, x != y


def comparisons() -> Cases:
    for dtype, size in (("int32", 1000), ("uint32", 64), ("float32", 4096), ("float64", 997), ("bfloat16", 1000)):
        kind, rng = storage(dtype), random_for("comparisons" + dtype)
        x, y = mixed(rng, kind, size), mixed(rng, kind, size)
        y[::5] = x[::5]
        yield elementwise(f"comparisons/{dtype}/{size}", k.comparisons, {"x": x, "y": y}, "int8", 6, EXACT, orderings)
        if dtype in ("int32", "float32"):
            zero = kind.type(0)
            yield elementwise(
                f"select/{dtype}/{size}",
                k.selection,
                {"x": x, "y": y},
                kind,
                3,
                EXACT,
                lambda a, b, zero=zero: (
                    np.where(a < b, a, b),
                    np.where(a == b, b, a),
                    np.where((a > 0) & (b > 0), a, zero),
                ),
            )


# Element-wise: floats -------------------------------------------------------------------------------------


def number_first(function: Any) -> Callable[[Array, Array], Array]:
    """NumPy's fmin and fmax with −0 < +0 and any NaN giving way."""
    lower = function is np.minimum

    def of(x: Array, y: Array) -> Array:
        first, second = x.astype(np.float64), y.astype(np.float64)
        zeros = (first == 0) & (second == 0)
        chosen = np.where(zeros, np.signbit(first) == lower, first < second if lower else first > second)
        chosen = np.where(np.isnan(first), False, np.where(np.isnan(second), True, chosen))
        return np.where(chosen, x, y)

    return of


def extremes_of(x: Array, y: Array) -> tuple[Array, ...]:
    least, most = number_first(np.minimum)(x, y), number_first(np.maximum)(x, y)
    spoilt = np.isnan(x.astype(np.float64)) | np.isnan(y.astype(np.float64))
    nan = x.dtype.type(np.nan)
    return least, most, np.where(spoilt, nan, least), np.where(spoilt, nan, most)


def signs_of(x: Array, y: Array) -> tuple[Array, ...]:
    single = x.astype(np.float64)
    nan = np.isnan(single) | np.isnan(y.astype(np.float64))
    return -x, np.abs(x), np.floor(single), np.ceil(single), nan


def rounded_once(x: Array, y: Array) -> tuple[Array, ...]:
    return x + y, x - y, x * y


def quotients(x: Array, y: Array) -> tuple[Array, ...]:
    return x / y, np.sqrt(np.abs(x))


def floats() -> Cases:
    for dtype, size in (("float32", 4096), ("float64", 1000), ("float16", 997), ("bfloat16", 1000)):
        kind, rng = storage(dtype), random_for("floats" + dtype)
        pair = {"x": mixed(rng, kind, size), "y": mixed(rng, kind, size)[::-1].copy()}
        native = rounded_once if dtype != "bfloat16" else None
        yield elementwise(f"arithmetic/{dtype}/{size}", k.arithmetic, pair, kind, 3, ROUNDING, native)
        yield elementwise(
            f"division/{dtype}/{size}",
            k.division,
            pair,
            kind,
            2,
            ROUNDING,
            quotients if dtype in ("float32", "float64") else None,
        )
        yield elementwise(f"signs/{dtype}/{size}", k.float_signs, pair, kind, 5, EXACT, signs_of)
        yield elementwise(f"extremes/{dtype}/{size}", k.extremes, pair, kind, 4, EXACT, extremes_of)
    for dtype in ("float32", "float64"):
        rng = random_for("directed" + dtype)
        pair = {"x": mixed(rng, dtype, 1000), "y": mixed(rng, dtype, 1000)[::-1].copy()}
        yield elementwise(f"directed/{dtype}/1000", k.directed, pair, dtype, 7, ROUNDING)
        yield elementwise(f"directed division/{dtype}/1000", k.directed_division, pair, dtype, 6, ROUNDING)
    rng = random_for("flushing")
    tiny = {name: (rng.normal(size=1024) * 2.0 ** rng.integers(-132, -120, 1024)).astype("float32") for name in "xy"}
    yield elementwise("flush to zero/float32/1024", k.flushing, tiny, "float32", 5, ROUNDING)
    yield elementwise("flush to zero, division/float32/1024", k.flushing_division, tiny, "float32", 2, ROUNDING)
    near = {"x": normal(rng, "float32", 1000), "y": rng.uniform(0.5, 40, 1000).astype("float32")}
    yield elementwise("remainders/float32/1000", k.remainders, near, "float32", 2, ROUNDING)
    yield elementwise(
        "multiply, then add/float32/1000",
        k.fused,
        near,
        "float32",
        1,
        order(lambda given: {"out": 2.0**-24 * np.abs(given["x"].astype(float) * given["y"])[None]}),
    )


def as_dtype(name: str) -> Callable[[Array], tuple[Array]]:
    """NumPy's conversion to the dtype."""
    return lambda x: (x.astype(storage(name)),)


def conversions() -> Cases:
    every = {"float16": 1 << 16, "bfloat16": 1 << 16, "float8_e4m3fn": 256, "float8_e5m2": 256}
    pairs = [
        (source, target)
        for source in ("float32", "float64", "float16", "bfloat16")
        for target in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float32", "float64")
        if source != target
    ]
    pairs += [
        ("float8_e4m3fn", "float32"),
        ("float8_e5m2", "float32"),
        ("float8_e4m3fn", "float16"),
        ("float8_e5m2", "bfloat16"),
        ("float8_e4m3fn", "float8_e5m2"),
    ]
    for source, target in pairs:
        kind, rng = storage(source), random_for(source + target)
        size = every.get(source, 4000)
        x = mixed(rng, kind, size)
        if source in every:
            x = np.arange(size, dtype=f"u{kind.itemsize}").view(kind)
        elif "8" in target or target == "float16":
            x[1::2] = (rng.normal(size=size) * 2.0 ** rng.integers(-26, 10, size)).astype(kind)[1::2]
        known = target in ("float16", "float32", "float64") or (target == "bfloat16" and source != "float64")
        yield elementwise(
            f"{source} to {target}/{size}",
            k.unchanged,
            {"x": x},
            storage(target),
            1,
            ROUNDING,
            as_dtype(target) if known else None,
            tile=1024,
        )
    rng = random_for("conversions")
    for source, target in (
        ("int32", "float32"),
        ("int64", "float64"),
        ("int64", "float32"),
        ("uint32", "float32"),
        ("uint64", "float32"),
        ("int16", "float16"),
        ("int8", "bfloat16"),
    ):
        yield elementwise(
            f"{source} to {target}/1000",
            k.unchanged,
            {"x": patterns(rng, source, 1000)},
            storage(target),
            1,
            ROUNDING,
            as_dtype(target) if target != "bfloat16" else None,
        )
    for source, target in (
        ("float32", "int32"),
        ("float32", "uint32"),
        ("float64", "int64"),
        ("float16", "int16"),
        ("bfloat16", "int8"),
    ):
        highest = min(np.iinfo(target).max, 60000) // 2
        x = (rng.uniform(0 if target[0] == "u" else -1, 1, 1000) * highest).astype(storage(source))
        yield elementwise(
            f"{source} to {target}/1000",
            k.unchanged,
            {"x": x},
            target,
            1,
            EXACT,
            lambda x: (np.trunc(x.astype(np.float64)),),
        )
    for source, target in (
        ("int64", "int8"),
        ("int8", "int64"),
        ("uint8", "int32"),
        ("int32", "uint16"),
        ("int16", "uint64"),
    ):
        yield elementwise(
            f"{source} to {target}/1000",
            k.unchanged,
            {"x": patterns(rng, source, 1000)},
            target,
            1,
            EXACT,
            as_dtype(target),
        )
    x = mixed(rng, "float32", 4000)
    yield elementwise(
        "through tf32/float32/4000", k.through_tf32, {"x": x}, "float32", 1, ROUNDING, lambda x: (to_tf32(x),)
    )
    yield elementwise("float32 to float16 towards zero/4000", k.towards_zero, {"x": x}, "float32", 1, ROUNDING)
    yield elementwise(
        "bitcast/float32/997",
        k.bits,
        {"x": x[:997]},
        "int32",
        1,
        EXACT,
        lambda x: (np.where(np.isnan(x), x.view("int32"), x.view("int32")),),
    )
    bytes_ = patterns(rng, "int32", 512)
    yield (
        Case(
            "pack and unpack/int32/512",
            k.repacked,
            (2,),
            ("x", "out", 256),
            {"x": bytes_, "out": np.zeros(1024, "int16")},
            oracle=lambda given: {"out": given["x"].view("int16")},
        )
    )


def neighbours(*units: float) -> Within:
    """The functions are computed in f32, where they may be off by ``units``, and then rounded."""
    return ulps(*(0 for _ in units))


def functions() -> Cases:
    """Units: CUDA Programming Guide, accuracy of the standard functions in single and double precision; a
    result in f16 or bf16 is rounded once more, which may take it to the neighbour."""
    for dtype, size in (("float32", 4096), ("float64", 1000), ("float16", 997), ("bfloat16", 1000)):
        kind, rng = storage(dtype), random_for("functions" + dtype)
        narrow, double = dtype in ("float16", "bfloat16"), dtype == "float64"
        n = neighbours if narrow else ulps
        x = (rng.normal(size=size) * 3).astype(kind)
        yield elementwise(
            f"exponentials/{dtype}/{size}",
            k.exponentials,
            {"x": x},
            kind,
            5,
            n(1, 1, 2, 1, 1) if double else n(2, 2, 3, 2, 2),
            None if narrow else lambda x: (np.exp(x), np.exp2(x), np.sinh(x), np.cosh(x), np.tanh(x)),
        )
        yield elementwise(
            f"circular/{dtype}/{size}",
            k.circular,
            {"x": x * kind.type(4)},
            kind,
            3,
            n(2, 2, 2) if double else n(2, 2, 4),
            (lambda x: (np.sin(x), np.cos(x), np.tan(x))) if double else None,
        )
        above = rng.gamma(1.0, 3.0, size).astype(kind) + kind.type(2.0**-10)
        yield elementwise(
            f"logarithms/{dtype}/{size}",
            k.logarithms,
            {"x": above},
            kind,
            4,
            n(1, 1, 1, 0) if double else n(1, 1, 2, 0),
            None if narrow else lambda x: (np.log(x), np.log2(x), 1 / np.sqrt(x), np.sqrt(x)),
        )
        exponent = rng.uniform(-2, 2, size).astype(kind)
        yield elementwise(
            f"powers/{dtype}/{size}",
            k.powers,
            {"x": above, "y": exponent},
            kind,
            2,
            n(2, 2) if double else n(4, 3),
            (lambda x, y: (x**y, np.arctan2(y, x))) if double else None,
        )
    rng = random_for("approximate")
    pair = {"x": normal(rng, "float32", 1000), "y": rng.uniform(0.1, 40, 1000).astype("float32")}
    yield elementwise("approximate/float32/1000", k.approximate, pair, "float32", 3, ulps(2, 2, 3))
    x = (rng.normal(size=1000) * 60).astype("float32")
    yield elementwise(
        "approximate, flushing/float32/1000", k.approximate_flushing, {"x": x}, "float32", 2, ulps(2, 2, flushing=True)
    )
    tanh = order(lambda given: {"out": 2.0**-10.9 * np.abs(np.tanh(given["x"].astype(float)))[None]})
    yield elementwise(
        "approximate tanh/float32/1000",
        k.approximate_tanh,
        {"x": pair["x"]},
        "float32",
        1,
        tanh,
        lambda x: (np.tanh(x),),
    )
