"""Triton kernels for the tests of capture."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import triton
import triton.language as tl
from triton.runtime.autotuner import Autotuner


def trials(call: Any, quantiles: Any) -> list[float]:
    """In place of Triton's timing, which needs a GPU: each trial launches twice and takes equally long."""
    for _ in range(2):
        with suppress(RuntimeError):  # no driver here
            call()
    return [1.0, 1.0, 1.0]


@triton.jit
def added(x, y, z, n, BLOCK: tl.constexpr = 64):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.autotune(
    configs=[triton.Config({"BLOCK": block}, num_warps=warps) for block in (64, 128) for warps in (4, 8)],
    key=["n"],
    restore_value=["y"],
    do_bench=trials,
)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def scaled(x, y, n, factor, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(y + at, tl.load(x + at) * factor)
    else:
        tl.store(y + at, tl.load(x + at, mask=at < n) * factor, mask=at < n)


@triton.jit
def matmul(
    a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    pid, num_m, num_n = tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first = pid // (GROUP * num_n) * GROUP
    size = min(num_m - first, GROUP)
    row, column = first + pid % (GROUP * num_n) % size, pid % (GROUP * num_n) // size
    rows = (row * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    columns = (column * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    inner = tl.arange(0, BLOCK_K)
    left = a + rows[:, None] * stride_am + inner[None, :] * stride_ak
    right = b + inner[:, None] * stride_bk + columns[None, :] * stride_bn
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        x = tl.load(left, mask=inner[None, :] < K - k * BLOCK_K, other=0.0)
        y = tl.load(right, mask=inner[:, None] < K - k * BLOCK_K, other=0.0)
        total = tl.dot(x, y, total)
        left += BLOCK_K * stride_ak
        right += BLOCK_K * stride_bk
    rows, columns = row * BLOCK_M + tl.arange(0, BLOCK_M), column * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c + stride_cm * rows[:, None] + stride_cn * columns[None, :], total.to(c.dtype.element_ty), mask=mask)


@triton.jit
def normed(x, total, stride, n, BLOCK: tl.constexpr):
    """Reads and writes ``x``, and adds to ``total``."""
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + at, mask=at < n, other=0.0)
    tl.store(x + row * stride + at, values / tl.sqrt(tl.sum(values * values, 0) / n + 1e-5), mask=at < n)
    tl.atomic_add(total, tl.sum(values, 0))


@triton.autotune(configs=[triton.Config({"BLOCK": block}) for block in (128, 32)], key=["n"], do_bench=trials)
@triton.jit
def summed(x, y, stride, n, BLOCK: tl.constexpr):
    """Right only if a row fits into one block."""
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    tl.store(y + row, tl.sum(tl.load(x + row * stride + at, mask=at < n, other=0.0), 0))


class CachedAutotuner(Autotuner):
    """A library's own, as fla has one."""


def cached(function: Any) -> CachedAutotuner:
    return CachedAutotuner(function, function.arg_names, [triton.Config({"BLOCK": 128})], ["n"], None, None)


@cached
@triton.jit
def doubled(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.jit
def moved(source, target, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Takes descriptors that the host made."""
    place = [tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N]
    target.store(place, source.load(place) * 2)


@triton.jit
def of_groups(x, starts, groups, ends, y, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """A tile of rows for each block, as in a product of groups: its first row, and its group, whose end masks it."""
    tile = tl.program_id(0)
    rows = tl.load(starts + tile) + tl.arange(0, ROWS)
    mask = (rows < tl.load(ends + tl.load(groups + tile)))[:, None]
    places = rows[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(y + places, tl.load(x + places, mask=mask) * 2, mask=mask)


@triton.jit
def placed(starts, y, GROUPS: tl.constexpr, ROWS: tl.constexpr):
    """Has no input but integers, which are valid only together."""
    group, at = tl.program_id(0), tl.arange(0, ROWS)
    first, end = tl.load(starts + group), tl.load(starts + group + 1)
    tl.store(y + first + at, at + 1, mask=first + at < end)


@triton.jit
def counted(x, counts, n, BLOCK: tl.constexpr, KINDS: tl.constexpr):
    """Has no input but integers, any of which are valid."""
    kinds = tl.arange(0, KINDS)
    values = tl.load(x + tl.arange(0, BLOCK), mask=tl.arange(0, BLOCK) < n, other=-1)
    tl.store(counts + kinds, tl.sum((values[:, None] == kinds[None, :]).to(tl.int32), 0))


@triton.jit
def centred(y, x, stride_row, stride_group, n, BLOCK: tl.constexpr):
    """A block for each group of each row. A group has about as many elements as a row has blocks of BLOCK."""
    place, at = tl.program_id(0) * stride_row + tl.program_id(1) * stride_group, tl.arange(0, BLOCK)
    values = tl.load(x + place + at, mask=at < n, other=0.0)
    tl.store(y + place + at, values - tl.sum(values, 0) / n, mask=at < n)


@triton.jit
def losses(x, labels, loss, stride, n, BLOCK: tl.constexpr):
    """Leaves the loss of a row without a label as it was."""
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    label = tl.load(labels + row)
    if label < 0:
        return
    values = tl.load(x + row * stride + at, mask=at < n, other=-float("inf"))
    tl.store(loss + row, tl.log(tl.sum(tl.exp(values), 0)) - tl.load(x + row * stride + label))


@triton.jit
def places(y, n, BLOCK: tl.constexpr):
    """Reads nothing."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, at, mask=at < n)


@triton.jit
def pairs(xs, y, n, BLOCK: tl.constexpr):
    """Takes a tuple."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(xs[0] + at, mask=at < n) + tl.load(xs[1] + at, mask=at < n), mask=at < n)
