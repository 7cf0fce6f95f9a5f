"""Adjusts the scores of a catalogue: popular items gain a little, items already bought are taken out."""

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # no Triton here: the torch version below does it
    triton = None

TAKEN_OUT = -1.0e30

if triton is not None:

    @triton.jit
    def adjust_kernel(scores, popularity, bought, out, items, history, boost, taken_out, BLOCK: tl.constexpr):
        user = tl.program_id(1).to(tl.int64)
        columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = columns < items
        score = tl.load(scores + user * items + columns, mask=inside, other=0.0)
        score += boost * tl.log(1.0 + tl.load(popularity + columns, mask=inside, other=0.0))
        for i in range(history):
            item = tl.load(bought + user * history + i)
            score = tl.where(columns == item, taken_out, score)
        tl.store(out + user * items + columns, score, mask=inside)


def adjust(scores: torch.Tensor, popularity: torch.Tensor, bought: torch.Tensor, boost: float) -> torch.Tensor:
    """`scores` (users, items) adjusted; `bought` (users, history) holds item numbers, -1 where there is none."""
    users, items = scores.shape
    if triton is None or not scores.is_cuda:
        out = torch.cat([scores + boost * torch.log1p(popularity), scores.new_zeros(users, 1)], dim=1)
        return out.scatter_(1, torch.where(bought < 0, items, bought), TAKEN_OUT)[:, :items]
    out = torch.empty_like(scores)
    BLOCK = 32
    grid = (triton.cdiv(items, BLOCK), users)
    adjust_kernel[grid](
        scores, popularity, bought, out, items, bought.shape[1], boost, TAKEN_OUT, BLOCK=BLOCK, num_warps=8
    )
    return out
