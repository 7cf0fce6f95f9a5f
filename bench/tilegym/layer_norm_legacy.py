"""TileGym's older layer norm (`tilegym.ops.layer_norm_legacy`), bf16: three passes over a row, by gather.

Besides the normed rows it leaves each row's mean and 1 / deviation.
"""

import as_launched
import numpy as np

import tilewright as tw

EPSILON = 1e-5

module = tw.editable("tilegym.ops.cutile.layer_norm_legacy")


def reference(x, weight, bias):
    mean, rstd = x.mean(axis=1), 1 / np.sqrt(x.var(axis=1) + EPSILON)
    return (x - mean[:, None]) * rstd[:, None] * weight + bias, mean, rstd


def trusted(x, weight, bias):
    import torch

    y, mean, rstd = torch.native_layer_norm(x, (x.shape[1],), weight, bias, EPSILON)
    return y, mean.float().view(-1), rstd.float().view(-1)


globals().update(as_launched.tasks(
    "layer_norm_legacy",
    module=module,
    call=lambda ops, x, weight, bias: ops.layer_norm_legacy(x, None, weight, bias, EPSILON),
    arrays=("x", "y", "weight", "bias", "mean", "rstd"),
    grid=lambda M: (M,),
    tensors={
        "x": tw.Tensor(("M", "N"), "bfloat16"),
        "weight": tw.Tensor(("N",), "bfloat16", tw.uniform(0.5, 1.5)),
        "bias": tw.Tensor(("N",), "bfloat16"),
        "y": tw.Output(("M", "N"), "bfloat16"),
        "mean": tw.Output(("M",), "float32"),
        "rstd": tw.Output(("M",), "float32"),
    },
    reference=reference,
    trusted=trusted,
    flops=lambda M, N: 8 * M * N,
    independent=("M",),
    constants={"BLOCK_SIZE": (512, 1024, 2048, 4096)},
    hints={"occupancy": (None, 2, 4, 8), "num_worker_warps": (None, 8)},
    where=(lambda BLOCK_SIZE, N: BLOCK_SIZE <= N,),
    workloads={
        "16384x4096": {"M": 16384, "N": 4096},
        "8192x4096": {"M": 8192, "N": 4096},
    },
))  # fmt: skip
