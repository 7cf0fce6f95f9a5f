"""y = x / (1 − p) where a hash of seed and index is high enough, else 0: dropout in bf16 over a flat array."""

import cuda.tile as ct
import numpy as np

import tilewright as tw

RATE = 0.25
SEED = 20261124


@ct.kernel
def dropout(x, y, TILE: ct.Constant[int]):
    places = ct.bid(0) * TILE + ct.arange(TILE, dtype=ct.int32)
    mixed = ct.bitcast(places, ct.uint32) ^ SEED
    mixed = (mixed ^ (mixed >> 16)) * 0x45D9F3B
    mixed = (mixed ^ (mixed >> 16)) * 0x45D9F3B
    mixed = mixed ^ (mixed >> 16)
    kept = (mixed >> 8).astype(ct.float32) * 2.0**-24 >= RATE
    values = ct.gather(x, places).astype(ct.float32)
    ct.scatter(y, places, ct.where(kept, values * (1.0 / (1.0 - RATE)), 0.0).astype(y.dtype))


def kept(count):
    mixed = np.arange(count, dtype=np.uint32) ^ np.uint32(SEED)
    for _ in range(2):
        mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x45D9F3B)
    mixed = mixed ^ (mixed >> np.uint32(16))
    return (mixed >> np.uint32(8)) * 2.0**-24 >= RATE


def reference(x):
    return np.where(kept(x.shape[0]), x / (1 - RATE), 0.0)


def trusted(x):
    import torch

    return torch.where(torch.from_numpy(kept(x.shape[0])).to(x.device), x.float() / (1 - RATE), 0.0).to(x.dtype)


def launch(x, y, N, config):
    return tw.Launch(dropout, (-(-N // config.TILE),), (x, y, config.TILE))


task = tw.Task(
    name="dropout",
    tensors={"x": tw.Tensor(("N",), "bfloat16"), "y": tw.Output(("N",), "bfloat16")},
    reference=reference,
    trusted=trusted,
    launch=launch,
    flops=lambda N: 8 * N,
    space=tw.Space(
        constants={"TILE": (512, 1024, 2048, 4096, 8192)},
        hints={"occupancy": (None, 8), "num_worker_warps": (None, 8)},
        shipped={"TILE": 1024, "occupancy": None, "num_worker_warps": None},
        where=(lambda occupancy, num_worker_warps: occupancy is None or num_worker_warps is None,),
    ),
    workloads={"32M": {"N": 32 << 20}, "2M": {"N": 2 << 20}},
)
