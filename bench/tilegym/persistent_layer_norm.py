"""TileGym's persistent layer norm (`tilegym.ops.persistent_layer_norm`), bf16, with mean and 1 / deviation of rows."""

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
    "persistent_layer_norm",
    module=module,
    call=lambda ops, x, weight, bias: ops.persistent_layer_norm(x, None, weight, bias, EPSILON),
    arrays=("x", "y", "weight", "bias", "mean", "rstd"),
    listed="_persistent_layer_norm_autotune_configs",
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
    constants={"BLOCK_N": (1, 2, 4, 8, 16)},
    hints={"num_ctas": (1,), "occupancy": (None, 1, 2), "num_worker_warps": (4, 8)},
    workloads={
        "16384x4096": {"M": 16384, "N": 4096},
        "32768x2048": {"M": 32768, "N": 2048},
    },
))  # fmt: skip
