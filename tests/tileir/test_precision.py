"""A kernel in another precision: what it computes without its rounding (trust.md 2)."""

from __future__ import annotations

from typing import Any

import cuda.tile as ct
import numpy as np
import pytest
from tests.runtime import captured_kernels as kernels

from tilewright.languages import language_of
from tilewright.records import Configuration, Failed
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec
from tilewright.tileir.analysis.precision import in_precision
from tilewright.tileir.read.reader import read_bytecode
from tilewright.tileir.read.tree import TileModule
from tilewright.tileir.run.interpreter import run
from tilewright.tileir.run.memory import Memory
from tilewright.tileir.run.registry import Unsupported


def lowered(kernel: Any, *args: Any) -> TileModule:
    launch = Launch(kernel, (1,), args)
    found = language_of(kernel).lower(launch, {}, Configuration(()), "sm_90")
    assert not isinstance(found, Failed), found
    return read_bytecode(found.code)


def test_a_product_in_float64_is_numpys() -> None:
    """bf16 inputs and a bf16 output would lose all but 8 bits."""
    rng, shape = np.random.default_rng(0), (32, 32)
    specs = [ArraySpec(name, shape, "bfloat16") for name in "abc"]
    module = in_precision(lowered(kernels.matmul, *specs, 16, 16, 16), "f64")
    a, b, c = rng.normal(size=shape), rng.normal(size=shape), np.zeros(shape)
    memory = Memory(watch=False)
    given: list[Any] = []
    for name, array in zip("abc", (a, b, c), strict=True):
        given += [memory.allocate(name, array).address, 32, 32, 32, 1]
    done = run(module, given, (2, 2), memory)
    assert not done.findings
    np.testing.assert_allclose(c, a @ b, rtol=1e-12, atol=1e-13)


@ct.kernel
def many(x, y, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    value = ct.load(x, (0,), (TILE,)).astype(ct.float32)
    value = ct.truediv(ct.exp2(value, flush_to_zero=True), 3.0, rounding_mode=ct.RoundingMode.APPROX)
    value = ct.where(value > 0.1, value, float("-inf"))
    ct.store(y, (0,), ct.maximum(value, -1.5).astype(y.dtype))


def test_roundings_flushes_and_infinities() -> None:
    """float64 knows neither approximate division nor flushing; constants keep their values."""
    specs = [ArraySpec(name, (16,), "float16") for name in "xy"]
    module = in_precision(lowered(many, *specs, 16), "f64")
    x, y = np.linspace(-4, 4, 16), np.zeros(16)
    memory = Memory(watch=False)
    given: list[Any] = []
    for name, array in zip("xy", (x, y), strict=True):
        given += [memory.allocate(name, array).address, 16, 1]
    run(module, given, (1,), memory)
    exact = np.exp2(x) / np.float64(np.float32(3.0))
    np.testing.assert_allclose(y, np.where(exact > np.float32(0.1), exact, -1.5), rtol=1e-12)


@ct.kernel
def of_bits(x, y, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    ct.store(y, (0,), ct.bitcast(ct.load(x, (0,), (TILE,)), ct.int32))


def test_what_looks_at_bits_is_refused() -> None:
    module = lowered(of_bits, ArraySpec("x", (16,), "float32"), ArraySpec("y", (16,), "int32"), 16)
    with pytest.raises(Unsupported, match="'bitcast' depends on the bits of its numbers"):
        in_precision(module, "f64")
