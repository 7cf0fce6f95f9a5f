"""Kernels of our own, written as Triton users write them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softmax(x, y, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + columns, mask=columns < n, other=-float("inf")).to(tl.float32)
    values = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * stride + columns, (values / tl.sum(values, 0)).to(y.dtype.element_ty), mask=columns < n)


@triton.jit
def matmul(a, b, c, m, n, k, stride_a, stride_b, stride_c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    inner = tl.arange(0, K)
    left = a + rows[:, None] * stride_a + inner[None, :]
    right = b + inner[:, None] * stride_b + columns[None, :]
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        u = tl.load(left, mask=(rows[:, None] < m) & (inner[None, :] + start < k), other=0.0)
        v = tl.load(right, mask=(inner[:, None] + start < k) & (columns[None, :] < n), other=0.0)
        total = tl.dot(u, v, total)
        left += K
        right += K * stride_b
    where = c + rows[:, None] * stride_c + columns[None, :]
    tl.store(where, total.to(c.dtype.element_ty), mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def matmul_by_descriptors(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    left = tl.make_tensor_descriptor(a, [m, k], [k, 1], [M, K])
    right = tl.make_tensor_descriptor(b, [k, n], [n, 1], [K, N])
    into = tl.make_tensor_descriptor(c, [m, n], [n, 1], [M, N])
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        total = tl.dot(left.load([row, start]), right.load([start, column]), total)
    into.store([row, column], total.to(c.dtype.element_ty))


@triton.jit
def layer_norm(x, weight, bias, y, mean, rstd, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    values = tl.load(x + row * n + columns, mask=inside, other=0.0).to(tl.float32)
    average = tl.sum(values, 0) / n
    centred = tl.where(inside, values - average, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 0) / n + eps)
    tl.store(mean + row, average)
    tl.store(rstd + row, scale)
    w = tl.load(weight + columns, mask=inside, other=0.0)
    b = tl.load(bias + columns, mask=inside, other=0.0)
    tl.store(y + row * n + columns, (centred * scale * w + b).to(y.dtype.element_ty), mask=inside)


@triton.jit
def rms_norm(x, weight, y, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = 0.0
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        values = tl.load(x + row * n + columns, mask=columns < n, other=0.0).to(tl.float32)
        total += tl.sum(values * values, 0)
    scale = tl.rsqrt(total / n + eps)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        values = tl.load(x + row * n + columns, mask=columns < n, other=0.0).to(tl.float32)
        w = tl.load(weight + columns, mask=columns < n, other=0.0).to(tl.float32)
        tl.store(y + row * n + columns, (values * scale * w).to(y.dtype.element_ty), mask=columns < n)


@triton.jit
def rope(x, cosines, sines, heads, stride, HALF: tl.constexpr):
    """In place: the two halves of each head are turned."""
    row = tl.program_id(0)
    at = tl.arange(0, HALF)
    c, s = tl.load(cosines + row * HALF + at), tl.load(sines + row * HALF + at)
    for head in range(heads):
        where = x + row * stride + head * 2 * HALF + at
        first, second = tl.load(where), tl.load(where + HALF)
        tl.store(where, first * c - second * s)
        tl.store(where + HALF, second * c + first * s)


@triton.jit
def attention(q, k, v, o, length, scale, CAUSAL: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)
    depth = tl.arange(0, D)
    base = tl.program_id(1).to(tl.int64) * length * D
    query = tl.load(q + base + rows[:, None] * D + depth[None, :], mask=rows[:, None] < length, other=0.0)
    top = tl.full((M,), -float("inf"), tl.float32)
    norm = tl.zeros((M,), tl.float32)
    total = tl.zeros((M, D), tl.float32)
    end = tl.minimum(length, (tl.program_id(0) + 1) * M) if CAUSAL else length
    for start in range(0, end, N):
        columns = start + tl.arange(0, N)
        key = tl.load(k + base + columns[:, None] * D + depth[None, :], mask=columns[:, None] < length, other=0.0)
        scores = tl.dot(query, tl.trans(key)) * scale
        seen = columns[None, :] < length
        if CAUSAL:
            seen &= columns[None, :] <= rows[:, None]
        scores = tl.where(seen, scores, -float("inf"))
        above = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2((scores - above[:, None]) * 1.4426950408889634)
        shrink = tl.exp2((top - above) * 1.4426950408889634)
        value = tl.load(v + base + columns[:, None] * D + depth[None, :], mask=columns[:, None] < length, other=0.0)
        total = tl.dot(weights.to(value.dtype), value, total * shrink[:, None])
        norm = norm * shrink + tl.sum(weights, 1)
        top = above
    total = total / norm[:, None]
    tl.store(o + base + rows[:, None] * D + depth[None, :], total.to(o.dtype.element_ty), mask=rows[:, None] < length)


@triton.jit
def cross_entropy(x, target, loss, n, ignored, BLOCK: tl.constexpr):
    """The loss of each row, and in place of the scores their gradient. A row that is ignored ends early."""
    row = tl.program_id(0).to(tl.int64)
    wanted = tl.load(target + row)
    x += row * n
    if wanted == ignored:
        for start in range(0, n, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            tl.store(x + columns, 0.0, mask=columns < n)
        tl.store(loss + row, 0.0)
        return
    top, norm = float("-inf"), 0.0
    score = tl.load(x + wanted).to(tl.float32)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        values = tl.load(x + columns, mask=columns < n, other=float("-inf")).to(tl.float32)
        above = tl.maximum(top, tl.max(values))
        norm = norm * tl.exp(top - above) + tl.sum(tl.exp(values - above))
        top = above
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        values = tl.load(x + columns, mask=columns < n, other=float("-inf")).to(tl.float32)
        gradient = tl.exp(values - top) / norm
        tl.store(x + columns, tl.where(columns == wanted, gradient - 1.0, gradient), mask=columns < n)
    tl.store(loss + row, top + tl.log(norm) - score)
