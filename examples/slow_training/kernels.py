"""Softmax over the rows of a matrix: a plain cuTile kernel on a GPU, torch on a CPU."""

import cuda.tile as ct
import torch


@ct.kernel
def softmax(x, y, TILE_N: ct.Constant[int]):
    row = ct.bid(0)
    values = ct.load(x, (row, 0), (1, TILE_N), padding_mode=ct.PaddingMode.NEG_INF)
    part = ct.exp(values - ct.max(values))
    ct.store(y, (row, 0), part / ct.sum(part))


def softmax_rows(x: torch.Tensor) -> torch.Tensor:
    """The softmax of each row of ``x``, shape (rows, columns), float32."""
    if not x.is_cuda:
        return torch.softmax(x, dim=1)
    rows, columns = x.shape
    y = torch.empty_like(x)
    width = 1 << (columns - 1).bit_length()
    ct.launch(torch.cuda.current_stream(), (rows,), softmax, (x, y, width))
    return y


class CrossEntropy(torch.autograd.Function):
    """Mean of −log(softmax(scores)[label]): the probabilities are stored, and read by what follows."""

    @staticmethod
    def forward(ctx, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        probabilities = softmax_rows(scores)
        ctx.save_for_backward(probabilities, labels)
        return -torch.log(probabilities.gather(1, labels[:, None]) + 1e-20).mean()

    @staticmethod
    def backward(ctx, given: torch.Tensor) -> tuple[torch.Tensor, None]:
        probabilities, labels = ctx.saved_tensors
        gradient = probabilities.clone()
        gradient[torch.arange(len(labels), device=labels.device), labels] -= 1.0
        return gradient * (given / len(labels)), None
