"""Rotary position embedding in bf16, a plain kernel: gathers pairs of elements, rotates them, scatters them.

Four positions of one head with D = 128 are 256 pairs per block: one for each thread of a usual CUDA block.
"""

import cuda.tile as ct
import numpy as np

import tilewright as tw


@ct.kernel
def rope(x, cosine, sine, rotated, TILE_S: ct.Constant[int], HALF: ct.Constant[int]):
    h, b = ct.bid(1), ct.bid(2)
    rows = ct.bid(0) * TILE_S + ct.arange(TILE_S, dtype=ct.int32)[:, None]
    columns = ct.arange(HALF, dtype=ct.int32)[None, :]
    cos = ct.gather(cosine, (rows, columns))
    sin = ct.gather(sine, (rows, columns))
    first = ct.gather(x, (b, h, rows, columns)).astype(ct.float32)
    second = ct.gather(x, (b, h, rows, columns + HALF)).astype(ct.float32)
    ct.scatter(rotated, (b, h, rows, columns), (first * cos - second * sin).astype(rotated.dtype))
    ct.scatter(rotated, (b, h, rows, columns + HALF), (second * cos + first * sin).astype(rotated.dtype))


def reference(x, cosine, sine):
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate((first * cosine - second * sine, second * cosine + first * sine), axis=-1)


def trusted(x, cosine, sine):
    import torch

    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(x.dtype)


def launch(x, cosine, sine, rotated, B, H, S, D, config):
    grid = (-(-S // config.TILE_S), H, B)
    return tw.Launch(rope, grid, (x, cosine, sine, rotated, config.TILE_S, D // 2))


task = tw.Task(
    name="naive_rope",
    tensors={
        "x": tw.Tensor(("B", "H", "S", "D"), "bfloat16"),
        "cosine": tw.Tensor(("S", "D // 2"), "float32", tw.uniform(-1, 1)),
        "sine": tw.Tensor(("S", "D // 2"), "float32", tw.uniform(-1, 1)),
        "rotated": tw.Output(("B", "H", "S", "D"), "bfloat16"),
    },
    reference=reference,
    trusted=trusted,
    launch=launch,
    flops=lambda B, H, S, D: 3 * B * H * S * D,
    independent=("B", "H", "S"),
    serves=lambda D: D & (D - 1) == 0,  # a power of two: half of it is a tile
    space=tw.Space(
        constants={"TILE_S": (4,)},
        shipped={"TILE_S": 4},
    ),
    workloads={
        "prefill": {"B": 4, "H": 32, "S": 4096, "D": 128},
        "long": {"B": 1, "H": 32, "S": 16384, "D": 64},
    },
)
