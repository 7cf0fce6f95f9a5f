"""Kernels under `triton.autotune`, as Triton's tutorials and flash-linear-attention write them, and calls of them.

The shapes are those of one layer of a model with 2048 channels. Between them the kernels use all that an autotuner can
do with its arguments: hooks of configurations, pruning, arrays that are reset or restored, heuristics.
"""

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

ROWS, CHANNELS, HEADS, CHUNK = 4096, 2048, 16, 64
WARPS = (1, 2, 4, 8)
DEVICE, SMS = "cuda", 132
"""Where the tensors are, and the SMs of an H100 or H200."""
Call = Callable[[], tuple[Any, ...]]

# A product with grouped blocks: tutorial 03 -------------------------------------------------------

TILES = (
    (128, 256, 64, 8, 3, 8), (64, 256, 32, 8, 4, 4), (128, 128, 32, 8, 4, 4), (128, 64, 32, 8, 4, 4),
    (64, 128, 32, 8, 4, 4), (128, 32, 32, 8, 4, 4), (64, 32, 32, 8, 5, 2), (32, 64, 32, 8, 5, 2),
    (128, 256, 128, 8, 3, 8), (256, 128, 128, 8, 3, 8), (256, 64, 128, 8, 4, 4), (64, 256, 128, 8, 4, 4),
    (128, 128, 128, 8, 4, 4), (128, 64, 64, 8, 4, 4), (64, 128, 64, 8, 4, 4), (128, 32, 64, 8, 4, 4),
)  # fmt: skip
"""The lists of the tutorial for CUDA: extents in M, N and K, group, stages, warps."""


@triton.autotune(
    configs=[
        triton.Config({"BM": m, "BN": n, "BK": k, "GROUP": group}, num_stages=stages, num_warps=warps)
        for m, n, k, group, stages, warps in TILES
    ],
    key=["M", "N", "K"],
)
@triton.jit
def product_kernel(
    a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    pid, blocks_m, blocks_n = tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = pid // (GROUP * blocks_n) * GROUP
    size = min(blocks_m - first, GROUP)
    at_m, at_n = first + pid % (GROUP * blocks_n) % size, pid % (GROUP * blocks_n) // size
    rows, columns = (at_m * BM + tl.arange(0, BM)) % M, (at_n * BN + tl.arange(0, BN)) % N
    inner = tl.arange(0, BK)
    left = a + rows[:, None] * stride_am + inner[None, :] * stride_ak
    right = b + inner[:, None] * stride_bk + columns[None, :] * stride_bn
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        x = tl.load(left, mask=inner[None, :] < K - k * BK, other=0.0)
        y = tl.load(right, mask=inner[:, None] < K - k * BK, other=0.0)
        total = tl.dot(x, y, total)
        left += BK * stride_ak
        right += BK * stride_bk
    rows, columns = at_m * BM + tl.arange(0, BM), at_n * BN + tl.arange(0, BN)
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c + stride_cm * rows[:, None] + stride_cn * columns[None, :], total.to(tl.bfloat16), mask=mask)


def matmul() -> Call:
    a, b, c = (_random(CHANNELS, CHANNELS) for _ in "abc")

    def call() -> tuple[Any, ...]:
        size = lambda meta: (triton.cdiv(CHANNELS, meta["BM"]) * triton.cdiv(CHANNELS, meta["BN"]),)  # noqa: E731
        product_kernel[size](a, b, c, CHANNELS, CHANNELS, CHANNELS, *a.stride(), *b.stride(), *c.stride())
        return (c,)

    return call


# A persistent product with descriptors of the host: tutorial 09 ----------------------------------


def set_blocks(given: dict[str, Any]) -> None:
    given["a"].block_shape = [given["BM"], given["BK"]]
    given["b"].block_shape = [given["BN"], given["BK"]]
    given["c"].block_shape = [given["BM"], given["BN"]]


def that_fit(configs: list[Any], named: Mapping[str, Any], **more: Any) -> list[Any]:
    """Drops configurations whose tiles need more than 227 KiB of shared memory."""

    def needed(given: Mapping[str, int], stages: int) -> int:
        return 2 * (stages * (given["BM"] + given["BN"]) * given["BK"] + given["BM"] * given["BN"])

    return [config for config in configs if needed(config.kwargs, config.num_stages) <= 227 << 10]


