"""TileGym's fused SiLU and product (`tilegym.ops.silu_and_mul`), bf16: silu of the left half times the right."""

import as_launched
import numpy as np

import tilewright as tw

module = tw.editable("tilegym.ops.cutile.silu_and_mul")


def reference(x):
    a, b = np.split(x, 2, axis=1)
    return a / (1 + np.exp(-a)) * b


def trusted(x):
    import torch

    a, b = x.chunk(2, dim=1)
    return torch.nn.functional.silu(a) * b


globals().update(as_launched.tasks(
    "silu_and_mul",
    module=module,
    call=lambda ops, x: ops.silu_and_mul(x),
    arrays=("x", "y"),
    listed="_SILU_OCCUPANCY_CONFIGS",
    tensors={"x": tw.Tensor(("M", "2 * N"), "bfloat16"), "y": tw.Output(("M", "N"), "bfloat16")},
    reference=reference,
    trusted=trusted,
    flops=lambda M, N: 5 * M * N,
    independent=("M",),
    hints={"num_ctas": (1, 2), "occupancy": (None, 1, 2, 4, 8), "num_worker_warps": (4, 8)},
    workloads={
        "16384x8192": {"M": 16384, "N": 8192},
        "8192x14336": {"M": 8192, "N": 14336},
    },
))  # fmt: skip
