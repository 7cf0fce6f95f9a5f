"""Casts the float32 operands of a product to tfloat32, which the tensor cores multiply.

Without the cast cuTile multiplies float32 exactly, on the ordinary cores. Where the task declares that tf32 or coarser
is precise enough, the cast loses nothing that was promised; elsewhere it is lossy (`tf32_lossy`). It costs bits of the
mantissa: ten remain. On an H200 it was kept in the one try that there was, and matmul_fp32 ran 48 times as fast in the
end (bench/recorded/README.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses.dtypes import array_dtypes, dtype_of
from tilewright.playbook.analyses.expressions import operands_of, text_of
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source, dotted

VALUES = ("tfloat32",)

EFFECT = Effect.assumed(1.5, 8.0, kept=1, of=1)
WHEN_NOT = "operands of 16 bits or fewer, which the tensor cores take as they are"


@dataclass(frozen=True)
class Tf32(Entry):
    about: EntryDescription
    declared: bool
    """Whether it is for tasks whose ``precision`` allows it."""

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        if (facts.task.precision is not None) != self.declared:
            return ()
        arrays = array_dtypes(source, facts)
        found = []
        for name, function in source.tile_code.items():
            known = arrays if name in source.kernels else {}
            for node in _products(source, function):
                operands = operands_of(node)
                if operands is None or any(_is_tf32(source, function, one) for one in operands):
                    continue
                if {dtype_of(source, function, one, known) for one in operands} - {None} == {"float32"}:
                    what = f"product of {' and '.join(_short(source, one) for one in operands)}"
                    found.append(Site.at(source, node, what, VALUES, why="float32 operands, no tensor core path"))
        return [site for site in found if self.applies(source, site)]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        function = site.function(source)
        node = site.node(source, _products(source, function), missing := "no product of two tiles")
        operands = operands_of(node)
        if operands is None:
            raise NotApplicable(f"{source.name}:{site.line}: {missing}")
        if any(_is_tf32(source, function, one) for one in operands):
            raise NotApplicable(f"{source.name}:{site.line}: the operands are tfloat32 already")
        cast = f".astype({source.tile_module}.{value})"
        if isinstance(node, cst.Call) and node in source.calls("mma", inside=function):
            return source.replaced({one: cst.parse_expression(text_of(source, one) + cast) for one in operands})
        left, right = (text_of(source, one) + cast for one in operands)
        return _accumulating(source, node, operands, f"{source.tile_module}.mma({left}, {right}, ")


def _products(source: Source, function: cst.FunctionDef) -> list[cst.BaseExpression]:
    """Calls of mma and matmul, and ``@``."""
    operators = [
        one for one in source.every(cst.BinaryOperation, function) if isinstance(one.operator, cst.MatrixMultiply)
    ]
    return [*source.calls("mma", "matmul", inside=function), *operators]


def _accumulating(
    source: Source, node: cst.BaseExpression, operands: tuple[cst.BaseExpression, cst.BaseExpression], product: str
) -> str:
    """``@`` gives a tile of its operands' dtype, tf32 here, so the sum is made in float32 by an accumulator."""
    above = source.parent(node)
    if isinstance(above, cst.AugAssign) and isinstance(above.operator, cst.AddAssign):
        target = source.code(above.target)
        new = cst.parse_statement(f"{target} = {product}{target})")
        assert isinstance(new, cst.SimpleStatementLine)
        return source.replaced({above: new.body[0].with_changes(semicolon=above.semicolon)})
    if isinstance(above, cst.BinaryOperation) and isinstance(above.operator, cst.Add):
        other = above.right if above.left is node else above.left
        assign = source.parent(above)
        if isinstance(assign, cst.Assign) and dotted(assign.targets[0].target) == dotted(other) != "":
            return source.replaced({above: cst.parse_expression(f"{product}{source.code(other)})")})
    if not all(isinstance(one, cst.Name) for one in operands):
        raise NotApplicable("the shape of the product is not at hand: its operands are no plain names")
    left, right = (source.code(one) for one in operands)
    module = source.tile_module
    zeros = f"{module}.zeros(({left}.shape[0], {right}.shape[1]), {module}.float32)"
    return source.replaced({node: cst.parse_expression(f"{product}{zeros})")})


def _is_tf32(source: Source, function: cst.FunctionDef, node: cst.BaseExpression) -> bool:
    return "tfloat32" in source.code(node) or dtype_of(source, function, node, {}) == "tfloat32"


def _short(source: Source, node: cst.BaseExpression) -> str:
    text = " ".join(source.code(node).split())
    return text if len(text) <= 24 else f"{text[:23]}…"


ENTRY = Tf32(
    EntryDescription(
        id="tf32",
        name="TF32 guard",
        what="float32 operands of a product cast to tfloat32; the sum stays float32",
        when="float32 tiles reach ct.mma or @ and the task declares tf32 or coarser arithmetic",
        when_not=WHEN_NOT,
        priority={"compute": 1, "balanced": 1, "memory": 9},
        order=50,
        effect=EFFECT,
    ),
    declared=True,
)
