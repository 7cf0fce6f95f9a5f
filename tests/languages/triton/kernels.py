"""Six kernels for the tests of Triton: tiles through pointers and descriptors, reductions, atomics, loops."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _shifted(row):
    return row - tl.max(row, 0)


@triton.jit
def softmax(out, x, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + column, mask=column < columns, other=-float("inf"))
    powers = tl.exp(_shifted(values.to(tl.float32)))
    tl.store(out + row * stride + column, powers / tl.sum(powers, 0), mask=column < columns)


@triton.jit
def matmul(a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        left = tl.load(a + rows[:, None] * K + (start + inner)[None, :], mask=(start + inner)[None, :] < K, other=0.0)
        right = tl.load(
            b + (start + inner)[:, None] * N + columns[None, :], mask=(start + inner)[:, None] < K, other=0.0
        )
        total = tl.dot(left, right, total)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def descriptor_matmul(a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    left = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BLOCK_M, BLOCK_K])
    right = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BLOCK_K, BLOCK_N])
    result = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        total = tl.dot(left.load([row, start]), right.load([start, column]), total)
    result.store([row, column], total.to(c.dtype.element_ty))


@triton.jit
def host_descriptor_matmul(left, right, result, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        total = tl.dot(left.load([row, start]), right.load([start, column]), total)
    result.store([row, column], total.to(tl.bfloat16))


@triton.jit
def scaled(out, x, factor, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < count) * factor, mask=at < count)


@triton.jit
def histogram(counts, x, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts + tl.load(x + at, mask=at < count, other=0), 1, mask=at < count)


@triton.jit
def until_small(out, x, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < count, other=0.0)
    while tl.max(tl.abs(values), 0) > 1.0:
        values = values * 0.5
    tl.store(out + at, tl.cumsum(values, 0), mask=at < count)


@triton.jit
def by_assembly(out, x, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < count, other=0.0)
    values = tl.inline_asm_elementwise("neg.f32 $0, $1;", "=f,f", [values], tl.float32, is_pure=True, pack=1)
    tl.store(out + at, values, mask=at < count)


@triton.jit
def with_unknown_name(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), missing_name)  # noqa: F821


@triton.jit
def writes_its_warps(out):
    tl.store(out, tl.extra.cuda.num_warps())
