"""Softmax over the rows of a matrix in Triton, one program a row.

    tilewright inspect examples/triton/softmax.py --arch sm_90,sm_100
    tilewright check examples/triton/softmax.py
    tilewright tune examples/triton/softmax.py

The hint ``route`` says by which compiler: ``ptx`` is Triton's own, ``tileir`` translates the kernel to CUDA Tile IR.
Needs the extra: pip install 'tilewright[triton]'
"""

import numpy as np
import triton
import triton.language as tl

import tilewright as tw


@triton.jit
def softmax(out, x, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # rows × stride may be beyond 32 bits
    place = tl.arange(0, BLOCK)
    inside = place < columns
    values = tl.load(x + row * stride + place, mask=inside, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * stride + place, powers / tl.sum(powers, 0), mask=inside)


def reference(x):
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def launch(x, out, M, N, config):
    # BLOCK is a knob: the smallest power of two that holds a row, times `config.ROOM`
    block = triton.next_power_of_2(N) * config.ROOM
    return tw.Launch(softmax, (M,), (out, x, N, N, block))


task = tw.Task(
    name="triton_softmax",
    tensors={"x": tw.Tensor(("M", "N"), "bfloat16"), "out": tw.Output(("M", "N"), "bfloat16")},
    reference=reference,
    launch=launch,
    flops=lambda M, N: 5 * M * N,
    space=tw.Space(
        constants={"ROOM": (1,)},
        hints={"route": ("ptx", "tileir"), "num_warps": (None, 4, 8, 16), "occupancy": (None, 2, 4)},
        shipped={"ROOM": 1, "route": "ptx", "num_warps": None, "occupancy": None},
        where=[
            lambda route, num_warps, occupancy: occupancy is None if route == "ptx" else num_warps is None,
        ],
    ),
    workloads={"odd": {"M": 1024, "N": 3000}, "large": {"M": 16384, "N": 4096}},
    independent=("M",),
)
