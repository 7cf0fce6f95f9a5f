"""TileGym's transpose of a matrix (`tilegym.ops.transpose`), bf16."""

import as_launched

import tilewright as tw

module = tw.editable("tilegym.ops.cutile.transpose")


def trusted(x):
    return x.T.contiguous()


globals().update(as_launched.tasks(
    "transpose",
    module=module,
    call=lambda ops, x: ops.transpose(x),
    arrays=("x", "y"),
    grid=lambda M, N, config: (-(-M // config.BLOCK_M), -(-N // config.BLOCK_N), 1),
    tensors={"x": tw.Tensor(("M", "N"), "bfloat16"), "y": tw.Output(("N", "M"), "bfloat16")},
    reference=lambda x: x.T,
    trusted=trusted,
    flops=lambda M, N: 0,
    independent=("M", "N"),
    constants={"BLOCK_M": (32, 64, 128), "BLOCK_N": (32, 64, 128)},
    hints={"occupancy": (None, 2, 4, 8), "num_worker_warps": (None, 8)},
    workloads={
        "8192x8192": {"M": 8192, "N": 8192},
        "16384x4096": {"M": 16384, "N": 4096},
    },
))  # fmt: skip
