"""Attention written in random combinations of forms: each is rewritten, and outputs and gradients are equal."""

from __future__ import annotations

import random

import pytest
from tests.program.changes.attention_programs import HEAD, SHAPES
from tests.program.changes.executing import outputs, read, rewritten, same

from tilewright.program.changes.scaled_dot_product_attention import CHANGE

KEYS = ("k.transpose(-2, -1)", "k.mT", "k.transpose(2, 3)", "k.permute(0, 1, 3, 2)", "torch.transpose(k, -1, -2)")
PRODUCTS = ("q @ {k}", "torch.matmul(q, {k})", "q.matmul({k})", "(q * 1.5) @ {k}", "einsum")
SCALES = ("", "s = s / math.sqrt(q.size(-1))", "s = s * q.shape[-1] ** -0.5", "s *= 0.25", "s = torch.mul(s, 0.5)",
          "s = s.div(d ** 0.5)", "s = 2 * s", "s.mul_(0.5)")  # fmt: skip
MASKS = (
    "",
    's = s.masked_fill(torch.tril(torch.ones(n, n)) == 0, float("-inf"))',
    "s = s.masked_fill(torch.ones(n, n).triu(1).bool(), torch.finfo(s.dtype).min)",
    "s = s + torch.full((n, n), -math.inf).triu(diagonal=1)",
    "s = torch.where(torch.ones(n, n).tril(1).bool(), s, -1e9)",
    's.masked_fill_(torch.ones(n, n).triu(2) == 1, float("-inf"))',
    "if d > 2:\n    s = s.masked_fill(~torch.ones(n, n).tril(-0).bool(), -1e30)",
    "s = s - 1e9 * (1 - torch.ones(n, n).tril())",
    "s += 0.1 * torch.arange(n)[None, :]",
    's = (s + torch.eye(n)).masked_fill(torch.ones(n, n).triu(1) > 0, float("-inf"))',
    "for_all = torch.tril(torch.ones(n, n, dtype=torch.bool))\ns = s.masked_fill(~for_all[None, None], -1e9)",
)
SOFTMAXES = ("p = F.softmax(s, dim=-1)", "p = s.softmax(-1)", "p = torch.softmax(s, -1).to(v.dtype)",
             "p = nn.Softmax(dim=-1)(s)", "s = s.softmax(dim=-1)\np = s", "p = F.dropout(F.softmax(s, -1), 0.0)",
             "p = F.dropout(s.softmax(-1), p=0.5, training=False)")  # fmt: skip
ENDS = ("return p @ v", "return torch.matmul(p, v)", "o = p.matmul(v)\nreturn o",
        'return torch.einsum("bhij,bhje->bhie", p, v)', "y = p @ v  # mixed\ny = y.transpose(1, 2)\nreturn y",
        'return torch.einsum("bhij,bhje->bihe", p, v)')  # fmt: skip


def program(seed: int) -> str:
    draw = random.Random(seed)
    form = draw.choice(PRODUCTS)
    product = 'torch.einsum("bhid,bhjd->bhij", q, k)' if form == "einsum" else form.format(k=draw.choice(KEYS))
    between = draw.choice(("", "w = v.mean()", "# nothing\n"))
    lines = [f"s = {product}", between, *(draw.choice(each) for each in (SCALES, MASKS, SOFTMAXES, ENDS))]
    body = "\n".join(line for line in lines if line).split("\n")
    return f"{HEAD}\ndef attention(q, k, v):\n    n, d = q.shape[-2], q.shape[-1]\n" + "".join(
        f"    {x}\n" for x in body
    )


@pytest.mark.parametrize("seed", range(60))
def test_a_random_form_is_equal(seed: int) -> None:
    text = program(seed)
    new = rewritten(CHANGE, text)
    assert not CHANGE.sites(read(new))
    before, after = (outputs(each, "attention(q, k, v)", SHAPES) for each in (text, new))
    assert same(before, after), new
