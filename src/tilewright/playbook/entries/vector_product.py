"""Multiplies and adds elements in place of a product with a tile of one row or one column.

``ct.mma(x, y, acc)`` with an x of shape (1, k) becomes ``acc + ct.sum(ct.transpose(x) * y, axis=0)``, and with a y of
shape (k, 1) ``acc + ct.sum(x * ct.transpose(y), axis=1)``. Such a product reaches
no tensor core, in any dtype (tileiras 13.4, sm_90). The compiler then multiplies with the layout of a large product: it
loads operands again and again, and most threads compute rows that do not exist. Both forms multiply in float32; the
order of the sum differs, as it does between compilers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from tilewright.playbook.analyses.dtypes import ANY, Dtypes
from tilewright.playbook.analyses.expressions import fitting, imported, operands_of, text_of
from tilewright.playbook.analyses.tile_shapes import Shapes
from tilewright.playbook.base import HINTS_OF_TILES, Effect, EntryDescription, NotApplicable
from tilewright.playbook.rewriting import Rewritable, Rewriting
from tilewright.source.syntax import Expression, Function, Source, argument

SUM = "sum"


class VectorProduct(Rewriting[Rewritable[cst.Call]]):
    about = EntryDescription(
        id="vector_product",
        name="product with a vector as a sum",
        what="ct.mma with a tile of one row or column as a sum of elementwise products",
        when="products of a vector and a matrix, which reach no tensor core: reductions of splits, decoding",
        when_not="tiles of several rows and columns",
        priority={"memory": 2, "balanced": 2, "compute": 3},
        eases=("issue slots", "tensor path", "residency", "bytes in flight"),
        together=HINTS_OF_TILES,
        order=52,
        effect=Effect(
            0.95,
            2.1,
            "bf16 vector × matrix 4096×14336 90.2 → 41.5 µs, a sum over 64 splits 27.3 → 29.1 µs, H200",
            "2026-11-29",
        ),
    )
    missing = "no product with a vector begins here"
    most = 4

    def places(self, source: Source, function: Function) -> Iterator[Rewritable[cst.Call]]:
        shapes = Shapes(source, function)
        for call in source.calls("mma", inside=function):
            match [shapes.of(operand) for operand in operands_of(call) or ()]:
                case [("1", _), _]:
                    one_row = True
                case [_, (_, "1")]:
                    one_row = False
                case _:
                    continue
            yield Rewritable(call, "product with a vector", {SUM: partial(_summed, source, function, call, one_row)})


def _summed(source: Source, function: Function, call: cst.Call, one_row: bool) -> str:
    """Returns the text with a sum in place of a product. ``one_row``: whether the left operand, not the right one, is
    the vector."""
    operands, total, dtypes = operands_of(call), argument(call, "acc", 2), Dtypes(source, function, {})
    if operands is None or total is None:
        raise NotApplicable("the product's operands are not written as three arguments")
    if "float64" in source.code(function):
        raise NotApplicable("the kernel computes in float64")
    if (dtype := dtypes.of(total)) not in ("float32", ANY, None):
        raise NotApplicable(f"the product is added to {dtype}")
    sum_, transpose, float32 = (imported(source, name) for name in ("sum", "transpose", "float32"))
    casts = ["" if dtypes.of(operand) == "float32" else f".astype({float32})" for operand in operands]
    left, right = (text_of(source, operand) + cast for operand, cast in zip(operands, casts, strict=True))
    if one_row:
        added = f"{sum_}({transpose}({left}) * {right}, axis=0, keepdims=True)"
    else:
        added = f"{sum_}({left} * {transpose}({right}), axis=1, keepdims=True)"
    new = added if _is_zero(source, total) else f"{text_of(source, total)} + {added}"
    if new.count("#") != source.code(call).count("#"):
        raise NotApplicable("a comment inside the call would be lost")
    return source.replaced({call: fitting(source, call, new)})


def _is_zero(source: Source, node: Expression) -> bool:
    return isinstance(node, cst.Call) and node in source.calls("zeros", inside=node)


ENTRY = VectorProduct()
