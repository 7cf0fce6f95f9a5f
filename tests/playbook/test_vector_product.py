"""A float32 product with a tile of one row or one column becomes a sum of elementwise products."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from tests.playbook.kit import changed_lines, verdict
from tests.playbook.plain import HEAD, SCALE_ROWS, applied, launch_facts

from tilewright.playbook.entries.vector_product import ENTRY, SUM
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, codes_of, loaded

ROW = (
    HEAD
    + """
@ct.kernel
def combined(parts, scores, y, S: ct.Constant[int], T: ct.Constant[int]):
    item = ct.bid(0)
    weights = ct.gather(scores, (item, ct.arange(S, dtype=ct.int32)))
    weights = ct.exp2(weights - ct.max(weights))
    part = ct.load(parts, (item, 0, 0), (1, S, T))
    part = ct.reshape(part, (S, T))
    # one row
    total = ct.mma(weights[None, :], ct.astype(part, ct.float32), ct.zeros((1, T), dtype=ct.float32))
    ct.store(y, (item, 0), total / ct.sum(weights))


def reference(parts, scores):
    weights = np.exp2(scores - scores.max(axis=1, keepdims=True))
    return np.einsum("ms,msn->mn", weights / weights.sum(axis=1, keepdims=True), parts)


task = tw.Task(
    name="combined",
    tensors={
        "parts": tw.Tensor(("M", 16, 64), "float32"),
        "scores": tw.Tensor(("M", 16), "float32"),
        "y": tw.Output(("M", 64), "float32"),
    },
    reference=reference,
    launch=lambda parts, scores, y, M: tw.Launch(combined, (M,), (parts, scores, y, 16, 64)),
    flops=lambda M: 2 * M * 16 * 64,
    independent=("M",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"items": {"M": 2048}},
)
"""
)
ADDED = ROW.replace(
    "total = ct.mma(weights[None, :], ct.astype(part, ct.float32), ct.zeros((1, T), dtype=ct.float32))",
    "total = ct.zeros((1, T), dtype=ct.float32)\n    total = ct.mma(weights[None, :], part, total)",
)
COLUMN = ROW.replace(
    "total = ct.mma(weights[None, :], ct.astype(part, ct.float32), ct.zeros((1, T), dtype=ct.float32))",
    "turned = ct.transpose(part)\n"
    "    total = ct.mma(turned, weights[:, None], ct.zeros((T, 1), dtype=ct.float32)).reshape((1, T))",
)
ROWS = ROW.replace("weights[None, :]", "ct.broadcast_to(weights[None, :], (16, S))").replace(
    "ct.zeros((1, T)", "ct.zeros((16, T)"
).replace("total / ct.sum(weights)", "ct.max(total, axis=0, keepdims=True) / ct.sum(weights)")  # fmt: skip
NARROW = ROW.replace("weights[None, :]", "weights[None, :].astype(ct.bfloat16)").replace(
    "ct.astype(part, ct.float32)", "ct.astype(part, ct.bfloat16)"
)


class TestVectorProduct(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"a row": ROW, "a column": COLUMN, "added to a total": ADDED}
    elsewhere: ClassVar = {"several rows": ROWS, "no product": SCALE_ROWS}


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (
            ROW, "total = ct.mma(weights[None, :], ct.astype(part, ct.float32), ct.zeros((1, T), dtype=ct.float32))",
            "total = ct.sum(ct.transpose(weights[None, :]) * ct.astype(part, ct.float32), axis=0, keepdims=True)",
        ),
        (
            ADDED, "total = ct.mma(weights[None, :], part, total)",
            "total = total + ct.sum(ct.transpose(weights[None, :]) * part, axis=0, keepdims=True)",
        ),
        (
            COLUMN, "total = ct.mma(turned, weights[:, None], ct.zeros((T, 1), dtype=ct.float32)).reshape((1, T))",
            "total = ct.sum(turned * ct.transpose(weights[:, None]), axis=1, keepdims=True).reshape((1, T))",
        ),
    ],
    ids=["row", "added", "column"],
)  # fmt: skip
def test_the_product_is_a_sum(tmp_path: Path, text: str, old: str, new: str) -> None:
    changed = applied(ENTRY, text, tmp_path, SUM).replace(".astype(ct.float32)", "")
    assert changed_lines(text, changed) == ([old], [new])
    assert verdict(loaded(changed, tmp_path)).verdict.startswith("correct")


def test_elements_of_16_bits_are_multiplied_in_float32(tmp_path: Path) -> None:
    changed = applied(ENTRY, NARROW, tmp_path, SUM)
    term = "ct.transpose(weights[None, :].astype(ct.bfloat16).astype(ct.float32)) * "
    assert term + "ct.astype(part, ct.bfloat16).astype(ct.float32)" in " ".join(changed.split()).replace("( ", "(")


@pytest.mark.parametrize("text", [ROW, NARROW], ids=["float32", "bfloat16"])
def test_such_a_product_reaches_no_tensor_core(tmp_path: Path, text: str) -> None:
    assert codes_of(loaded(text, tmp_path))["items"].tensor_instructions == 0


def test_products_in_float64_stay(tmp_path: Path) -> None:
    text = ROW.replace("float32", "float64")
    assert ENTRY.sites(Source("task.py", ROW), launch_facts(ROW, tmp_path))
    assert ENTRY.why_not(Source("task.py", text), launch_facts(text, tmp_path)) == "the kernel computes in float64"


PRODUCT = "ct.mma(weights[None, :], ct.astype(part, ct.float32), ct.zeros((1, T), dtype=ct.float32))"


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (
            PRODUCT.replace("None, :]", "None, :].astype(ct.int8)").replace("ct.float32", "ct.int32"),
            "the product is added to int32",
        ),
        (PRODUCT.replace(":], ", ":],  # scores\n        "), "a comment inside the call would be lost"),
    ],
    ids=["integers", "comment"],
)
def test_what_a_sum_would_lose_stays(tmp_path: Path, new: str, reason: str) -> None:
    text = ROW.replace(PRODUCT, new)
    assert text != ROW
    assert ENTRY.why_not(Source("task.py", text), launch_facts(ROW, tmp_path)) == reason


def test_a_file_that_does_not_import_sum_stays(tmp_path: Path) -> None:
    head, kernel, rest = ROW.partition(ROW[ROW.index("@ct.kernel") : ROW.index("def reference")])
    names = ("kernel", "bid", "gather", "arange", "exp2", "max", "load", "reshape", "mma", "astype", "zeros", "store")
    names += ("int32", "float32", "Constant", "sum", "transpose")
    for missing in ("", "transpose"):
        listed = ", ".join(name for name in names if name != missing)
        text = (
            head.replace("import cuda.tile as ct", f"from cuda.tile import {listed}") + kernel.replace("ct.", "") + rest
        )
        source = Source("task.py", text)
        if missing:
            assert (
                ENTRY.why_not(source, launch_facts(ROW, tmp_path)) == "task.py does not import transpose of cuda.tile"
            )
        else:
            changed = applied(ENTRY, text, tmp_path, SUM)
            assert "sum(transpose(weights[None, :].astype(float32)) * " in changed
            assert verdict(loaded(changed, tmp_path)).verdict.startswith("correct")
