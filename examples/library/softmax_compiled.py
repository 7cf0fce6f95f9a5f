"""A tuned kernel inside `torch.compile`: softmax over rows as a custom operation.

torch.compile does not look into a custom operation: it asks the fake implementation for the shape, and calls the
real one when the compiled graph runs. So the first run tunes the kernel, on real arrays. While torch captures a CUDA
graph (mode="reduce-overhead"), nothing is tuned; the run before the capture tunes.
"""

import cuda.tile as ct
import torch

import tilewright as tw


@ct.kernel
def softmax_kernel(x, y, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int]):
    at = (ct.bid(0), 0)
    values = ct.load(x, at, (TILE_M, TILE_N), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
    part = ct.exp(values - ct.max(values, axis=1, keepdims=True))
    ct.store(y, at, (part / ct.sum(part, axis=1, keepdims=True)).astype(y.dtype))


launch_softmax = tw.tuned(
    softmax_kernel,
    space=tw.Space(
        constants={"TILE_M": (1, 2, 4)},
        hints={"occupancy": (None, 2, 4), "num_worker_warps": (None, 8)},
        shipped={"TILE_M": 1, "occupancy": None, "num_worker_warps": None},
        where=(lambda TILE_M, columns: TILE_M * columns <= 16384,),
    ),
    dims=lambda call: {"columns": call.x.shape[1]},
    grid=lambda call, config: (-(-call.x.shape[0] // config.TILE_M),),
    arguments={"TILE_N": lambda call, config: 1 << (call.x.shape[1] - 1).bit_length()},
    outputs=("y",),
)


@torch.library.custom_op("tilewright_example::softmax", mutates_args=())
def softmax(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    launch_softmax(torch.cuda.current_stream(), x, y)
    return y


@softmax.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def backward(ctx, grad):
    (y,) = ctx.saved_tensors
    return y * (grad - (grad * y).sum(1, keepdim=True))


softmax.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output))


@torch.compile(fullgraph=True)
def attention_weights(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return softmax((q @ k.T) * q.shape[1] ** -0.5)


if __name__ == "__main__":
    q, k = (torch.randn(1024, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    torch.testing.assert_close(attention_weights(q, k), torch.softmax((q @ k.T) * 64**-0.5, 1))
    x = q @ k.T
    print(launch_softmax.tuned.chosen(x, torch.empty_like(x)))
