"""y = 2x, by way of a loop whose length is a number in this file: a kernel that can be made 3 % faster at will.

The loop's value runs to a fixed point, 0.5, which it has long reached: any TRIPS above 100 gives the same output.
"""

import cuda.tile as ct

import tilewright as tw

TILE = 1024
TRIPS = 2000


@ct.kernel
def work_loop(x, y, TRIPS: ct.Constant[int]):
    tile = ct.load(x, (ct.bid(0),), (TILE,))
    value = tile * 0.0 + 3.0
    for _ in range(TRIPS):
        value = value * 0.5 + 0.25
    ct.store(y, (ct.bid(0),), tile * (value * 4.0))


def launch(x, y, N, config):
    return tw.Launch(work_loop, (N // TILE,), (x, y, TRIPS))


task = tw.Task(
    name="work_loop",
    tensors={"x": tw.Tensor(("N",), "float32"), "y": tw.Output(("N",), "float32")},
    reference=lambda x: 2 * x,
    trusted=lambda x: 2 * x,
    launch=launch,
    flops=lambda N: N,
    independent=("N",),
    space=tw.Space(constants={"TILE": (TILE,)}, shipped={"TILE": TILE}),
    workloads={"short": {"N": 128 * TILE}, "long": {"N": 32 * 132 * TILE}},
)
