"""Kernels under `triton.autotune`, and what each does to its arguments, in torch on the CPU.

The names of parameters in annotations are read by Triton, so they must not become texts.
"""

from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (64, 128) for warps in (2, 4)]


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


@triton.jit
def doubled(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.jit
def accumulated(x, total, n, BLOCK: tl.constexpr):
    """Doubles ``x`` in place, and adds its old elements to ``total``."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n, other=0.0)
    tl.atomic_add(total, tl.sum(values, 0))
    tl.store(x + at, values * 2, mask=at < n)


@triton.jit
def shifted(x, y, n, EVEN: tl.constexpr, OFFSET: tl.constexpr, BLOCK: tl.constexpr):
    """``EVEN`` and ``OFFSET`` come from heuristics."""
    tl.static_assert(BLOCK != 32)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(y + at, tl.load(x + at) + OFFSET)
    else:
        tl.store(y + at, tl.load(x + at, mask=at < n) + OFFSET, mask=at < n)


@triton.jit
def moved(source, target, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    place = [tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N]
    target.store(place, source.load(place) * 2)


def does_double(given: dict[str, Any]) -> None:
    given["y"].copy_(given["x"] * 2)


def does_accumulate(given: dict[str, Any]) -> None:
    given["total"].add_(given["x"].sum())
    given["x"].mul_(2)


def does_shift(given: dict[str, Any]) -> None:
    assert given["EVEN"] == (given["n"] % given["BLOCK"] == 0)
    given["y"].copy_(given["x"] + given["OFFSET"])


def does_move(given: dict[str, Any]) -> None:
    for one in (given["source"], given["target"]):
        assert isinstance(one, TensorDescriptor) and one.block_shape == [given["BLOCK_M"], given["BLOCK_N"]]
    given["target"].base.copy_(given["source"].base * 2)


DOES = {"doubled": does_double, "accumulated": does_accumulate, "shifted": does_shift, "moved": does_move}


def set_blocks(given: dict[str, Any]) -> None:
    """A ``pre_hook``, as in Triton's tutorial with descriptors."""
    for name in ("source", "target"):
        given[name].block_shape = [given["BLOCK_M"], given["BLOCK_N"]]


def autotuned(kernel: Any, configs: Any = None, key: Any = ("n",), **more: Any) -> Any:
    """A new autotuner, whose cache is empty."""
    return triton.autotune(configs=configs or CONFIGS, key=list(key), **more)(kernel)
