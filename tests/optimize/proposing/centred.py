"""y = x minus the mean of its row. Read in chunks of TILE, once for the mean and once for the result."""

import cuda.tile as ct
import numpy as np

import tilewright as tw

ZERO = ct.PaddingMode.ZERO


@ct.kernel
def centre(x, y, N: ct.Constant[int], TILE: ct.Constant[int]):
    row = ct.bid(0)
    total = ct.zeros((1, TILE), ct.float32)
    for chunk in range(ct.cdiv(N, TILE)):
        total = total + ct.load(x, (row, chunk), (1, TILE), padding_mode=ZERO)
    mean = ct.sum(total, 1, keepdims=True) / N
    for chunk in range(ct.cdiv(N, TILE)):
        part = ct.load(x, (row, chunk), (1, TILE), padding_mode=ZERO)
        ct.store(y, (row, chunk), part - mean)


def launch(x, y, M, N, config):
    return tw.Launch(centre, (M,), (x, y, N, config.TILE))


def centred(x):
    return x - np.mean(x, axis=1, keepdims=True)


task = tw.Task(
    name="centre",
    launch=launch,
    tensors={"x": tw.Tensor(("M", "N"), "float32"), "y": tw.Output(("M", "N"), "float32")},
    reference=centred,
    flops=lambda M, N: 2 * M * N,
    independent=("M",),
    space=tw.Space(constants={"TILE": (128, 256, 512)}, shipped={"TILE": 128}),
    workloads={"rows": {"M": 1024, "N": 512}},
)
