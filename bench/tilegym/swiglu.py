"""TileGym's SwiGLU (`tilegym.ops.get_swiglu`), bf16: silu(a)·b, one block a row."""

import as_launched
import numpy as np

import tilewright as tw

module = tw.editable("tilegym.ops.cutile.swiglu")


def reference(a, b):
    return a / (1 + np.exp(-a)) * b


def trusted(a, b):
    import torch

    return torch.nn.functional.silu(a) * b


globals().update(as_launched.tasks(
    "swiglu",
    module=module,
    call=lambda ops, a, b: ops.get_swiglu()(a, b),
    arrays=("a", "b", "c"),
    tensors={
        "a": tw.Tensor(("M", "N"), "bfloat16"),
        "b": tw.Tensor(("M", "N"), "bfloat16"),
        "c": tw.Output(("M", "N"), "bfloat16"),
    },
    reference=reference,
    trusted=trusted,
    flops=lambda M, N: 5 * M * N,
    independent=("M",),
    hints={"occupancy": (None, 1, 2, 4, 8), "num_worker_warps": (None, 4, 8)},
    workloads={
        "16384x4096": {"M": 16384, "N": 4096},
        "8192x14336": {"M": 8192, "N": 14336},
        "32768x2048": {"M": 32768, "N": 2048},
    },
))  # fmt: skip
