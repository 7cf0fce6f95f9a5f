"""Tiles that are too narrow for the tensor cores are padded with zeros, and cut where they are stored."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import libcst as cst
import numpy as np
import pytest
from tests.playbook.configured import MATMUL
from tests.playbook.kit import changed_lines, only, run_of, verdict

from tilewright.playbook.analyses.constant_branches import compiled_only, decided_branches
from tilewright.playbook.analyses.iterations import decided
from tilewright.playbook.base import NotApplicable, Site
from tilewright.playbook.entries.product_padding import ENTRY
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, facts_of, loaded

DECODE = '''\
"""Decoding attention: the heads of a group share keys and values."""

import cuda.tile as ct
import numpy as np
import tilewright as tw


@ct.kernel
def attend(q, k, v, out, H: ct.Constant[int], N: ct.Constant[int], D: ct.Constant[int], TURNED: ct.Constant[bool]):
    b = ct.bid(0)
    # the heads of the group
    queries = ct.reshape(ct.load(q, (b, 0, 0), (1, H, D)), (H, D))
    if TURNED:
        most = ct.full((H,), -1e30, dtype=ct.float32)
        total = ct.zeros((H,), dtype=ct.float32)
        acc = ct.zeros((D, H), dtype=ct.float32)
        for n in range(ct.cdiv(k.shape[1], N)):
            keys = ct.reshape(ct.load(k, (b, n, 0), (1, N, D)), (N, D))
            scores = ct.mma(keys, ct.transpose(queries), ct.zeros((N, H), dtype=ct.float32))
            now = ct.maximum(most, ct.max(scores, axis=0))
            weights = ct.exp(scores - ct.reshape(now, (1, H)))
            old = ct.exp(most - now)
            total = total * old + ct.sum(weights, axis=0)
            values = ct.reshape(ct.load(v, (b, n, 0), (1, N, D)), (N, D))
            acc = ct.mma(ct.transpose(values), ct.astype(weights, v.dtype), acc * ct.reshape(old, (1, H)))
            most = now
        acc = ct.transpose(acc / ct.reshape(total, (1, H)))
    else:
        acc = ct.zeros((H, D), dtype=ct.float32)
        acc = acc + ct.sum(queries, axis=0, keepdims=True)
    result = ct.reshape(ct.astype(acc, out.dtype), (1, H, D))
    ct.store(out, (b, 0, 0), result)


def reference(q, k, v):
    scores = np.einsum("bhd,bnd->bhn", q, k)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return np.einsum("bhn,bnd->bhd", weights / weights.sum(axis=2, keepdims=True), v)


task = tw.Task(
    name="attend",
    tensors={
        "q": tw.Tensor(("B", 4, 64), "bfloat16"),
        "k": tw.Tensor(("B", "L", 64), "bfloat16"),
        "v": tw.Tensor(("B", "L", 64), "bfloat16"),
        "out": tw.Output(("B", 4, 64), "bfloat16"),
    },
    reference=reference,
    launch=lambda q, k, v, out, B, L: tw.Launch(attend, (B,), (q, k, v, out, 4, 64, 64, True)),
    flops=lambda B, L: 4 * B * L * 4 * 64,
    independent=("B",),
    serves=lambda L: L % 64 == 0,
    space=tw.Space(shipped={}),
    workloads={"long": {"B": 8, "L": 512}},
)
'''
WIDE = DECODE.replace('("B", 4, 64)', '("B", 16, 64)').replace("out, 4, 64", "out, 16, 64")
COUNTED = DECODE.replace("    if TURNED:", "    heads = ct.arange(H, dtype=ct.int32)\n    if TURNED:")
MEAN = DECODE.replace("    result =", "    acc = acc - ct.sum(queries, axis=0, keepdims=True) * 0\n    result =")
ASIDE = DECODE.replace("    result =", "    acc = acc + scale(queries, H)\n    result =").replace(
    "@ct.kernel", "def scale(tile, H):\n    return ct.zeros((H, 64), dtype=ct.float32)\n\n\n@ct.kernel"
)
TWO = DECODE.replace('("B", 4, 64)', '("B", 2, 64)').replace("out, 4, 64", "out, 2, 64")


class TestProductPadding(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"four heads": DECODE, "two heads": TWO}
    elsewhere: ClassVar = {
        "wide": WIDE, "a matrix": MATMUL, "heads are counted": COUNTED, "heads are added": MEAN, "in a function": ASIDE,
    }  # fmt: skip


def padded(text: str, folder: Path) -> str:
    source = Source("task.py", text)
    site = only(ENTRY.sites(source, facts_of(loaded(text, folder))))
    return ENTRY.apply(source, site, site.values[0])


@pytest.mark.parametrize("text", [DECODE, TWO], ids=["four", "two"])
def test_the_products_reach_the_tensor_cores_and_are_right(text: str, tmp_path: Path) -> None:
    new = padded(text, tmp_path)
    before, after = (facts_of(loaded(each, tmp_path)).codes["long"] for each in (text, new))
    assert not before.tensor_instructions and after.tensor_instructions
    said = verdict(loaded(new, tmp_path))
    assert said.verdict.startswith("correct"), said.reason


def test_tiles_are_padded_where_they_are_loaded_and_cut_where_they_are_stored(tmp_path: Path) -> None:
    gone, new = changed_lines(DECODE, padded(DECODE, tmp_path))
    assert new[0] == "PADDED_H = 8 if H == 4 and TURNED else H"
    assert "q_loaded = ct.cat((q_loaded, ct.zeros((1, H, D), dtype=q.dtype)), 1)" in new
    assert "queries = ct.reshape(q_loaded, (PADDED_H, D))" in new
    assert "ct.store(out, (b, 0, 0), ct.extract(result, (0, 0, 0), (1, H, D)))" in new
    assert not any("keys =" in line or "values =" in line for line in gone), "only the heads are padded"


def test_a_tile_is_doubled_until_it_is_wide_enough(tmp_path: Path) -> None:
    whole = "whole = ct.load(q, (b, 0, 0), (1, H, D))\n    queries = ct.reshape(whole, (H, D))"
    new = padded(TWO.replace("queries = ct.reshape(ct.load(q, (b, 0, 0), (1, H, D)), (H, D))", whole), tmp_path)
    one, two = "ct.zeros((1, H, D), dtype=q.dtype)", "ct.zeros((1, 2 * H, D), dtype=q.dtype)"
    assert f"        whole = ct.cat((whole, {one}), 1)\n        whole = ct.cat((whole, {two}), 1)\n" in new


def test_other_branches_keep_their_form(tmp_path: Path) -> None:
    """The other branch adds the heads, which padding would change: there nothing is padded."""
    text = padded(DECODE, tmp_path).replace("64, 64, True", "64, 64, False")
    text = text.replace("    return np.einsum(\"bhn,bnd->bhd\", weights / weights.sum(axis=2, keepdims=True), v)",
                        "    return np.broadcast_to(q.sum(axis=1, keepdims=True), q.shape)")  # fmt: skip
    said = verdict(loaded(text, tmp_path))
    assert said.verdict.startswith("correct"), said.reason


@pytest.mark.parametrize("value", ["8", "H to 8", "H to 8 with D=64"])
def test_a_value_that_names_no_extent_is_refused(value: str) -> None:
    source = Source("task.py", DECODE)
    line, column = source.place(source.kernels["attend"])
    with pytest.raises(NotApplicable, match="names no extent"):
        ENTRY.apply(source, Site("attend", line, column, "H of products", (value,)), value)


@pytest.mark.parametrize(
    ("test", "value"),
    [
        ("FLAG", True), ("not FLAG", False), ("N == 4", True), ("N > 4 and x", False), ("N > 4 or FLAG", True),
        ("x", None), ("x or N > 4", None), ("N == 4 and x", None), ("-1 < N", True), ("True", True), ("N is x", None),
    ],
)  # fmt: skip
def test_what_constants_decide(test: str, value: bool | None) -> None:
    assert decided(test, {"FLAG": True, "N": 4}) is value


def test_only_the_compiled_branches_are_left() -> None:
    text = "def f(A, B, x):\n    if A:\n        a = 1\n        if x:\n            b = 2\n"
    text += "    elif B:\n        c = 3\n    else:\n        d = 4\n"
    for given, left in (({"A": True}, "a b"), ({"A": False, "B": True}, "c"), ({"A": False, "B": False}, "d")):
        source = Source("f.py", text)
        plain = compiled_only(source, decided_branches(source, source.functions["f"], given))
        assert [node.target.value for node in plain.every(cst.AssignTarget)] == left.split(), plain.text  # type: ignore[attr-defined]
    source = Source("f.py", text.replace("a = 1", "A = 1"))
    assert not decided_branches(source, source.functions["f"], {"A": True}), "the name is no constant any more"


PRODUCT = """\
import cuda.tile as ct
import numpy as np
import tilewright as tw


