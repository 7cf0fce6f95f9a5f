"""y = (x − mean) / sqrt(variance + ε) · weight + bias in bf16, a plain kernel: a block loops over ROWS rows."""

import cuda.tile as ct
import numpy as np

import tilewright as tw

EPSILON = 1e-5


@ct.kernel
def layer_norm(x, weight, bias, y, ROWS: ct.Constant[int], TILE_N: ct.Constant[int], COLUMNS: ct.Constant[int]):
    ZERO = ct.PaddingMode.ZERO
    inside = ct.arange(TILE_N, dtype=ct.int32)[None, :] < COLUMNS
    for i in range(ROWS):
        row = ct.bid(0) * ROWS + i
        values = ct.load(x, (row, 0), (1, TILE_N), padding_mode=ZERO).astype(ct.float32)
        mean = ct.sum(values, axis=1, keepdims=True) / COLUMNS
        centred = ct.where(inside, values - mean, 0.0)
        variance = ct.sum(centred * centred, axis=1, keepdims=True) / COLUMNS
        scale = ct.load(weight, (0,), (TILE_N,), padding_mode=ZERO).astype(ct.float32)
        shift = ct.load(bias, (0,), (TILE_N,), padding_mode=ZERO).astype(ct.float32)
        normed = centred / ct.sqrt(variance + EPSILON) * scale + shift
        ct.store(y, (row, 0), normed.astype(y.dtype))


def reference(x, weight, bias):
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + EPSILON) * weight + bias


def trusted(x, weight, bias):
    import torch

    return torch.nn.functional.layer_norm(x, (x.shape[1],), weight, bias, EPSILON)


def launch(x, weight, bias, y, M, N, config):
    width = 1 << (N - 1).bit_length()
    return tw.Launch(layer_norm, (-(-M // config.ROWS),), (x, weight, bias, y, config.ROWS, width, N))


task = tw.Task(
    name="naive_layer_norm",
    tensors={
        "x": tw.Tensor(("M", "N"), "bfloat16"),
        "weight": tw.Tensor(("N",), "bfloat16", tw.uniform(0.5, 1.5)),
        "bias": tw.Tensor(("N",), "bfloat16"),
        "y": tw.Output(("M", "N"), "bfloat16"),
    },
    reference=reference,
    trusted=trusted,
    launch=launch,
    flops=lambda M, N: 7 * M * N,
    independent=("M",),
    space=tw.Space(
        constants={"ROWS": (8,)},
        shipped={"ROWS": 8},
    ),
    workloads={
        "16384x4096": {"M": 16384, "N": 4096},
        "32768x2048": {"M": 32768, "N": 2048},
    },
)
