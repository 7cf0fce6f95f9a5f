"""The cases of `differential`: kernel × shape × dtype, inputs, the class of comparison, and NumPy's answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import differential_elementwise as e
import differential_kernels as k
import differential_memory as m
import differential_tiles as t
import numpy as np
from differential_case import FLOAT_SUM, Case, Cases, cdiv, normal, product_bound, random_for
from differential_classes import Array, Inputs, order

from tilewright.hardware.architectures import default_board
from tilewright.task.loading import load_task
from tilewright.task.tensors import ArraySpec
from tilewright.verify.images import storage
from tilewright.verify.tolerance import draw

# Whole kernels --------------------------------------------------------------------------------------------

SINGLE, HALF_PRODUCT = 2.0**-23, 2.0**-7
"""Unit in the last place of 1 in float32 and in bf16."""
EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str, dims: Mapping[str, Any], bound: Callable[[Inputs, Any], Any], **knobs: int) -> Case:
    """A case of one of the examples. ``bound``: inputs and the reference in float64 → absolute bound."""
    task = load_task(str(EXAMPLES / f"{name}.py"))
    arrays = task.arrays(dims)
    launch = task.launched(task.space.shipped.replace(**knobs), dims, arrays, default_board("sm_90"))
    title = f"{name}/" + ",".join(f"{key}={value}" for key, value in dims.items())
    rng, (out,) = random_for(title), task.outputs
    tensors = {
        one: draw(task.inputs[one].distribution, spec.shape, rng).astype(storage(spec.dtype))
        if one in task.inputs
        else np.zeros(spec.shape, storage(spec.dtype))
        for one, spec in arrays.items()
    }

    def answer(given: Inputs) -> Mapping[str, Any]:
        wide = {one: given[one].astype(np.float64) for one in task.inputs}
        return {out: task.reference(**wide, **{key: dims[key] for key in ("causal",) if key in dims})}

    arguments = tuple(one.name if isinstance(one, ArraySpec) else one for one in launch.args)
    within = order(lambda given: {out: bound(given, answer(given)[out])})
    return Case(title, launch.kernel, launch.grid, arguments, tensors, (out,), within, answer)


def matmul_bound(given: Inputs, _: Any) -> Any:
    return product_bound(FLOAT_SUM).bounds(given)["c"]  # type: ignore[misc]


def norm_bound(given: Inputs, reference: Any) -> Any:
    return (given["x"].shape[1] + 8) * SINGLE * np.abs(reference)


def rope_bound(given: Inputs, _: Any) -> Any:
    """Two products and a sum in float32, fused or not."""
    first, second = np.split(np.abs(given["x"].astype(np.float64)), 2, axis=-1)
    cosine, sine = np.abs(given["cosine"]), np.abs(given["sine"])
    return 2 * SINGLE * np.concatenate((first * cosine + second * sine, second * cosine + first * sine), -1)


def swiglu_bound(given: Inputs, reference: Any) -> Any:
    """exp2 of an argument rounded twice (|z|·log2 e units), the approximate quotient and three products."""
    return (np.abs(given["gate"].astype(np.float64)) * 3 + 12) * SINGLE * np.abs(reference)


def attention_bound(causal: bool) -> Callable[[Inputs, Any], Any]:
    """Two units of bf16 of each weight, which is rounded to it before the second product: Σ p·|v| / Σ p."""

    def bound(given: Inputs, _: Any) -> Any:
        q, k_, v = (given[one].astype(np.float64) for one in "qkv")
        score = q @ k_.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        score = np.where(np.tri(*score.shape[-2:], dtype=bool) | (not causal), score, -np.inf)
        part = np.exp(score - score.max(-1, keepdims=True))
        return 2 * HALF_PRODUCT * (part @ np.abs(v)) / part.sum(-1, keepdims=True)

    return bound


def softmax_of(given: Inputs) -> Mapping[str, Any]:
    x = given["x"].astype(np.float64)
    part = np.exp(x - x.max(1, keepdims=True))
    return {"out": part / part.sum(1, keepdims=True)}


def layer_norm_parts(given: Inputs) -> tuple[Any, ...]:
    x, scale, shift = (given[one].astype(np.float64) for one in ("x", "scale", "shift"))
    off = x - x.mean(1, keepdims=True)
    return off / np.sqrt((off * off).mean(1, keepdims=True) + 1e-5), x, scale, shift


def layer_norm_bound(given: Inputs) -> Mapping[str, Array]:
    """The mean is off by N·u·Σ|x| / N, the spread relatively by as many units as it has terms."""
    normed, x, scale, shift = layer_norm_parts(given)
    n = x.shape[1]
    mean = n * SINGLE * np.abs(x).mean(1, keepdims=True) / x.std(1, keepdims=True)
    return {"out": np.abs(scale) * (2 * mean + (n + 8) * SINGLE * np.abs(normed)) + SINGLE * np.abs(shift)}


def layer_norm_of(given: Inputs) -> Mapping[str, Any]:
    normed, _, scale, shift = layer_norm_parts(given)
    return {"out": normed * scale + shift}


def kernels() -> Cases:
    yield example("matmul", {"M": 256, "N": 192, "K": 128}, matmul_bound, TILE_M=64, TILE_N=64, TILE_K=32)
    yield example("matmul", {"M": 200, "N": 137, "K": 75}, matmul_bound, TILE_M=64, TILE_N=64, TILE_K=32)
    for rows, columns in ((64, 256), (33, 300), (1, 1), (7, 1021)):
        yield example("rms_norm", {"M": rows, "N": columns}, norm_bound)
    yield example("rope", {"B": 2, "H": 3, "S": 64, "D": 64}, rope_bound)
    yield example("rope", {"B": 1, "H": 2, "S": 37, "D": 32}, rope_bound)
    yield example("swiglu", {"M": 8, "N": 1024}, swiglu_bound)
    yield example("swiglu", {"M": 5, "N": 1531}, swiglu_bound)
    for causal, length, head in ((True, 128, 64), (True, 100, 64), (False, 128, 64), (False, 100, 32)):
        yield example(
            "fmha",
            {"B": 1, "H": 2, "S": length, "D": head, "causal": causal},
            attention_bound(causal),
            TILE_M=64,
            TILE_N=32,
        )
    for dtype, shape in (("float32", (16, 128)), ("bfloat16", (13, 100)), ("float16", (3, 61))):
        kind, rng = storage(dtype), random_for("norms" + dtype)
        x, grid = normal(rng, kind, *shape), (cdiv(shape[0], 4),)
        tensors = {"x": x, "out": np.zeros(shape, kind)}
        yield (
            Case(
                f"softmax/{dtype}/{shape[0]}x{shape[1]}",
                k.softmax,
                grid,
                ("x", "out", 4, 128, shape[1]),
                tensors,
                oracle=softmax_of,
                within=order(lambda given: {"out": (given["x"].shape[1] + 8) * SINGLE * softmax_of(given)["out"]}),
            )
        )
        parameters = {"scale": normal(rng, kind, shape[1]), "shift": normal(rng, kind, shape[1])}
        yield (
            Case(
                f"layer norm/{dtype}/{shape[0]}x{shape[1]}",
                k.layer_norm,
                grid,
                ("x", "scale", "shift", "out", 4, 128, shape[1]),
                {**tensors, **parameters},
                oracle=layer_norm_of,
                within=order(layer_norm_bound),
            )
        )


GROUPS = (
    e.integers, e.unsigned_division, e.comparisons, e.floats, e.conversions, e.functions,
    t.products, t.reductions, t.scans, t.shapes, m.views, m.indexed, m.atomics, m.control, kernels,
)  # fmt: skip
CASES: tuple[Case, ...] = tuple(case for group in GROUPS for case in group())
