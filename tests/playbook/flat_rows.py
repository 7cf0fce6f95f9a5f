"""Layer norms of flat arrays, as libraries write them: a task file for the tests of row views and of `row_streams`."""

FLAT = '''"""A task."""

import cuda.tile as ct
import numpy as np
import tilewright as tw


@ct.kernel
def normed(
    x, w, y, mean, STRIDE: ct.Constant[int], STEP: ct.Constant[int], C: ct.Constant[int], W: ct.Constant[int],
    TILE: ct.Constant[int], BEYOND: ct.Constant[int],
):
    """Goes over each row three times."""
    row = ct.bid(0)
    first = ct.bid(1) * W
    total = ct.zeros((TILE,), dtype=ct.float32)
    for start in range(0, C, TILE):
        columns = start + ct.arange(TILE, dtype=ct.int32)
        inside = columns < C
        if W == 1:
            values = ct.astype(ct.gather(x, row * STRIDE + columns * STEP, padding_value=0), ct.float32)
            values = ct.where(inside, values, ct.zeros((TILE,), dtype=ct.float32))
            total = total + values
        else:
            total = total + first
    average = ct.sum(total, axis=0) / C
    ct.scatter(mean, ct.full((1,), row * W, dtype=ct.int32), ct.reshape(average, (1,)))
    squares = ct.zeros((TILE,), dtype=ct.float32)
    for start in range(0, C, TILE):
        columns = start + ct.arange(TILE, dtype=ct.int32)
        inside = columns < C
        if W == 1:
            values = ct.astype(ct.gather(x, row * STRIDE + columns * STEP, padding_value=0), ct.float32)
            centred = ct.where(inside, values - average, ct.zeros((TILE,), dtype=ct.float32))
            squares = squares + centred * centred
    scale = ct.rsqrt(ct.sum(squares, axis=0) / C + 1e-5)
    for start in range(0, C, TILE):
        columns = start + ct.arange(TILE, dtype=ct.int32)
        inside = columns < C
        if W == 1:
            values = ct.astype(ct.gather(x, row * STRIDE + columns * STEP, padding_value=0), ct.float32)
            weight = ct.gather(w, columns, padding_value=0)
            result = (values - average) * scale * weight
            place = row * STRIDE + columns * STEP
            place = ct.where(inside, place, ct.full((TILE,), BEYOND, dtype=ct.int32))
            ct.scatter(y, place, ct.astype(result, y.dtype))


def reference(x, w, M, N):
    rows = x.reshape(M, N)
    average = rows.mean(axis=1, keepdims=True)
    deviation = np.sqrt(((rows - average) ** 2).mean(axis=1, keepdims=True) + 1e-5)
    return ((rows - average) / deviation * w).reshape(-1), average[:, 0]


def launch(x, w, y, mean, M, N, config):
    return tw.Launch(
        normed, (M, 1), (x, w, y, mean, N, 1, N, 1, 1 << (N - 1).bit_length(), M * N)
    )


SHAPES = {
    "x": tw.Tensor(("M * N",), "float32"), "w": tw.Tensor(("N",), "float32"),
    "y": tw.Output(("M * N",), "float32"), "mean": tw.Output(("M",), "float32"),
}
task = tw.Task(
    name="normed",
    tensors=SHAPES,
    reference=reference,
    launch=launch,
    flops=lambda M, N: 8 * M * N,
    space=tw.Space(hints={"occupancy": (None, 2)}, shipped={"occupancy": None}),
    workloads={"ragged": {"M": 601, "N": 48}, "even": {"M": 300, "N": 64}},
)
'''


def conditions_on(length: str, arrays: str = "xy") -> str:
    """The tests of the launches for which views of rows have the elements of these flat arrays."""
    return " and ".join(f"{each}.strides[0] == 1 and {each}.shape[0] % {length} == 0" for each in arrays)
