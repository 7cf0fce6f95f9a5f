"""Forward and backward of y = silu(gate) · up as a `torch.autograd.Function`, with one tuned kernel for each.

The first `backward()` tunes the backward kernel, on the gradients that it gets.
"""

import cuda.tile as ct
import torch

import tilewright as tw

ZERO = ct.PaddingMode.ZERO


@ct.kernel
def swiglu_forward(gate, up, y, TILE_N: ct.Constant[int]):
    at = (ct.bid(1), ct.bid(0))
    z = ct.load(gate, at, (1, TILE_N), padding_mode=ZERO).astype(ct.float32)
    factor = ct.load(up, at, (1, TILE_N), padding_mode=ZERO).astype(ct.float32)
    ct.store(y, at, (z / (1.0 + ct.exp(-z)) * factor).astype(y.dtype))


@ct.kernel
def swiglu_backward(grad, gate, up, grad_gate, grad_up, TILE_N: ct.Constant[int]):
    at = (ct.bid(1), ct.bid(0))
    g = ct.load(grad, at, (1, TILE_N), padding_mode=ZERO).astype(ct.float32)
    z = ct.load(gate, at, (1, TILE_N), padding_mode=ZERO).astype(ct.float32)
    factor = ct.load(up, at, (1, TILE_N), padding_mode=ZERO).astype(ct.float32)
    sigmoid = 1.0 / (1.0 + ct.exp(-z))
    ct.store(grad_up, at, (g * z * sigmoid).astype(grad_up.dtype))
    ct.store(grad_gate, at, (g * factor * sigmoid * (1.0 + z * (1.0 - sigmoid))).astype(grad_gate.dtype))


SPACE = tw.Space(
    constants={"TILE_N": (512, 1024, 2048, 4096)},
    hints={"occupancy": (None, 8), "num_worker_warps": (None, 8)},
    shipped={"TILE_N": 1024, "occupancy": None, "num_worker_warps": None},
)


def blocks(call, config):
    rows, columns = call.gate.shape
    return -(-columns // config.TILE_N), rows


forward = tw.tuned(swiglu_forward, space=SPACE, grid=blocks, outputs=("y",))
backward = tw.tuned(swiglu_backward, space=SPACE, grid=blocks, outputs=("grad_gate", "grad_up"))


class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        y = torch.empty_like(gate)
        forward(torch.cuda.current_stream(), gate, up, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        gate, up = ctx.saved_tensors
        grad_gate, grad_up = torch.empty_like(gate), torch.empty_like(up)
        backward(torch.cuda.current_stream(), grad.contiguous(), gate, up, grad_gate, grad_up)
        return grad_gate, grad_up


if __name__ == "__main__":
    gate, up = (torch.randn(2048, 4096, device="cuda", requires_grad=True) for _ in range(2))
    ours = torch.autograd.grad(SwiGLU.apply(gate, up).square().sum(), (gate, up))
    theirs = torch.autograd.grad((torch.nn.functional.silu(gate) * up).square().sum(), (gate, up))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    print(backward.tuned.chosen(up.detach(), gate, up, *map(torch.empty_like, (gate, up))))
