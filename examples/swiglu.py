"""y = silu(gate) · up in bf16, where silu(z) = z / (1 + e⁻ᶻ)."""

import cuda.tile as ct
import numpy as np

import tilewright as tw

LOG2_E = 1.4426950408889634


@ct.kernel
def swiglu(gate, up, y, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], RAGGED: ct.Constant[bool]):
    # Gather instead of a tile load: each element is used once, so shared memory gains nothing.
    rows = ct.bid(1) * TILE_M + ct.arange(TILE_M, dtype=ct.int32)[:, None]
    columns = ct.bid(0) * TILE_N + ct.arange(TILE_N, dtype=ct.int32)[None, :]
    z = ct.gather(gate, (rows, columns), check_bounds=RAGGED).astype(ct.float32)
    factor = ct.gather(up, (rows, columns), check_bounds=RAGGED).astype(ct.float32)
    grown = 1.0 + ct.exp2(-z * LOG2_E, flush_to_zero=True)
    sigmoid = ct.truediv(1.0, grown, flush_to_zero=True, rounding_mode=ct.RoundingMode.APPROX)
    ct.scatter(y, (rows, columns), (z * sigmoid * factor).astype(y.dtype), check_bounds=RAGGED)


def reference(gate, up):
    return gate / (1 + np.exp(-gate)) * up


def trusted(gate, up):
    import torch

    return torch.nn.functional.silu(gate) * up


def launch(gate, up, y, M, N, config):
    grid = (-(-N // config.TILE_N), -(-M // config.TILE_M))
    ragged = M % config.TILE_M != 0 or N % config.TILE_N != 0
    return tw.Launch(swiglu, grid, (gate, up, y, config.TILE_M, config.TILE_N, ragged))


task = tw.Task(
    name="swiglu",
    tensors={
        "gate": tw.Tensor(("M", "N"), "bfloat16"),
        "up": tw.Tensor(("M", "N"), "bfloat16"),
        "y": tw.Output(("M", "N"), "bfloat16"),
    },
    reference=reference,
    trusted=trusted,
    launch=launch,
    flops=lambda M, N: 5 * M * N,
    independent=("M", "N"),
    space=tw.Space(
        constants={"TILE_M": (1, 2, 4), "TILE_N": (512, 1024, 2048, 4096)},
        hints={"occupancy": (None, 8), "num_worker_warps": (None, 8)},
        shipped={"TILE_M": 1, "TILE_N": 1024, "occupancy": None, "num_worker_warps": None},
        where=(
            lambda TILE_M, TILE_N: TILE_M * TILE_N <= 8192,
            lambda occupancy, num_worker_warps: occupancy is None or num_worker_warps is None,
        ),
    ),
    workloads={
        "16384x4096": {"M": 16384, "N": 4096},
        "2048x14336": {"M": 2048, "N": 14336},
        "512x11008": {"M": 512, "N": 11008},
        "odd": {"M": 1000, "N": 3001},
    },
)
