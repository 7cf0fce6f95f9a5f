"""Entry H in its three files: exp2, flush to zero, approximate (K1 H). All lossy, all marked."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from tests.playbook.kit import only, verdict
from tests.playbook.plain import HALF_PRODUCT, HEAD, NORM, SOFTMAX, applied, launch_facts

from tilewright.playbook.entries import approximate, exp2, flush_to_zero
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, codes_of, loaded

ONLINE = (
    HEAD
    + """
@ct.kernel
def attend(q, k, v, out, scale, T: ct.Constant[int]):
    query = ct.load(q, (ct.bid(0), 0), (T, T))
    highest = ct.full((T, 1), -float("inf"), ct.float32)
    weight = ct.zeros((T, 1), ct.float32)
    total = ct.zeros((T, T), ct.float32)
    for n in range(ct.cdiv(k.shape[0], T)):
        keys = ct.load(k, (n, 0), (T, T), padding_mode=ct.PaddingMode.ZERO)
        score = ct.mma(query, ct.transpose(keys), ct.zeros((T, T), ct.float32)) * scale  # as the formula has it
        columns = n * T + ct.arange(T, dtype=ct.int32)[None, :]
        score = ct.where(columns < k.shape[0], score, -float("inf"))
        higher = ct.maximum(highest, ct.max(score, axis=1, keepdims=True))
        part = ct.exp(score - higher)
        fade = ct.exp(highest - higher)
        total = total * fade + ct.mma(part.astype(ct.float16), ct.load(v, (n, 0), (T, T)), ct.zeros((T, T), ct.float32))
        weight = weight * fade + ct.sum(part, axis=1, keepdims=True)
        highest = higher
    ct.store(out, (ct.bid(0), 0), (total / weight).astype(out.dtype))


def reference(q, k, v):
    score = q @ k.T / 4
    part = np.exp(score - score.max(axis=1, keepdims=True))
    return part @ v / part.sum(axis=1, keepdims=True)


