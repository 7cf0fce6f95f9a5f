"""Task files with loops over the chunks of a row, and with blocks of unequal length."""

from __future__ import annotations

from tests.playbook.plain import HEAD

TWICE = (
    HEAD
    + """
@ct.kernel
def centred(x, weight, y, TILE_N: ct.Constant[int], COLUMNS: ct.Constant[int]):
    row = ct.bid(0)
    total = ct.zeros((1, TILE_N), ct.float32)
    # the mean
    for step in range(ct.cdiv(COLUMNS, TILE_N)):  # in chunks
        values = ct.load(x, (row, step), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO)
        total = total + values
    mean = ct.sum(total) / COLUMNS
    for n in range(0, ct.cdiv(COLUMNS, TILE_N)):
        again = ct.load(x, (row, n), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO)
        scale = ct.load(weight, (n,), (TILE_N,), padding_mode=ct.PaddingMode.ZERO)
        ct.store(y, (row, n), (again - mean) * scale)


def reference(x, weight):
    return (x - x.mean(axis=1, keepdims=True)) * weight


def launch(x, weight, y, M, N, config):
    return tw.Launch(centred, (M,), (x, weight, y, config.TILE_N, N))


task = tw.Task(
    name="centred",
    tensors={
        "x": tw.Tensor(("M", "N"), "float32"),
        "weight": tw.Tensor(("N",), "float32"),
        "y": tw.Output(("M", "N"), "float32"),
    },
    reference=reference,
    launch=launch,
    flops=lambda M, N: 3 * M * N,
    independent=("M",),
    space=tw.Space(constants={"TILE_N": (64,)}, shipped={"TILE_N": 64}),
    workloads={"rows": {"M": 2048, "N": 500}},
)
"""
)
LONG = TWICE.replace('"M": 2048, "N": 500', '"M": 64, "N": 70000')
ONCE = TWICE.replace("again = ct.load(x, (row, n)", "again = ct.load(y, (row, n)")
LEAVES = TWICE.replace(
    "        total = total + values\n", "        total = total + values\n        if step > 7:\n            break\n"
)

CAUSAL = (
    (
        HEAD
        + """
@ct.kernel
def sums(x, y, T: ct.Constant[int]):
    row, column = ct.bid(0), ct.bid(1)
    total = ct.zeros((T, T), ct.float32)
    for n in range(row + 1):
        total = total + ct.load(x, (n, column), (T, T), padding_mode=ct.PaddingMode.ZERO)
    ct.store(y, (row, column), total)


def reference(x):
    blocks = [x[: 16 * n + 16].reshape(-1, 16, x.shape[1]).sum(axis=0) for n in range(x.shape[0] // 16)]
    return np.concatenate(blocks)


def launch(x, y, K, N):
    return tw.Launch(sums, (K, -(-N // 16)), (x, y, 16))


task = tw.Task(
    name="sums",
    tensors={"x": tw.Tensor((512, "N"), "float32"), "y": tw.Output((512, "N"), "float32")},
    reference=reference,
    launch=launch,
    flops=lambda N: 512 * 17 * N,
    independent=("N",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"square": {"N": 512}},
)
"""
    )
    .replace("def launch(x, y, K, N)", "def launch(x, y, N)")
    .replace("(K, -(-N // 16))", "(32, -(-N // 16))")
)
EQUAL = CAUSAL.replace("range(row + 1)", "range(3)")
SHRINKING = CAUSAL.replace("range(row + 1)", "range(row, 32)")
