"""A matmul like that of Triton's tutorial, with pointers: what `triton_figures.py` optimises and tunes."""

import triton
import triton.language as tl

import tilewright as tw


@triton.jit
def matmul(
    a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    block = tl.program_id(0)
    rows_of_blocks, columns_of_blocks = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = block // (GROUP * columns_of_blocks)
    height = min(rows_of_blocks - group * GROUP, GROUP)
    block_m = group * GROUP + (block % (GROUP * columns_of_blocks)) % height
    block_n = (block % (GROUP * columns_of_blocks)) // height
    rows = (block_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    columns = (block_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    inner = tl.arange(0, BLOCK_K)
    left = a + rows[:, None].to(tl.int64) * K + inner[None, :]
    right = b + inner[:, None].to(tl.int64) * N + columns[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(0, tl.cdiv(K, BLOCK_K)):
        inside = inner < K - step * BLOCK_K
        total = tl.dot(
            tl.load(left, mask=inside[None, :], other=0.0), tl.load(right, mask=inside[:, None], other=0.0), total
        )
        left += BLOCK_K
        right += BLOCK_K * N
    at_m = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    at_n = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (at_m[:, None] < M) & (at_n[None, :] < N)
    tl.store(c + at_m[:, None].to(tl.int64) * N + at_n[None, :], total.to(c.dtype.element_ty), mask=inside)


def launch(a, b, c, M, N, K, config):
    blocks = triton.cdiv(M, config.BLOCK_M) * triton.cdiv(N, config.BLOCK_N)
    return tw.Launch(matmul, (blocks,), (a, b, c, M, N, K, config.BLOCK_M, config.BLOCK_N, config.BLOCK_K, 8))


task = tw.Task(
    name="triton_plain_matmul",
    tensors={"a": tw.Tensor(("M", "K"), "bfloat16"), "b": tw.Tensor(("K", "N"), "bfloat16"),
             "c": tw.Output(("M", "N"), "bfloat16")},
    reference=lambda a, b: a @ b,
    trusted=lambda a, b: a @ b,
    launch=launch,
    flops=lambda M, N, K: 2 * M * N * K,
    space=tw.Space(
        constants={"BLOCK_M": (64, 128), "BLOCK_N": (128, 256), "BLOCK_K": (64,)},
        hints={"route": ("ptx",), "num_warps": (4, 8), "num_stages": (3, 4, 5)},
        shipped={"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "route": "ptx", "num_warps": 8, "num_stages": 3},
    ),
    workloads={"4096": {"M": 4096, "N": 4096, "K": 4096}},
    independent=("M", "N"),
    serves=lambda N, K: N % 8 == 0 and K % 8 == 0,  # what a tensor descriptor can have
)  # fmt: skip
