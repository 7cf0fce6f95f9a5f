"""Softmax over the rows of a matrix, once in cuTile and once in Triton: one race, and one winner for each workload.

    tilewright inspect examples/several_languages.py --arch sm_90
    tilewright check examples/several_languages.py
    tilewright tune examples/several_languages.py --into configs

The implementations have a launch and a space each, and all else in common. The first one ships today. A program calls
the winner for its shapes: softmax = tw.Dispatcher("several_languages.py", "configs/softmax_in_several_languages.json"),
then softmax(stream, x=x, out=out). Needs the extra: pip install 'tilewright[triton]'
"""

import cuda.tile as ct
import numpy as np
import triton
import triton.language as tl

import tilewright as tw


@ct.kernel
def softmax_tile(x, out, TILE_N: ct.Constant[int]):
    row = ct.bid(0)
    values = ct.load(x, (row, 0), (1, TILE_N), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
    powers = ct.exp(values - ct.max(values, 1, keepdims=True))
    ct.store(out, (row, 0), (powers / ct.sum(powers, 1, keepdims=True)).astype(out.dtype))


@triton.jit
def softmax_rows(out, x, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # rows × columns may be beyond 32 bits
    place = tl.arange(0, BLOCK)
    inside = place < columns
    values = tl.load(x + row * columns + place, mask=inside, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + place, powers / tl.sum(powers, 0), mask=inside)


def launch_tile(x, out, M, N):
    return tw.Launch(softmax_tile, (M,), (x, out, 1 << (N - 1).bit_length()))


def launch_triton(x, out, M, N):
    return tw.Launch(softmax_rows, (M,), (out, x, N, triton.next_power_of_2(N)))


def reference(x):
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


task = tw.Task(
    name="softmax_in_several_languages",
    tensors={"x": tw.Tensor(("M", "N"), "bfloat16"), "out": tw.Output(("M", "N"), "bfloat16")},
    reference=reference,
    flops=lambda M, N: 5 * M * N,
    implementations={
        "cutile": tw.Implementation(
            launch=launch_tile,
            space=tw.Space(
                hints={"occupancy": (None, 2, 4, 8), "num_worker_warps": (None, 8)},
                shipped={"occupancy": None, "num_worker_warps": None},
            ),
        ),
        "triton_ptx": tw.Implementation(
            launch=launch_triton,
            space=tw.Space(
                hints={"route": ("ptx",), "num_warps": (4, 8, 16)}, shipped={"route": "ptx", "num_warps": 8}
            ),
        ),
        "triton_tileir": tw.Implementation(
            launch=launch_triton,
            space=tw.Space(
                hints={"route": ("tileir",), "occupancy": (None, 2, 4)}, shipped={"route": "tileir", "occupancy": None}
            ),
        ),
    },
    workloads={"odd": {"M": 1024, "N": 3000}, "large": {"M": 16384, "N": 4096}},
    independent=("M",),
)
