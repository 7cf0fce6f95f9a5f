"""Task files as people write them, for the entries that change schedules and arithmetic. Small, so that they compile
quickly; the workloads are large enough for many blocks an SM."""

from __future__ import annotations

from pathlib import Path

from tilewright.hardware.architectures import Board
from tilewright.inspect.work import count
from tilewright.playbook.base import Entry, KernelFacts
from tilewright.records import Value
from tilewright.source.syntax import Source
from tilewright.testing.entries import H200, loaded


def launch_facts(text: str, folder: Path, on: Board = H200) -> KernelFacts:
    """KernelFacts for entries that ask for the launch alone: nothing is compiled or counted."""
    task = loaded(text, folder)
    return KernelFacts(task, on, task.selected(None), {}, {}, lambda workload: count(task, workload, on))


def applied(entry: Entry, text: str, folder: Path, value: Value, what: str = "", on: Board = H200) -> str:
    """The text with one value at the one site that the entry finds, of those whose words contain ``what``."""
    source = Source("task.py", text)
    sites = [one for one in entry.sites(source, launch_facts(text, folder, on)) if what in one.what]
    assert len(sites) == 1, f"{what!r}: {[str(one) for one in sites]}"
    assert value in sites[0].values
    return entry.apply(source, sites[0], value)


HEAD = """\
import cuda.tile as ct
import numpy as np

import tilewright as tw

"""

SCALE_ROWS = (
    HEAD
    + """
@ct.kernel
def scale_rows(x, weight, y, TILE_N: ct.Constant[int]):
    \"\"\"One block a row.\"\"\"
    # which row
    row = ct.bid(0)  # of x
    factor = ct.load(weight, (0,), (TILE_N,), padding_mode=ct.PaddingMode.ZERO)
    values = ct.load(x, (row, 0), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO)
    ct.store(y, (row, 0), values * factor)


def reference(x, weight):
    return x * weight


def launch(x, weight, y, M, N):
    return tw.Launch(scale_rows, (M,), (x, weight, y, 1 << (N - 1).bit_length()))


task = tw.Task(
    name="scale_rows",
    tensors={
        "x": tw.Tensor(("M", "N"), "float32"),
        "weight": tw.Tensor(("N",), "float32"),
        "y": tw.Output(("M", "N"), "float32"),
    },
    reference=reference,
    launch=launch,
    flops=lambda M, N: M * N,
    independent=("M",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"rows": {"M": 8192, "N": 100}},
)
"""
)

PRODUCT = (
    HEAD
    + """
@ct.kernel
def product(a, b, c, T: ct.Constant[int]):
    row, column = ct.bid(0), ct.bid(1)
    total = ct.zeros((T, T), ct.float32)
    for k in range(ct.cdiv(a.shape[1], T)):
        left = ct.load(a, (row, k), (T, T), padding_mode=ct.PaddingMode.ZERO)
        right = ct.load(b, (k, column), (T, T), padding_mode=ct.PaddingMode.ZERO)
        total = ct.mma(left, right, total)
    ct.store(c, (row, column), total.astype(c.dtype))


def reference(a, b):
    return a @ b


def launch(a, b, c, M, N, config):
    return tw.Launch(product, (-(-M // config.T), -(-N // config.T)), (a, b, c, config.T))


task = tw.Task(
    name="product",
    tensors={
        "a": tw.Tensor(("M", "K"), "DTYPE"),
        "b": tw.Tensor(("K", "N"), "DTYPE"),
        "c": tw.Output(("M", "N"), "DTYPE"),
    },
    reference=reference,
    launch=launch,
    flops=lambda M, N, K: 2 * M * N * K,
    independent=("M", "N"),
    serves=lambda M, N: min(M, N) > 1 or M * N % 8 == 0,
    space=tw.Space(constants={"T": (32,)}, shipped={"T": 32}),
    workloads={"large": {"M": 2000, "N": 1999, "K": 64}},
)
"""
)

HALF_PRODUCT = PRODUCT.replace("DTYPE", "float16")
SINGLE_PRODUCT = PRODUCT.replace("DTYPE", "float32")
TF32_PRODUCT = SINGLE_PRODUCT.replace("    space=", '    precision="tf32",\n    space=')

