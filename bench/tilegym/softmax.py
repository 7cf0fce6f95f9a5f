"""TileGym's softmax over rows (`tilegym.ops.softmax`, its default kernel), bf16: a gather of whole rows."""

import as_launched
import numpy as np

import tilewright as tw

module = tw.editable("tilegym.ops.cutile.softmax")


def reference(x):
    part = np.exp(x - x.max(axis=1, keepdims=True))
    return part / part.sum(axis=1, keepdims=True)


def trusted(x):
    import torch

    return torch.softmax(x, dim=1)


globals().update(as_launched.tasks(
    "softmax",
    module=module,
    call=lambda ops, x: ops.softmax(x),
    arrays=("y", "x"),
    tensors={"x": tw.Tensor(("M", "N"), "bfloat16"), "y": tw.Output(("M", "N"), "bfloat16")},
    reference=reference,
    trusted=trusted,
    flops=lambda M, N: 5 * M * N,
    independent=("M",),
    hints={"occupancy": (None, 2, 4, 8), "num_worker_warps": (None, 4, 8)},
    workloads={
        "16384x4096": {"M": 16384, "N": 4096},
        "32768x2048": {"M": 32768, "N": 2048},
        "8192x8192": {"M": 8192, "N": 8192},
    },
))  # fmt: skip
