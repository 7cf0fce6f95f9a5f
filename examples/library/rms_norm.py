"""A library operation on a tuned kernel: y = x / sqrt(mean(x²) + ε) · weight over the rows of a matrix.

The first call for a shape finds the configuration and stores it. Every later call, also in other processes, is one
look-up and the launch.
"""

import cuda.tile as ct
import torch

import tilewright as tw


@ct.kernel
def rms_norm_kernel(x, weight, y, eps, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int]):
    scale = ct.load(weight, (0,), (TILE_N,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    for group in range(ct.bid(0), ct.cdiv(x.shape[0], TILE_M), ct.num_blocks(0)):
        rows = ct.load(x, (group, 0), (TILE_M, TILE_N), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        mean_square = ct.sum(rows * rows, axis=1, keepdims=True) / x.shape[1]
        ct.store(y, (group, 0), (rows * ct.rsqrt(mean_square + eps) * scale).astype(y.dtype))


launch_rms_norm = tw.tuned(
    rms_norm_kernel,
    # The configurations to try, and the shipped one, which runs where nothing was tuned.
    space=tw.Space(
        constants={"TILE_M": (1, 2, 4, 8), "BLOCKS_PER_SM": (1, 2, 4, 8)},
        hints={"occupancy": (None, 2, 4), "num_worker_warps": (None, 8)},
        shipped={"TILE_M": 2, "BLOCKS_PER_SM": 2, "occupancy": None, "num_worker_warps": None},
        where=(lambda TILE_M, columns: TILE_M * columns <= 16384,),
    ),
    dims=lambda call: {"columns": call.x.shape[1]},
    grid=lambda call, config: (
        min(-(-call.x.shape[0] // config.TILE_M), call.hardware.sms * config.BLOCKS_PER_SM),
    ),
    # TILE_M comes from the configuration, TILE_N is computed from the call, the rest are arguments of the call.
    arguments={"TILE_N": lambda call, config: 1 << (call.x.shape[1] - 1).bit_length()},
    outputs=("y",),
    unkeyed=("y",),  # made below like x, so it need not be examined
    # Batch sizes up to the same power of two share a winner, which is checked once on each size.
    buckets={"x": (tw.powers_of_two, None)},
)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    y = torch.empty_like(x)
    launch_rms_norm(torch.cuda.current_stream(), x, weight, y, eps)
    return y


if __name__ == "__main__":
    rows, weight = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((4096, 4096), (4096,)))
    torch.testing.assert_close(rms_norm(rows, weight), torch.nn.functional.rms_norm(rows, (4096,), weight, 1e-6))
    y = torch.empty_like(rows)
    print(launch_rms_norm.tuned.chosen(rows, weight, y, 1e-6))
