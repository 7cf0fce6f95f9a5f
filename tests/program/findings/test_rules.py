"""Each rule over real operations: a step that has the problem, and a step that looks like it and is as it should be."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.program.findings.recorded_here import marked, recorded, rules_at

from tilewright.program.findings.finding import finding_rules

torch = pytest.importorskip("torch")
F = torch.nn.functional

X = torch.randn(64, 32)
Q, K, V = (torch.randn(2, 4, 32, 16) for _ in range(3))
LABELS = torch.randint(0, 10, (64,))
LAYER = torch.nn.Linear(32, 10)
MODEL = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(6)))
TABLE = torch.nn.Parameter(torch.randn(40, 8))


# Attention ------------------------------------------------------------------------------------------


def attention_by_hand() -> object:
    q, k, v = (each * torch.rand(1) for each in (Q, K, V))
    scores = q @ k.transpose(-2, -1) / math.sqrt(16)  # here
    scores = scores.masked_fill(torch.rand(32, 32) < 0.1, -1e9)
    return F.softmax(scores, dim=-1) @ v  # here


def a_softmax_of_a_layer() -> object:
    """A gate: the product before the softmax is one with weights."""
    return torch.softmax(LAYER(torch.randn(64, 32)), dim=-1) @ torch.randn(10, 8)


def attention_of_torch() -> object:
    heads = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    x = torch.randn(2, 16, 32)
    return heads(x, x, x, need_weights=True)


# Functions ------------------------------------------------------------------------------------------


def rms_norm_by_hand() -> object:
    x = torch.randn(64, 32)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)  # here


def layer_norm_by_hand() -> object:
    x = torch.randn(64, 32)
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)  # here
    return (x - mean) / torch.sqrt(var + 1e-5)  # here


def gelu_by_hand() -> object:
    x = torch.randn(64, 32)
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))  # here


def gelu_of_products() -> object:
    x = torch.randn(64, 32)
    return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.044715 * x * x * x)))  # here


def silu_by_hand() -> object:
    x = torch.randn(64, 32)
    return x * torch.sigmoid(x)  # here


def softmax_by_hand() -> object:
    x = torch.randn(64, 32)
    return torch.exp(x) / torch.exp(x).sum(dim=1, keepdim=True)  # here


def cross_entropy_by_hand() -> object:
    logits = LAYER(torch.randn(64, 32))
    ones = F.one_hot(LABELS, 10).float()
    return -(ones * F.log_softmax(logits, dim=1)).sum(dim=1).mean()  # here


def cosine_by_hand() -> object:
    a, b = torch.randn(64, 32), torch.randn(64, 32)
    return (a * b).sum(1) / (torch.sqrt((a**2).sum(1)) * torch.sqrt((b**2).sum(1)))  # here


def functions_of_torch() -> object:
    x = torch.randn(64, 32)
    x = F.layer_norm(F.silu(F.gelu(x)), (32,))
    return F.cross_entropy(LAYER(x), LABELS)


def a_gate() -> object:
    """The sigmoid of one value times another value."""
    return torch.sigmoid(torch.randn(64, 32)) * torch.randn(64, 32)


# Products -------------------------------------------------------------------------------------------


def rows_by_product() -> object:
    index = torch.randint(0, 40, (256,))
    return F.one_hot(index, 40).float() @ TABLE  # here


def rows_by_index() -> object:
    return TABLE[torch.randint(0, 40, (256,))] @ torch.randn(8, 4)


def all_pairs() -> object:
    a, b = torch.randn(64, 32), torch.randn(64, 32)
    return (a.unsqueeze(1) * b.unsqueeze(0)).sum(-1)  # here


def rows_times_rows() -> object:
    return (torch.randn(64, 32) * torch.randn(64, 32)).sum(-1)


def best_by_sort() -> object:
    values, _ = torch.sort(torch.randn(8, 1000), descending=True)  # here
    return values[:, :5] + 1


def median_by_sort() -> object:
    values, _ = torch.sort(torch.randn(8, 1000))
    return values + 1


# Loops ----------------------------------------------------------------------------------------------


def rows_one_by_one() -> object:
    x, rows = torch.randn(64, 32), []
    for n in range(16):
        rows.append(torch.tanh(x[n]).mean())  # here
    return torch.stack(rows)


def layers_one_by_one() -> object:
    x = torch.randn(64, 32)
    for layer in MODEL:
        x = torch.relu(layer(x))
    return x


def chains_one_by_one() -> object:
    """Each chain needs its own earlier values, and no other chain."""
    x, sums = torch.randn(8, 16), []
    for row in range(8):
        last = torch.zeros(4)
        for n in range(6):
            last = torch.tanh(last * 0.9 + x[row, n])  # here
        sums.append(last)
    return torch.stack(sums)


def penalty_by_hand() -> object:
    total: Any = 0.0
    for each in LARGE.parameters():
        total = total + (each**2).sum()  # here
    return MODEL(X).sum() + total


LARGE = torch.nn.Sequential(*(torch.nn.Linear(8 + n, 9 + n) for n in range(6)))


def penalty_at_once() -> object:
    return torch.stack(torch._foreach_norm(list(LARGE.parameters()))).sum()


def cell_by_hand() -> object:
    h = torch.zeros(16, 32)
    for _ in range(12):
        h = torch.sigmoid(MODEL[0](h)) * torch.tanh(MODEL[1](h))  # here
    return h


def cell_of_torch() -> object:
    return torch.nn.LSTM(32, 32)(torch.randn(12, 16, 32))


def grown() -> object:
    found = torch.randn(1, 8)
    for _ in range(6):
        found = torch.cat([found, torch.randn(1, 8)])  # here
    return found


def joined() -> object:
    return [torch.cat([torch.randn(4, 8), torch.randn(4, 8)]) for _ in range(6)]


# Host -----------------------------------------------------------------------------------------------


def read_by_the_host() -> object:
    loss = LAYER(torch.randn(64, 32, device="cpu")).sum()
    return loss.item()  # here


def drawn_on_the_host() -> object:
    """A number that the host draws for itself."""
    return torch.randint(0, 10, (1,)).item()


def rows_of_unknown_number() -> object:
    x = torch.randn(64, 32).to("cpu")
    rows = torch.nonzero(x[:, 0] > 0)  # here
    return x[rows.squeeze(1)] * 2


def mask_of_fixed_size() -> object:
    x = torch.randn(64, 32).to("cpu")
    return torch.where(x > 0, x, 0.0) * 2


def range_made_on_the_host() -> object:
    positions = torch.arange(int(torch.randint(5, 90, (1,)))).to("cpu")  # here
    return positions * 2


def batch_copied() -> object:
    return X[torch.randint(0, 64, (8,))].to("cpu") * 2


def table_in_each_step() -> object:
    steps = torch.arange(32).float()
    table = torch.outer(steps, 1.0 / steps.add(1.0)).cos()  # here
    return MODEL(torch.randn(4096, 32)) @ table


def noise_in_each_step() -> object:
    table = torch.outer(torch.randn(32), torch.randn(32)).cos()
    return table @ torch.randn(32, 8)


def buffer_in_each_step() -> object:
    """Zeros that a step fills are no constant."""
    out = torch.zeros(64, 32)
    out[:, 1] = torch.randn(64)
    return out @ torch.randn(32, 8)


# The rest -------------------------------------------------------------------------------------------


def computed_twice() -> object:
    x = torch.randn(64, 32)
    return MODEL(x) + MODEL(x)  # here


def computed_of_others() -> object:
    return MODEL(torch.randn(64, 32)) + MODEL(torch.randn(64, 32))


def computed_for_nothing() -> object:
    x = torch.randn(256, 256)
    y = x @ x  # here
    del y
    return float((x + 1).sum().to("cpu"))


def used_later() -> object:
    x = torch.randn(256, 256)
    y = x @ x
    return float((x + y).sum())


def kept_for_later() -> object:
    """The program has it still, and may use it when the recording has ended."""
    x = torch.randn(256, 256)
    KEPT.append(x @ x)
    return float((x + 1).sum().to("cpu"))


KEPT: list[object] = []


def in_float64() -> object:
    x = torch.randn(64, 32, dtype=torch.float64)
    return (x.sin() + 1).exp()  # here


def in_float32() -> object:
    return (torch.randn(64, 32).sin() + 1).exp()


def cast_there_and_back() -> object:
    return torch.randn(256, 256).half().float() * 2  # here


def cast_once() -> object:
    return torch.randn(256, 256).half() * 2


def gradients_by_a_function() -> object:
    """`torch.autograd.grad` is a backward pass, too."""
    weights = list(MODEL.parameters())
    return torch.autograd.grad(MODEL(torch.randn(64, 32)).sum(), weights)


def evaluated() -> object:
    return MODEL(torch.randn(64, 32)).sum()


def graph_of_no_use() -> object:
    MODEL(torch.randn(64, 32)).sum().backward()
    return evaluated()  # here


PAIRS: tuple[tuple[str, Callable[[], object], Callable[[], object]], ...] = (
    ("attention-by-hand", attention_by_hand, a_softmax_of_a_layer),
    ("attention-by-hand", attention_by_hand, attention_of_torch),
    ("function-by-hand", rms_norm_by_hand, functions_of_torch),
    ("function-by-hand", layer_norm_by_hand, functions_of_torch),
    ("function-by-hand", gelu_by_hand, functions_of_torch),
    ("function-by-hand", gelu_of_products, cell_of_torch),
    ("function-by-hand", silu_by_hand, a_gate),
    ("function-by-hand", softmax_by_hand, functions_of_torch),
    ("function-by-hand", cross_entropy_by_hand, functions_of_torch),
    ("function-by-hand", cosine_by_hand, rows_times_rows),
    ("rows-by-product", rows_by_product, rows_by_index),
    ("broadcast-then-reduced", all_pairs, rows_times_rows),
    ("sort-for-a-few", best_by_sort, median_by_sort),
    ("loop-of-operations", rows_one_by_one, layers_one_by_one),
    ("loop-of-operations", chains_one_by_one, layers_one_by_one),
    ("loop-over-parameters", penalty_by_hand, penalty_at_once),
    ("cell-by-hand", cell_by_hand, cell_of_torch),
    ("growing-tensor", grown, joined),
    ("host-reads", read_by_the_host, drawn_on_the_host),
    ("host-reads", rows_of_unknown_number, mask_of_fixed_size),
    ("made-on-host", range_made_on_the_host, batch_copied),
    ("constant-in-each-step", table_in_each_step, noise_in_each_step),
    ("constant-in-each-step", table_in_each_step, buffer_in_each_step),
    ("gradients-without-backward", graph_of_no_use, gradients_by_a_function),
    ("work-done-twice", computed_twice, computed_of_others),
    ("unused-result", computed_for_nothing, used_later),
    ("unused-result", computed_for_nothing, kept_for_later),
    ("wide-type", in_float64, in_float32),
    ("copy-in-each-step", cast_there_and_back, cast_once),
)  # fmt: skip


@pytest.mark.parametrize(("rule", "problem"), dict.fromkeys((rule, problem) for rule, problem, _ in PAIRS))
def test_a_problem_is_found_at_its_line(rule: str, problem: Callable[[], object]) -> None:
    assert rules_at(recorded(problem)).get(rule, set()) & marked(problem)


@pytest.mark.parametrize(("rule", "near"), dict.fromkeys((rule, near) for rule, _, near in PAIRS))
def test_what_only_looks_like_it_is_left_out(rule: str, near: Callable[[], object]) -> None:
    assert rule not in rules_at(recorded(near))


def test_the_documentation_lists_each_rule() -> None:
    text = (Path(__file__).parents[3] / "docs" / "agent.md").read_text()
    for rule in finding_rules():
        assert f"| `{rule.name}` | {rule.about} |" in text