def launch(q, k, v, out, S):
    return tw.Launch(attend, (-(-S // 16),), (q, k, v, out, 0.25, 16))


task = tw.Task(
    name="attend",
    tensors={name: tw.Tensor(("S", 16), "float16") for name in "qkv"} | {"out": tw.Output(("S", 16), "float16")},
    reference=reference,
    launch=launch,
    flops=lambda S: 64 * S * S,
    serves=lambda S: S % 16 == 0,
    space=tw.Space(constants={}, shipped={}),
    workloads={"all": {"S": 64}},
)
"""
)
SIGMOID = SOFTMAX.replace("ct.exp(values - ct.max(values))", "ct.exp(-values) + ct.exp(values * 2.0)")
TANH = SOFTMAX.replace("part / ct.sum(part)", "ct.tanh(part)")


class TestExp2(EntryContract):
    entry = exp2.ENTRY
    examples: ClassVar = {"softmax": SOFTMAX, "online": ONLINE}
    elsewhere: ClassVar = {"no exponential": NORM}


class TestFlushToZero(EntryContract):
    entry = flush_to_zero.ENTRY
    examples: ClassVar = {"softmax": SOFTMAX, "norm": NORM}
    elsewhere: ClassVar = {"a product": HALF_PRODUCT}


class TestApproximate(EntryContract):
    entry = approximate.ENTRY
    examples: ClassVar = {"softmax": SOFTMAX, "norm": NORM, "tanh": TANH}
    elsewhere: ClassVar = {"a product": HALF_PRODUCT}


def test_all_of_them_are_marked_lossy() -> None:
    assert {one.ENTRY.about.risk for one in (exp2, flush_to_zero, approximate)} == {"lossy"}


EXPONENTIALS = {
    "fused": "part = ct.exp2(values * LOG2_E - ct.max(values) * LOG2_E)",
    "scaled": "part = ct.exp2((values - ct.max(values)) * LOG2_E)",
    "approximate": "part = ct.exp(values - ct.max(values), rounding_mode=ct.RoundingMode.APPROX)",
}


@pytest.mark.parametrize("value", EXPONENTIALS)
def test_one_exponential(value: str, tmp_path: Path) -> None:
    new = applied(exp2.ENTRY, SOFTMAX, tmp_path, value, "exp of")
    assert f"    {EXPONENTIALS[value]}\n" in new
    assert ("\nimport tilewright as tw\n\nLOG2_E = 1.4426950408889634\n" in new) == (value != "approximate")
    task = loaded(new, tmp_path)
    assert verdict(task).verdict.startswith("correct")
    before, after = (codes_of(one)["rows"].code_hash for one in (loaded(SOFTMAX, tmp_path), task))
    assert before != after


def test_the_constant_joins_a_constant_or_a_sign(tmp_path: Path) -> None:
    source = Source("task.py", SIGMOID)
    sites = exp2.ENTRY.sites(source, launch_facts(SIGMOID, tmp_path))
    texts = [exp2.ENTRY.apply(source, site, "scaled") for site in sites]
    assert "ct.exp2(values * -LOG2_E) + ct.exp(values * 2.0)" in texts[0]
    assert "ct.exp(-values) + ct.exp2(values * (2.0 * LOG2_E))" in texts[1]


def test_log2_e_of_the_file_is_used(tmp_path: Path) -> None:
    named = SOFTMAX.replace(
        "import tilewright as tw\n", "import tilewright as tw\n\nLOG_2, OTHER = 1.4426950408889634, 3\n"
    )
    new = applied(exp2.ENTRY, named, tmp_path, "scaled", "exp of")
    assert "* LOG_2)" in new and new.count("1.4426950408889634") == 1


def test_the_scale_of_an_online_softmax_takes_the_factor(tmp_path: Path) -> None:
    new = applied(exp2.ENTRY, ONLINE, tmp_path, "folded", "scale of score")
    assert "* (scale * LOG2_E)  # as the formula has it\n" in new
    assert "part = ct.exp2(score - higher)\n" in new and "fade = ct.exp2(highest - higher)\n" in new
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


UNFOLDABLE = {
    "the maximum is used elsewhere": ("weight = weight * fade", "weight = weight * fade + higher * 0.0"),
    "an exponent beside it": ("fade = ct.exp(highest - higher)", "fade = ct.exp(highest - higher + 1.0)"),
    "the scores decide": ("ct.where(columns < k.shape[0],", "ct.where((score > 1.0) & (columns < k.shape[0]),"),
}


@pytest.mark.parametrize("why", UNFOLDABLE)
def test_the_factor_is_not_folded_where_something_else_would_change(why: str, tmp_path: Path) -> None:
    old, new = UNFOLDABLE[why]
    text = ONLINE.replace(old, new)
    source = Source("task.py", text)
    facts = launch_facts(ONLINE, tmp_path)
    assert not [site for site in exp2.ENTRY.sites(source, facts) if "folded" in site.values]


def test_flush_to_zero_is_an_argument_more(tmp_path: Path) -> None:
    new = applied(flush_to_zero.ENTRY, NORM, tmp_path, True, "sqrt")
    assert "root = ct.sqrt(mean_square + 1e-6, flush_to_zero=True)\n" in new
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


QUOTIENTS = {
    "approximate": "ct.truediv(part, ct.sum(part), rounding_mode=ct.RoundingMode.APPROX)",
    "approximate, flush to zero":
        "ct.truediv(part, ct.sum(part), rounding_mode=ct.RoundingMode.APPROX, flush_to_zero=True)",
    "reciprocal": "part * (1.0 / ct.sum(part))",
}  # fmt: skip


@pytest.mark.parametrize("value", QUOTIENTS)
def test_a_quotient_by_a_sum(value: str, tmp_path: Path) -> None:
    new = applied(approximate.ENTRY, SOFTMAX, tmp_path, value, "quotient")
    assert f"ct.store(y, (row, 0), {QUOTIENTS[value]})\n" in new
    task = loaded(new, tmp_path)
    assert verdict(task).verdict.startswith("correct")
    assert codes_of(task)["rows"].code_hash != codes_of(loaded(SOFTMAX, tmp_path))["rows"].code_hash


def test_a_root_that_divides_becomes_rsqrt(tmp_path: Path) -> None:
    new = applied(approximate.ENTRY, NORM, tmp_path, "rsqrt", "ct.sqrt")
    assert "root = ct.rsqrt(mean_square + 1e-6)\n" in new and "values * root)\n" in new
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


def test_a_root_that_is_used_otherwise_does_not(tmp_path: Path) -> None:
    text = NORM.replace("values / root)", "values / root + root * 0.0)")
    source = Source("task.py", text)
    site = only(approximate.ENTRY.sites(source, launch_facts(text, tmp_path)), "ct.sqrt")
    assert "rsqrt" not in site.values


def test_quotients_of_scalars_are_left_alone(tmp_path: Path) -> None:
    text = NORM.replace("ROWS + i", "ROWS + i * (4 / 4)")
    sites = approximate.ENTRY.sites(Source("task.py", text), launch_facts(NORM, tmp_path))
    assert len(sites) == 3, "the mean, the root and the quotient by it"


def test_tanh(tmp_path: Path) -> None:
    new = applied(approximate.ENTRY, TANH, tmp_path, "approximate", "ct.tanh")
    assert "ct.tanh(part, rounding_mode=ct.RoundingMode.APPROX)" in new