@triton.autotune(
    configs=[
        triton.Config({"BM": 128, "BN": n, "BK": k}, num_stages=stages, num_warps=warps, pre_hook=set_blocks)
        for n, k, stages, warps in product((128, 256), (64, 128), (2, 3, 4), (4, 8))
    ],
    key=["M", "N", "K"],
    prune_configs_by={"early_config_prune": that_fit},
)
@triton.jit
def persistent_kernel(a, b, c, M, N, K, SMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    blocks_m, blocks_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), blocks_m * blocks_n, SMS):
        at_m, at_n = tile % blocks_m * BM, tile // blocks_m * BN
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, tl.cdiv(K, BK)):
            total = tl.dot(a.load([at_m, k * BK]), b.load([at_n, k * BK]).T, total)
        c.store([at_m, at_n], total.to(tl.bfloat16))


def persistent_matmul() -> Call:
    a, b, c = (_random(CHANNELS, CHANNELS) for _ in "abc")
    given = [TensorDescriptor.from_tensor(each, [1, 64]) for each in (a, b, c)]

    def call() -> tuple[Any, ...]:
        blocks = lambda meta: (min(SMS, triton.cdiv(CHANNELS, meta["BM"]) * triton.cdiv(CHANNELS, meta["BN"])),)  # noqa: E731
        persistent_kernel[blocks](*given, CHANNELS, CHANNELS, CHANNELS, SMS)
        return (c,)

    return call


# The output of one chunk of linear attention: fla's chunk_fwd_kernel_o --------------------------


