"""One step of Adam in float32, elementwise over vectors: four inputs, three outputs."""

import cuda.tile as ct
import numpy as np

import tilewright as tw

RATE, BETA_1, BETA_2, EPS = 1e-3, 0.9, 0.999, 1e-8


@ct.kernel
def adam_step(weight, slope, mean, square, new_weight, new_mean, new_square, TILE: ct.Constant[int]):
    place = ct.bid(0)
    ZERO = ct.PaddingMode.ZERO
    step = ct.load(slope, (place,), (TILE,), padding_mode=ZERO)
    first = BETA_1 * ct.load(mean, (place,), (TILE,), padding_mode=ZERO) + (1 - BETA_1) * step
    second = BETA_2 * ct.load(square, (place,), (TILE,), padding_mode=ZERO) + (1 - BETA_2) * step * step
    ct.store(new_mean, (place,), first)
    ct.store(new_square, (place,), second)
    before = ct.load(weight, (place,), (TILE,), padding_mode=ZERO)
    ct.store(new_weight, (place,), before - RATE * first / (ct.sqrt(second) + EPS))


def reference(weight, slope, mean, square):
    first = BETA_1 * mean + (1 - BETA_1) * slope
    second = BETA_2 * square + (1 - BETA_2) * slope * slope
    return weight - RATE * first / (np.sqrt(second) + EPS), first, second


def launch(weight, slope, mean, square, new_weight, new_mean, new_square, N, config):
    arrays = (weight, slope, mean, square, new_weight, new_mean, new_square)
    return tw.Launch(adam_step, (-(-N // config.TILE),), (*arrays, config.TILE))


task = tw.Task(
    name="adam_step",
    tensors={
        **{name: tw.Tensor(("N",), "float32") for name in ("weight", "slope", "mean")},
        "square": tw.Tensor(("N",), "float32", tw.uniform(0.01, 1.0)),
        **{name: tw.Output(("N",), "float32") for name in ("new_weight", "new_mean", "new_square")},
    },
    reference=reference,
    launch=launch,
    flops=lambda N: 14 * N,
    independent=("N",),
    space=tw.Space(
        constants={"TILE": (256, 512, 1024, 2048, 4096)},
        hints={"occupancy": (None, 4, 8), "num_worker_warps": (None, 8)},
        shipped={"TILE": 1024, "occupancy": None, "num_worker_warps": None},
    ),
    workloads={"16M": {"N": 1 << 24}, "1M": {"N": 1 << 20}},
)
