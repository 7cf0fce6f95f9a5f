"""The task of `tileir_matmul_sweep.py`: a matmul by pointers or descriptors, with one or several tiles a block."""

import triton
import triton.language as tl
from triton_figures_tasks import by_descriptors, first_element, of_the_host
from triton_plain_matmul import matmul

import tilewright as tw


@triton.jit
def persistent_by_descriptors(
    a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    left = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BLOCK_M, BLOCK_K])
    right = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BLOCK_K, BLOCK_N])
    result = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    tiles_of_blocks(left, right, result, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, GROUP)


@triton.jit
def persistent_of_the_host(
    a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr
):
    tiles_of_blocks(a, b, c, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, GROUP)


@triton.jit
def tiles_of_blocks(
    left, right, result, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """The tiles of a block: its own number, and each that is a whole grid further on."""
    for tile in range(tl.program_id(0), tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N), tl.num_programs(0)):
        row, column = first_element(tile, M, N, BLOCK_M, BLOCK_N, GROUP)
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for start in range(0, K, BLOCK_K):
            total = tl.dot(left.load([row, start]), right.load([start, column]), total)
        result.store([row, column], total.to(tl.bfloat16))


ONE_TILE = {"pointers": matmul, "descriptors": by_descriptors, "host": of_the_host}
SEVERAL = {"descriptors": persistent_by_descriptors, "host": persistent_of_the_host}


def product(a, b, c, M, N, K, config, hardware):
    tiles = (config.BLOCK_M, config.BLOCK_N, config.BLOCK_K)
    arrays, blocks = (a, b, c), triton.cdiv(M, tiles[0]) * triton.cdiv(N, tiles[1])
    if config.FORM == "host":
        shapes = ([tiles[0], tiles[2]], [tiles[2], tiles[1]], [tiles[0], tiles[1]])
        arrays = tuple(tw.descriptor(array, shape) for array, shape in zip(arrays, shapes, strict=True))
    kernel = (SEVERAL if config.BLOCKS_PER_SM else ONE_TILE)[config.FORM]
    resident = hardware.sms * (config.BLOCKS_PER_SM or 0) // (config.num_ctas or 1)
    grid = (min(blocks, resident) if config.BLOCKS_PER_SM else blocks,)
    return tw.Launch(kernel, grid, (*arrays, M, N, K, *tiles, config.GROUP))


task = tw.Task(
    name="tileir_matmul",
    tensors={"a": tw.Tensor(("M", "K"), "bfloat16"), "b": tw.Tensor(("K", "N"), "bfloat16"),
             "c": tw.Output(("M", "N"), "bfloat16")},
    reference=lambda a, b: a @ b,
    trusted=lambda a, b: a @ b,
    launch=product,
    flops=lambda M, N, K: 2 * M * N * K,
    space=tw.Space(
        constants={"FORM": ("pointers", "descriptors", "host"), "BLOCK_M": (64, 128, 256), "BLOCK_N": (64, 128, 256),
                   "BLOCK_K": (32, 64, 128), "GROUP": (4, 8, 16), "BLOCKS_PER_SM": (None, 1, 2)},
        hints={"route": ("ptx", "tileir"), "num_warps": (None, 4, 8), "num_stages": (None, *range(2, 11)),
               "num_ctas": (None, 1, 2, 4), "num_worker_warps": (None, 4, 8), "occupancy": (None, 1, 2)},
        shipped={"FORM": "host", "BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP": 8, "BLOCKS_PER_SM": None,
                 "route": "tileir", "num_warps": None, "num_stages": 8, "num_ctas": None, "num_worker_warps": 8,
                 "occupancy": None},
    ),
    workloads={"4096": {"M": 4096, "N": 4096, "K": 4096}, "512": {"M": 512, "N": 512, "K": 512}},
    independent=("M", "N"),
    serves=lambda N, K: N % 8 == 0 and K % 8 == 0,
)  # fmt: skip
