"""TileGym's RMS norm (`tilegym.ops.rms_norm`), bf16: the persistent kernel, which it takes above two waves of rows.

Besides the normed rows it leaves 1 / rms of each row, which the backward pass reads.
"""

import as_launched
import numpy as np

import tilewright as tw

EPSILON = 1e-6

module = tw.editable("tilegym.ops.cutile.rms_norm")


def reference(x, weight):
    rstd = 1 / np.sqrt((x * x).mean(axis=1) + EPSILON)
    return x * rstd[:, None] * weight, rstd


def trusted(x, weight):
    import torch

    rstd = torch.rsqrt(x.float().square().mean(dim=1) + EPSILON)
    return torch.nn.functional.rms_norm(x, (x.shape[1],), weight, EPSILON), rstd


globals().update(as_launched.tasks(
    "rms_norm",
    module=module,
    call=lambda ops, x, weight: ops.rms_norm(x, None, weight, EPSILON, mode="static_persistent"),
    arrays=("x", "y", "weight", "rstd"),
    grid=lambda M, config, hardware: (min(hardware.sms, -(-M // config.TILE_SIZE_M)),),
    tensors={
        "x": tw.Tensor(("M", "N"), "bfloat16"),
        "weight": tw.Tensor(("N",), "bfloat16", tw.uniform(0.5, 1.5)),
        "y": tw.Output(("M", "N"), "bfloat16"),
        "rstd": tw.Output(("M",), "float32"),
    },
    reference=reference,
    trusted=trusted,
    flops=lambda M, N: 4 * M * N,
    independent=("M",),
    constants={"TILE_SIZE_M": (1, 2, 4, 8)},
    hints={"occupancy": (None, 1, 2), "num_worker_warps": (None, 4, 8)},
    where=(lambda TILE_SIZE_M, N: TILE_SIZE_M * N <= 32768,),
    workloads={
        "16384x4096": {"M": 16384, "N": 4096},
        "32768x2048": {"M": 32768, "N": 2048},
        "8192x8192": {"M": 8192, "N": 8192},
    },
))  # fmt: skip
