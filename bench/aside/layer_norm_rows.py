"""y = (x − mean) / sqrt(variance + ε) · weight + bias in fp16: a block normalises TILE_M whole rows."""

import cuda.tile as ct
import numpy as np

import tilewright as tw

EPSILON = 1e-5


@ct.kernel
def layer_norm(x, weight, bias, y, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], COLUMNS: ct.Constant[int]):
    rows = ct.bid(0) * TILE_M + ct.arange(TILE_M, dtype=ct.int32)[:, None]
    columns = ct.arange(TILE_N, dtype=ct.int32)[None, :]
    values = ct.gather(x, (rows, columns)).astype(ct.float32)
    mean = ct.sum(values, axis=1, keepdims=True) / COLUMNS
    centred = ct.where(columns < COLUMNS, values - mean, 0.0)
    variance = ct.sum(centred * centred, axis=1, keepdims=True) / COLUMNS
    scale = ct.gather(weight, columns).astype(ct.float32)
    shift = ct.gather(bias, columns).astype(ct.float32)
    normed = centred * ct.rsqrt(variance + EPSILON) * scale + shift
    ct.scatter(y, (rows, columns), normed.astype(y.dtype))


def reference(x, weight, bias):
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + EPSILON) * weight + bias


def trusted(x, weight, bias):
    import torch

    return torch.nn.functional.layer_norm(x, (x.shape[1],), weight, bias, EPSILON)


def launch(x, weight, bias, y, M, N, config):
    width = 1 << (N - 1).bit_length()
    return tw.Launch(layer_norm, (-(-M // config.TILE_M),), (x, weight, bias, y, config.TILE_M, width, N))


task = tw.Task(
    name="layer_norm_rows",
    tensors={
        "x": tw.Tensor(("M", "N"), "float16"),
        "weight": tw.Tensor(("N",), "float16", tw.uniform(0.5, 1.5)),
        "bias": tw.Tensor(("N",), "float16"),
        "y": tw.Output(("M", "N"), "float16"),
    },
    reference=reference,
    trusted=trusted,
    launch=launch,
    flops=lambda M, N: 7 * M * N,
    independent=("M",),
    space=tw.Space(
        constants={"TILE_M": (1, 2, 4, 8)},
        hints={"occupancy": (None, 2, 4), "num_worker_warps": (None, 8)},
        shipped={"TILE_M": 1, "occupancy": None, "num_worker_warps": None},
        where=(
            lambda TILE_M, N: TILE_M * N <= 16384,
            lambda occupancy, num_worker_warps: occupancy is None or num_worker_warps is None,
        ),
    ),
    workloads={"16384x2048": {"M": 16384, "N": 2048}, "4096x5120": {"M": 4096, "N": 5120}},
)
