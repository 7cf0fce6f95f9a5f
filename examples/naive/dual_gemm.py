"""y = silu(x · gate) · (x · up) in bf16, both products in one plain kernel."""

import cuda.tile as ct
import numpy as np

import tilewright as tw


@ct.kernel
def dual_gemm(x, gate, up, y, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], TILE_K: ct.Constant[int]):
    row = ct.bid(0)
    column = ct.bid(1)
    ZERO = ct.PaddingMode.ZERO
    gated = ct.zeros((TILE_M, TILE_N), ct.float32)
    raised = ct.zeros((TILE_M, TILE_N), ct.float32)
    for k in range(ct.cdiv(x.shape[1], TILE_K)):
        left = ct.load(x, (row, k), (TILE_M, TILE_K), padding_mode=ZERO)
        gated = ct.mma(left, ct.load(gate, (k, column), (TILE_K, TILE_N), padding_mode=ZERO), gated)
        raised = ct.mma(left, ct.load(up, (k, column), (TILE_K, TILE_N), padding_mode=ZERO), raised)
    result = gated / (1.0 + ct.exp(-gated)) * raised
    ct.store(y, (row, column), result.astype(y.dtype))


def reference(x, gate, up):
    gated = x @ gate
    return gated / (1 + np.exp(-gated)) * (x @ up)


def trusted(x, gate, up):
    import torch

    return torch.nn.functional.silu(x @ gate) * (x @ up)


def launch(x, gate, up, y, M, N, config):
    grid = (-(-M // config.TILE_M), -(-N // config.TILE_N))
    return tw.Launch(dual_gemm, grid, (x, gate, up, y, config.TILE_M, config.TILE_N, config.TILE_K))


task = tw.Task(
    name="naive_dual_gemm",
    tensors={
        "x": tw.Tensor(("M", "K"), "bfloat16"),
        "gate": tw.Tensor(("K", "N"), "bfloat16", tw.normal(0.0, 0.02)),
        "up": tw.Tensor(("K", "N"), "bfloat16", tw.normal(0.0, 0.02)),
        "y": tw.Output(("M", "N"), "bfloat16"),
    },
    reference=reference,
    trusted=trusted,
    launch=launch,
    flops=lambda M, N, K: 4 * M * N * K,
    independent=("M", "N"),
    serves=lambda M, N: min(M, N) > 1 or M * N % 8 == 0,  # for others, tileiras 13.4 writes outside: docs/tile-ir.md
    space=tw.Space(
        constants={"TILE_M": (64,), "TILE_N": (64,), "TILE_K": (32,)},
        shipped={"TILE_M": 64, "TILE_N": 64, "TILE_K": 32},
    ),
    workloads={
        "mlp": {"M": 2048, "N": 11008, "K": 4096},
        "small_mlp": {"M": 4096, "N": 4096, "K": 1024},
    },
)
