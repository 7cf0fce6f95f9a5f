"""Rotary position embedding of queries, in place, in bf16: (x1, x2) → (x1·cos − x2·sin, x2·cos + x1·sin).

The program runs it in place. In the search, ``rotated`` is a separate buffer, so that no trial rotates twice.
"""

import cuda.tile as ct
import numpy as np

import tilewright as tw


@ct.kernel
def rope(x, cosine, sine, rotated, TILE_H: ct.Constant[int], TILE_S: ct.Constant[int], HALF: ct.Constant[int]):
    s, h, b = ct.bid(0), ct.bid(1), ct.bid(2)
    shape = (1, TILE_H, TILE_S, HALF)
    cos = ct.load(cosine, (s, 0), (TILE_S, HALF)).astype(ct.float32).reshape((1, 1, TILE_S, HALF))
    sin = ct.load(sine, (s, 0), (TILE_S, HALF)).astype(ct.float32).reshape((1, 1, TILE_S, HALF))
    first = ct.load(x, (b, h, s, 0), shape).astype(ct.float32)
    second = ct.load(x, (b, h, s, 1), shape).astype(ct.float32)
    ct.store(rotated, (b, h, s, 0), (first * cos - second * sin).astype(rotated.dtype))
    ct.store(rotated, (b, h, s, 1), (second * cos + first * sin).astype(rotated.dtype))


def reference(x, cosine, sine):
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate((first * cosine - second * sine, second * cosine + first * sine), axis=-1)


def trusted(x, cosine, sine):
    import torch
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(x.dtype)


def launch(x, cosine, sine, rotated, B, H, S, D, config):
    grid = (-(-S // config.TILE_S), -(-H // config.TILE_H), B)
    return tw.Launch(rope, grid, (x, cosine, sine, rotated, config.TILE_H, config.TILE_S, D // 2))


task = tw.Task(
    name="rope",
    tensors={
        "x": tw.Tensor(("B", "H", "S", "D"), "bfloat16"),
        "cosine": tw.Tensor(("S", "D // 2"), "float32", tw.uniform(-1, 1)),
        "sine": tw.Tensor(("S", "D // 2"), "float32", tw.uniform(-1, 1)),
        "rotated": tw.Output(("B", "H", "S", "D"), "bfloat16", in_place_of="x"),
    },
    reference=reference,
    trusted=trusted,
    launch=launch,
    flops=lambda B, H, S, D: 3 * B * H * S * D,
    independent=("B", "H", "S"),
    serves=lambda D: D & (D - 1) == 0,  # a power of two: half of it is a tile
    space=tw.Space(
        constants={"TILE_H": (1, 2, 4, 8, 16, 32), "TILE_S": (4, 16, 64)},
        hints={"occupancy": (None, 4, 8), "num_worker_warps": (None, 8)},
        shipped={"TILE_H": 1, "TILE_S": 16, "occupancy": None, "num_worker_warps": None},
        where=(
            lambda TILE_H, TILE_S, S: TILE_H * TILE_S <= 128 and (TILE_S == 4 or TILE_S <= S),
            lambda occupancy, num_worker_warps: occupancy is None or num_worker_warps is None,
        ),
    ),
    workloads={
        "prefill": {"B": 4, "H": 32, "S": 4096, "D": 128},
        "keys": {"B": 4, "H": 8, "S": 4096, "D": 128},
        "long": {"B": 1, "H": 32, "S": 16384, "D": 64},
        "decode": {"B": 256, "H": 32, "S": 1, "D": 128},
    },
)