class helper:
    @staticmethod
    def total(tile):
        return ct.sum(tile, axis=1)


@ct.kernel
def product(a, b, out, H: ct.Constant[int], G: ct.Constant[int], N: ct.Constant[int], E: ct.Constant[float]):
    n = ct.bid(0)
    zero = ct.zeros((N, H), dtype=ct.float32)
    keys = ct.load(a, (n, 0), (N, 64))
    {body}


task = tw.Task(
    name="product",
    tensors={{
        "a": tw.Tensor(("L", 64), "bfloat16"),
        "b": tw.Tensor((4, 64), "bfloat16"),
        "out": tw.Output({shape}, "float32"),
    }},
    reference=lambda a, b: a @ b.T,
    launch=lambda a, b, out, L: tw.Launch(product, (-(-L // 64),), (a, b, out, 4, 4, 64, 0.5)),
    flops=lambda L: 2 * L * 64 * 4,
    serves=lambda L: L % 64 == 0,
    space=tw.Space(shipped={{}}),
    workloads={{"only": {{"L": 128}}}},
)
"""
LOAD, MULTIPLY = "q = ct.load(b, (0, 0), (H, 64))", "s = ct.mma(keys, ct.transpose(q), zero)"
STORE = "ct.store(out, (n, 0), {})"
ROWS = ("total = {}", "r = ct.reshape(total, (N,))", "ct.store(out, (n,), r)")
ATTACKS = {
    "rows mixed": ("t = ct.reshape(s, (1, H, N))", "ct.store(out, (n, 0, 0), t)"),
    "rows merged": ("t = ct.reshape(s, (-1,))", "ct.store(out, (n,), t)"),
    "another shape": ("t = ct.reshape(ct.ones((N, 4), dtype=ct.float32), (N, H))", STORE.format("t")),
    "another constant of 4": ("t = ct.reshape(s + ct.ones((N, G), dtype=ct.float32), (N, H))", STORE.format("t")),
    "a shape with a name": (
        "SHAPE = (N, H)", "t = ct.mma(keys, ct.transpose(q), ct.zeros(SHAPE, dtype=ct.float32))", STORE.format("t"),
    ),
    "a sum of another kind": (ROWS[0].format("ct.reduce(ct.exp(s), 1, lambda u, v: u + v, 0.0)"), *ROWS[1:]),
    "a sum in a function": (
        "def add(tile):\n        return ct.sum(tile, axis=1)", ROWS[0].format("add(ct.exp(s))"), *ROWS[1:],
    ),
    "a sum elsewhere": (ROWS[0].format("helper.total(ct.exp(s))"), *ROWS[1:]),
    "a number of rows": ("t = s * ct.permute(s, (1, 0)).shape[0]", STORE.format("t")),
    "a view": (
        "v = b.tiled_view((H, 64))", "t = ct.reshape(v.load((0, 0)), (H, 64))",
        "u = ct.mma(keys, ct.transpose(t), zero)",
        STORE.format("u"),
    ),
    "H has another value": ("H = 2", "t = s * H", STORE.format("t")),
}  # fmt: skip
LOADS = {
    "two loads": "q = ct.load(b, (0, 0), (H, 64)) + ct.load(a, (n * 0, 0), (H, 64)) * 0",
    "two statements": "m = n * 0; q = ct.load(b, (m, 0), (H, 64)) * 1",
    "a load by a condition": "q = ct.load(b, (0, 0), (H, 64)) if G == 4 else ct.load(out, (0, 0, 0), (H, 64))",
}
FLOAT = """if E > 0:
        s = ct.mma(keys, ct.transpose(q), zero)
    else:
        s = zero + ct.sum(ct.zeros((H, N), dtype=ct.float32))"""
NAMED = """x = n
    if x > 5 or G > 2:
        s = ct.mma(keys, ct.transpose(q), zero)
    else:
        s = zero"""
BODIES = {
    **{name: (LOAD, MULTIPLY, *lines) for name, lines in ATTACKS.items()},
    **{name: (load, MULTIPLY, STORE.format("s")) for name, load in LOADS.items()},
    "a constant with a fraction": (LOAD, FLOAT, STORE.format("s")),
    "a test of another name": (LOAD, NAMED, STORE.format("s")),
}
SHAPES = {"(n, 0, 0)": '("L // 64", 4, 64)', "r)": '("L",)', "(n,), t": '("L * 4",)'}


@pytest.mark.parametrize("name", BODIES)
def test_the_result_stays(name: str, tmp_path: Path) -> None:
    """Refusing the change is right, too."""
    body = "\n    ".join(BODIES[name])
    shape = next((shape for end, shape in SHAPES.items() if end in BODIES[name][-1]), '("L", 4)')
    text = PRODUCT.format(body=body, shape=shape)
    before = run_of(text, tmp_path)[0]
    for site in ENTRY.sites(Source("task.py", text), facts_of(loaded(text, tmp_path))):
        changed = ENTRY.apply(Source("task.py", text), site, site.values[0])
        after = run_of(changed, tmp_path)[0]
        assert np.allclose(np.frombuffer(before, np.float32), np.frombuffer(after, np.float32), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "lines",
    [
        (LOAD, MULTIPLY, STORE.format("s")),
        (LOAD, MULTIPLY, "s = ct.transpose(s)", "s = ct.transpose(s * 2)", "s = ct.reshape(s, (1, N, H))",
         "s = ct.reshape(s, (N, H))", STORE.format("s")),
        (LOAD, MULTIPLY, "t = ct.sum(ct.permute(s, (1, 0)), axis=1)", "u = s + ct.reshape(t, (1, H))",
         STORE.format("u")),
    ],
    ids=["plain", "one name", "exchanged axes"],
)  # fmt: skip
def test_what_keeps_rows_apart_is_padded(lines: tuple[str, ...], tmp_path: Path) -> None:
    text = PRODUCT.format(body="\n    ".join(lines), shape='("L", 4)')
    before, after = (run_of(each, tmp_path)[0] for each in (text, padded(text, tmp_path)))
    assert np.allclose(np.frombuffer(before, np.float32), np.frombuffer(after, np.float32), rtol=1e-4, atol=1e-4)
