"""The tasks of `triton_figures.py`: one source by both routes, beside torch."""

import numpy as np
import triton
import triton.language as tl
from triton_plain_matmul import matmul

import tilewright as tw


@triton.jit
def first_element(block, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """The first row and column of a block. Blocks of ``GROUP`` rows of blocks follow one another, for the L2 cache."""
    rows_of_blocks, columns_of_blocks = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = block // (GROUP * columns_of_blocks)
    height = min(rows_of_blocks - group * GROUP, GROUP)
    row = (group * GROUP + (block % (GROUP * columns_of_blocks)) % height) * BLOCK_M
    column = ((block % (GROUP * columns_of_blocks)) // height) * BLOCK_N
    return row, column


@triton.jit
def by_descriptors(
    a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    row, column = first_element(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP)
    left = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BLOCK_M, BLOCK_K])
    right = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BLOCK_K, BLOCK_N])
    result = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        total = tl.dot(left.load([row, start]), right.load([start, column]), total)
    result.store([row, column], total.to(tl.bfloat16))


@triton.jit
def of_the_host(
    a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr
):
    row, column = first_element(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        total = tl.dot(a.load([row, start]), b.load([start, column]), total)
    c.store([row, column], total.to(tl.bfloat16))


def product(a, b, c, M, N, K, config):
    tiles = (config.BLOCK_M, config.BLOCK_N, config.BLOCK_K)
    arrays, kernel = (a, b, c), {"pointers": matmul, "descriptors": by_descriptors, "host": of_the_host}[config.FORM]
    if config.FORM == "host":
        blocks = ([tiles[0], tiles[2]], [tiles[2], tiles[1]], [tiles[0], tiles[1]])
        arrays = tuple(tw.descriptor(array, block) for array, block in zip(arrays, blocks, strict=True))
    grid = (triton.cdiv(M, tiles[0]) * triton.cdiv(N, tiles[1]),)
    return tw.Launch(kernel, grid, (*arrays, M, N, K, *tiles, 8))


TILES = {"BLOCK_M": (64, 128, 256), "BLOCK_N": (64, 128, 256), "BLOCK_K": (32, 64, 128)}
products = tw.Task(
    name="products",
    tensors={"a": tw.Tensor(("M", "K"), "bfloat16"), "b": tw.Tensor(("K", "N"), "bfloat16"),
             "c": tw.Output(("M", "N"), "bfloat16")},
    reference=lambda a, b: a @ b,
    trusted=lambda a, b: a @ b,
    launch=product,
    flops=lambda M, N, K: 2 * M * N * K,
    space=tw.Space(
        constants={"FORM": ("pointers", "descriptors", "host"), **TILES},
        hints={"route": ("ptx", "tileir"), "num_warps": (None, 4, 8), "num_stages": (None, 3, 4, 5),
               "num_ctas": (None, 2), "num_worker_warps": (None, 8)},
        shipped={"FORM": "pointers", "BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "route": "ptx", "num_warps": 8,
                 "num_stages": 3, "num_ctas": None, "num_worker_warps": None},
    ),
    workloads={"4096": {"M": 4096, "N": 4096, "K": 4096}, "512": {"M": 512, "N": 512, "K": 512}},
    independent=("M", "N"),
    serves=lambda N, K: N % 8 == 0 and K % 8 == 0,
)  # fmt: skip


@triton.jit
def softmax(out, x, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < columns
    values = tl.load(x + row * stride + place, mask=inside, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * stride + place, powers / tl.sum(powers, 0), mask=inside)


@triton.jit
def rms_norm(out, x, weight, stride, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < columns
    values = tl.load(x + row * stride + place, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / columns + eps)
    scaled = values * scale * tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * stride + place, scaled, mask=inside)


def powers_of(x):
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def rows_task(name, weights, launch, reference, trusted):
    tensors = {"x": tw.Tensor(("M", "N"), "bfloat16"), **weights, "out": tw.Output(("M", "N"), "bfloat16")}
    return tw.Task(
        name=name, tensors=tensors, reference=reference, trusted=trusted, launch=launch,
        flops=lambda M, N: 5 * M * N,
        space=tw.Space(
            hints={"route": ("ptx", "tileir"), "num_warps": (None, 4, 8, 16, 32), "occupancy": (None, 1, 2, 4, 8),
                   "num_worker_warps": (None, 8)},
            shipped={"route": "ptx", "num_warps": 8, "occupancy": None, "num_worker_warps": None},
        ),
        workloads={"16384x4096": {"M": 16384, "N": 4096}},
        independent=("M",),
    )  # fmt: skip


softmax_rows = rows_task(
    "softmax_rows", {}, lambda x, out, M, N: tw.Launch(softmax, (M,), (out, x, N, N, triton.next_power_of_2(N))),
    powers_of, lambda x: x.softmax(1),
)  # fmt: skip
rms_rows = rows_task(
    "rms_rows", {"w": tw.Tensor(("N",), "bfloat16")},
    lambda x, w, out, M, N: tw.Launch(rms_norm, (M,), (out, x, w, N, N, 1e-6, triton.next_power_of_2(N))),
    lambda x, w: x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6) * w,
    lambda x, w: (x.float() * (x.float().square().mean(1, keepdim=True) + 1e-6).rsqrt() * w.float()).to(x.dtype),
)  # fmt: skip
