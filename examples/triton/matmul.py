"""A product of matrices in Triton, with pointers and blocks in bands of GROUP rows, as in Triton's tutorial.

    tilewright check examples/triton/matmul.py
    tilewright optimize examples/triton/matmul.py
    tilewright report latest

`optimize` takes it to tensor descriptors and to CUDA Tile IR (docs/triton-on-tile-ir.md).
Needs the extra: pip install 'tilewright[triton]'
"""

import triton
import triton.language as tl

import tilewright as tw


@triton.jit
def matmul(
    a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first = program // (GROUP * columns) * GROUP
    height = min(rows - first, GROUP)
    row = first + (program % (GROUP * columns)) % height
    column = (program % (GROUP * columns)) // height
    places_m = (row * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    places_n = (column * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    inner = tl.arange(0, BLOCK_K)
    left = a + (places_m[:, None] * stride_am + inner[None, :] * stride_ak)
    right = b + (inner[:, None] * stride_bk + places_n[None, :] * stride_bn)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        x = tl.load(left, mask=inner[None, :] < K - k * BLOCK_K, other=0.0)
        y = tl.load(right, mask=inner[:, None] < K - k * BLOCK_K, other=0.0)
        total = tl.dot(x, y, total)
        left += BLOCK_K * stride_ak
        right += BLOCK_K * stride_bk
    at_m = row * BLOCK_M + tl.arange(0, BLOCK_M)
    at_n = column * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (at_m[:, None] < M) & (at_n[None, :] < N)
    tl.store(c + stride_cm * at_m[:, None] + stride_cn * at_n[None, :], total.to(tl.bfloat16), mask=inside)


def launch(a, b, c, M, N, K, config):
    grid = (triton.cdiv(M, config.BLOCK_M) * triton.cdiv(N, config.BLOCK_N),)
    return tw.Launch(matmul, grid, (a, b, c, M, N, K, K, 1, N, 1, N, 1))


task = tw.Task(
    name="triton_matmul",
    tensors={
        "a": tw.Tensor(("M", "K"), "bfloat16"),
        "b": tw.Tensor(("K", "N"), "bfloat16"),
        "c": tw.Output(("M", "N"), "bfloat16"),
    },
    reference=lambda a, b: a @ b,
    launch=launch,
    flops=lambda M, N, K: 2 * M * N * K,
    serves=lambda M, N, K: N % 8 == 0 and K % 8 == 0,  # tensor descriptors need rows of whole 16 bytes
    space=tw.Space(
        constants={"BLOCK_M": (128,), "BLOCK_N": (128,), "BLOCK_K": (64,), "GROUP": (8,)},
        hints={"route": ("ptx",), "num_warps": (8,)},
        shipped={"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP": 8, "route": "ptx", "num_warps": 8},
    ),
    workloads={"4096": {"M": 4096, "N": 4096, "K": 4096}, "odd": {"M": 1000, "N": 520, "K": 3000}},
    independent=("M",),
)  # fmt: skip