LINEAR_PRODUCT = (
    HALF_PRODUCT.replace(
        "    row, column = ct.bid(0), ct.bid(1)\n",
        "    columns = ct.cdiv(c.shape[1], T)\n    tile = ct.bid(0)\n"
        "    row = tile // columns\n    column = tile % columns\n",
    )
    .replace("(-(-M // config.T), -(-N // config.T))", "(-(-M // config.T) * -(-N // config.T),)")
)  # fmt: skip

BATCHED_PRODUCT = (
    HALF_PRODUCT.replace("(row, k), (T, T)", "(z, row, k), (1, T, T)")
    .replace("(k, column), (T, T)", "(z, k, column), (1, T, T)")
    .replace("PaddingMode.ZERO)", "PaddingMode.ZERO).reshape((T, T))")
    .replace("row, column = ct.bid(0), ct.bid(1)", "row, column, z = ct.bid(0), ct.bid(1), ct.bid(2)")
    .replace("a.shape[1]", "a.shape[2]")
    .replace("ct.store(c, (row, column), total.astype(c.dtype))",
             "ct.store(c, (z, row, column), total.astype(c.dtype).reshape((1, T, T)))")
    .replace("def launch(a, b, c, M, N, config):", "def launch(a, b, c, B, M, N, config):")
    .replace("-(-N // config.T)), (a,", "-(-N // config.T), B), (a,")
    .replace('tw.Tensor(("', 'tw.Tensor(("B", "').replace('tw.Output(("', 'tw.Output(("B", "')
    .replace("lambda M, N, K: 2 * M", "lambda B, M, N, K: 2 * B * M")
    .replace('independent=("M"', 'independent=("B", "M"')
    .replace('{"M": 2000, "N": 1999, "K": 64}', '{"B": 3, "M": 700, "N": 999, "K": 64}')
)  # fmt: skip

SOFTMAX = (
    HEAD
    + """
@ct.kernel
def softmax(x, y, TILE_N: ct.Constant[int]):
    row = ct.bid(0)
    values = ct.load(x, (row, 0), (1, TILE_N), padding_mode=ct.PaddingMode.NEG_INF)
    part = ct.exp(values - ct.max(values))
    ct.store(y, (row, 0), part / ct.sum(part))


def reference(x):
    part = np.exp(x - x.max(axis=1, keepdims=True))
    return part / part.sum(axis=1, keepdims=True)


def launch(x, y, M, N):
    return tw.Launch(softmax, (M,), (x, y, 1 << (N - 1).bit_length()))


task = tw.Task(
    name="softmax",
    tensors={"x": tw.Tensor(("M", "N"), "float32"), "y": tw.Output(("M", "N"), "float32")},
    reference=reference,
    launch=launch,
    flops=lambda M, N: 5 * M * N,
    independent=("M",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"rows": {"M": 64, "N": 100}},
)
"""
)

NORM = (
    HEAD
    + """
@ct.kernel
def norm(x, y, ROWS: ct.Constant[int], TILE_N: ct.Constant[int], COLUMNS: ct.Constant[int]):
    for i in range(ROWS):  # a few rows a block
        row = ct.bid(0) * ROWS + i
        values = ct.load(x, (row, 0), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO)
        mean_square = ct.sum(values * values, axis=1, keepdims=True) / COLUMNS
        root = ct.sqrt(mean_square + 1e-6)
        ct.store(y, (row, 0), values / root)


def reference(x):
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6)


def launch(x, y, M, N, config):
    return tw.Launch(norm, (-(-M // config.ROWS),), (x, y, config.ROWS, 1 << (N - 1).bit_length(), N))


task = tw.Task(
    name="norm",
    tensors={"x": tw.Tensor(("M", "N"), "float32"), "y": tw.Output(("M", "N"), "float32")},
    reference=reference,
    launch=launch,
    flops=lambda M, N: 5 * M * N,
    independent=("M",),
    space=tw.Space(constants={"ROWS": (4,)}, shipped={"ROWS": 4}),
    workloads={"rows": {"M": 1024, "N": 100}},
)
"""
)
