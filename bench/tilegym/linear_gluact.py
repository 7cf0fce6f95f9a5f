"""The first kernel of TileGym's gated linear layers (`tilegym.ops.linear_gluact_linear`), fp16: two products of one
input with a SiLU of the first as the gate of the second; all three results are kept for the backward pass.

Hopper gets the list for older GPUs, whose two 128×128 accumulators do not fit its registers.
"""

import as_launched
import numpy as np

import tilewright as tw

module = tw.editable("tilegym.ops.cutile.linear_gluact_linear")


def call(ops, x, gate, up):
    """The last product is another kernel; its size does not matter here."""
    return ops.linear_gluact_linear(x, gate, up, x.new_empty(64, gate.shape[0]), "silu")


def reference(x, gate, up):
    gated, plain = x @ gate.T, x @ up.T
    act = gated / (1 + np.exp(-gated))
    return act, plain, act * plain


def trusted(x, gate, up):
    import torch

    act, plain = torch.nn.functional.silu(x @ gate.T), x @ up.T
    return act, plain, act * plain


globals().update(as_launched.tasks(
    "linear_gluact",
    module=module,
    call=call,
    arrays=("x", "gate", "up", "act", "plain", "product"),
    kernel="_linear_gluact_fwd_kernel",
    listed="_linear_gluact_autotune_configs",
    tensors={
        "x": tw.Tensor(("M", "K"), "float16"),
        "gate": tw.Tensor(("N", "K"), "float16", tw.normal(0, 0.02)),
        "up": tw.Tensor(("N", "K"), "float16", tw.normal(0, 0.02)),
        **{name: tw.Output(("M", "N"), "float16") for name in ("act", "plain", "product")},
    },
    reference=reference,
    trusted=trusted,
    flops=lambda M, N, K: 4 * M * N * K,
    serves=lambda K: K % 128 == 0,
    independent=("M", "N"),
    constants={"BLOCK_M": (64, 128, 256), "BLOCK_N": (64, 128), "BLOCK_K": (32, 64, 128), "GROUP_M": (8,)},
    hints={"num_ctas": (1, 2), "occupancy": (1, 2), "num_worker_warps": (None, 8)},
    where=(lambda BLOCK_M, BLOCK_N, num_ctas: 8192 <= BLOCK_M * BLOCK_N <= 128 * 128 * num_ctas,),
    workloads={
        "8192x4096x4096": {"M": 8192, "N": 4096, "K": 4096},
        "4096x14336x4096": {"M": 4096, "N": 14336, "K": 4096},
    },
))  # fmt: skip