@triton.heuristics({"USE_G": lambda given: given["g"] is not None})
@triton.autotune(
    configs=[
        triton.Config({"BK": k, "BV": v}, num_warps=warps, num_stages=stages)
        for k, v, warps, stages in product((64, 128), (64, 128), (4, 8), (2, 3))
    ],
    key=["H", "K", "V", "BT"],
)
@triton.jit(do_not_specialize=["T"])
def chunk_kernel(
    q, k, v, h, g, o, scale, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, USE_G: tl.constexpr,
):  # fmt: skip
    at_v, chunk, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first, head, chunks = batch // H * T, batch % H, tl.cdiv(T, BT)
    rows = chunk * BT + tl.arange(0, BT)
    values = at_v * BV + tl.arange(0, BV)
    total, scores = tl.zeros([BT, BV], dtype=tl.float32), tl.zeros([BT, BT], dtype=tl.float32)
    for at_k in range(tl.cdiv(K, BK)):
        keys = at_k * BK + tl.arange(0, BK)
        place = ((first + rows) * H + head)[:, None] * K + keys[None, :]
        mask = (rows < T)[:, None] & (keys < K)[None, :]
        x, y = tl.load(q + place, mask=mask, other=0.0), tl.load(k + place, mask=mask, other=0.0)
        state = h + ((batch // H * chunks + chunk) * H + head) * K * V + keys[:, None] * V + values[None, :]
        total += tl.dot(x, tl.load(state, mask=(keys < K)[:, None] & (values < V)[None, :], other=0.0))
        scores += tl.dot(x, tl.trans(y))
    if USE_G:
        decay = tl.load(g + (first + rows) * H + head, mask=rows < T, other=0.0)
        total *= tl.exp(decay)[:, None]
        scores *= tl.exp(decay[:, None] - decay[None, :])
    scores = tl.where(rows[:, None] >= rows[None, :], scores, 0.0)
    place = ((first + rows) * H + head)[:, None] * V + values[None, :]
    mask = (rows < T)[:, None] & (values < V)[None, :]
    total = total * scale + tl.dot(scores.to(v.dtype.element_ty), tl.load(v + place, mask=mask, other=0.0)) * scale
    tl.store(o + place, total.to(o.dtype.element_ty), mask=mask)


def chunk_output() -> Call:
    keys, batch = CHANNELS // HEADS, 2
    q, k, v, o = (_random(batch, ROWS, HEADS, keys) for _ in "qkvo")
    h = _random(batch, ROWS // CHUNK, HEADS, keys, keys)
    g = -torch.rand(batch, ROWS // CHUNK, CHUNK, HEADS, device=DEVICE).mul_(0.1).cumsum(2)

    def call() -> tuple[Any, ...]:
        blocks = lambda meta: (triton.cdiv(keys, meta["BV"]), ROWS // CHUNK, batch * HEADS)  # noqa: E731
        chunk_kernel[blocks](q, k, v, h, g, o, keys**-0.5, ROWS, HEADS, keys, keys, CHUNK)
        return (o,)

    return call


# The norm of each head: fla's l2norm_fwd_kernel ---------------------------------------------------


@triton.autotune(
    configs=[triton.Config({"BT": rows}, num_warps=warps) for rows, warps in product((8, 16, 32, 64), WARPS)], key=["D"]
)
@triton.jit
def norm_kernel(x, y, eps, T, D: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr):
    rows, columns = tl.program_id(0) * BT + tl.arange(0, BT), tl.arange(0, BD)
    place, mask = rows[:, None] * D + columns[None, :], (rows < T)[:, None] & (columns < D)[None, :]
    values = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(values * values, 1) + eps)
    tl.store(y + place, (values * scale[:, None]).to(y.dtype.element_ty), mask=mask)


def head_norm() -> Call:
    width, rows = CHANNELS // HEADS, 2 * ROWS * HEADS
    x, y = (_random(rows, width) for _ in "xy")

    def call() -> tuple[Any, ...]:
        norm_kernel[lambda meta: (triton.cdiv(rows, meta["BT"]),)](x, y, 1e-6, rows, width, width)
        return (y,)

    return call


# The gradient of a norm's weight, added up by atomics: `reset_to_zero` ---------------------------


@triton.autotune(
    configs=[triton.Config({"ROWS": rows}, num_warps=warps) for rows, warps in product((16, 64), WARPS)],
    key=["N"],
    reset_to_zero=["dw"],
)
@triton.jit
def weight_gradient_kernel(x, dy, dw, M, N, ROWS: tl.constexpr, BN: tl.constexpr):
    first, columns = tl.program_id(0) * ROWS, tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros([BN], dtype=tl.float32)
    for row in range(first, min(first + ROWS, M)):
        place, mask = row * N + columns, columns < N
        total += tl.load(x + place, mask=mask, other=0.0).to(tl.float32) * tl.load(dy + place, mask=mask, other=0.0)
    tl.atomic_add(dw + columns, total, mask=columns < N)


def weight_gradient() -> Call:
    x, dy = (_random(2 * ROWS, CHANNELS) for _ in "xy")
    dw = torch.empty(CHANNELS, device=DEVICE)

    def call() -> tuple[Any, ...]:
        dw.zero_()
        blocks = lambda meta: (triton.cdiv(2 * ROWS, meta["ROWS"]), triton.cdiv(CHANNELS, 256))  # noqa: E731
        weight_gradient_kernel[blocks](x, dy, dw, 2 * ROWS, CHANNELS, BN=256)
        return (dw,)

    return call


# A step of an optimizer, in place: `restore_value` ------------------------------------------------


@triton.autotune(
    configs=[triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in product((512, 1024, 4096), WARPS)],
    key=["n"],
    restore_value=["p", "m"],
)
@triton.jit
def step_kernel(p, m, d, n, rate, beta, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    moment = tl.load(m + at, mask=mask) * beta + tl.load(d + at, mask=mask) * (1 - beta)
    tl.store(m + at, moment, mask=mask)
    sign = tl.where(moment > 0, 1.0, -1.0)
    tl.store(p + at, tl.load(p + at, mask=mask) - rate * sign, mask=mask)


def optimizer_step() -> Call:
    start, d = (torch.randn(CHANNELS * CHANNELS, device=DEVICE) for _ in "pd")
    p, m = start.clone(), torch.zeros_like(start)

    def call() -> tuple[Any, ...]:
        p.copy_(start)
        m.zero_()
        step_kernel[lambda meta: (triton.cdiv(p.numel(), meta["BLOCK"]),)](p, m, d, p.numel(), 1e-3, 0.9)
        return p, m

    return call


OPERATIONS: Mapping[str, Callable[[], Call]] = {
    one.__name__: one for one in (matmul, persistent_matmul, chunk_output, head_norm, weight_gradient, optimizer_step)
}
KERNELS = {
    "matmul": product_kernel,
    "persistent_matmul": persistent_kernel,
    "chunk_output": chunk_kernel.fn,
    "head_norm": norm_kernel,
    "weight_gradient": weight_gradient_kernel,
    "optimizer_step": step_kernel,
}
"""The autotuner of each operation."""


def _random(*shape: int) -> Any:
    return torch.randn(shape, dtype=torch.bfloat16, device=DEVICE)
