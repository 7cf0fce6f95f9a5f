"""Casts the float32 operands of a product to tfloat32, which the tensor cores multiply.

Without the cast cuTile multiplies float32 exactly, without tensor cores. The cast leaves ten bits of the mantissa. The
cast counts as lossless if the task declares tf32 or a coarser precision; for other tasks, `tf32_lossy` offers it. On an
H200 it was tried once and kept, and matmul_fp32 ran 48 times as fast in the end (bench/recorded/README.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses.dataflow import parameters
from tilewright.playbook.analyses.dtypes import ANY, Dtypes
from tilewright.playbook.analyses.expressions import operands_of, text_of
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Expression, Function, Source, dotted
from tilewright.task.tensors import ArraySpec

EFFECT = Effect.assumed(1.5, 8.0, kept=1, of=1)
WHEN_NOT = "operands of 16 bits or fewer, which the tensor cores take as they are"


@dataclass(frozen=True)
class Tf32(Entry):
    """The entry for tasks whose ``precision`` allows tf32 (``declared`` is True), or for all other tasks (``declared``
    is False)."""

    about: EntryDescription
    declared: bool

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        if (facts.task.precision is not None) != self.declared:
            return []
        args = facts.launch(facts.workloads[0]).args
        found = []
        for name, function in source.tile_code.items():
            passed = zip(parameters(function), args, strict=False) if name == facts.kernel else ()
            dtypes = Dtypes(source, function, {name: arg.dtype for name, arg in passed if isinstance(arg, ArraySpec)})
            for node in _products(source, function):
                operands = operands_of(node) or ()
                if {dtypes.of(operand) for operand in operands} - {None, ANY} == {"float32"}:
                    what = f"product of {' and '.join(_short(source, operand) for operand in operands)}"
                    site = Site.at(source, node, what, ("tfloat32",), why="float32 operands, no tensor core path")
                    found += [site] if self.applies(source, site) else []
        return found

    def apply(self, source: Source, site: Site, value: Value) -> str:
        function = site.function(source)
        node = site.node(source, _products(source, function), missing := "no product of two tiles")
        operands = operands_of(node)
        if operands is None:
            raise site.refused(source, missing)
        if any(_is_tf32(source, function, operand) for operand in operands):
            raise site.refused(source, "the operands are tfloat32 already")
        cast = f".astype({source.tile_module}.{value})"
        if isinstance(node, cst.Call) and node in source.calls("mma", inside=function):
            return source.replaced({each: cst.parse_expression(text_of(source, each) + cast) for each in operands})
        left, right = (text_of(source, operand) + cast for operand in operands)
        return _accumulating(source, node, operands, f"{source.tile_module}.mma({left}, {right}, ")


def _products(source: Source, function: Function) -> list[Expression]:
    """Returns the calls of mma and matmul, and the operations ``@``."""
    operations = source.every(cst.BinaryOperation, function)
    products = [operation for operation in operations if isinstance(operation.operator, cst.MatrixMultiply)]
    return [*source.calls("mma", "matmul", inside=function), *products]


def _accumulating(source: Source, node: Expression, operands: tuple[Expression, Expression], product: str) -> str:
    """Returns the text with ``node`` replaced by a call of mma. ``product`` is the call up to its last argument.

    The last argument is an accumulator, which keeps the sum in float32; the result of ``@`` would be tf32.
    """
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
    if not all(isinstance(operand, cst.Name) for operand in operands):
        raise NotApplicable("the shape of the product is not known: its operands are not names")
    left, right = (source.code(operand) for operand in operands)
    module = source.tile_module
    zeros = f"{module}.zeros(({left}.shape[0], {right}.shape[1]), {module}.float32)"
    return source.replaced({node: cst.parse_expression(f"{product}{zeros})")})


def _is_tf32(source: Source, function: Function, node: Expression) -> bool:
    return "tfloat32" in source.code(node) or Dtypes(source, function, {}).of(node) == "tfloat32"


def _short(source: Source, node: Expression) -> str:
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
        eases=("tensor path",),
        order=50,
        effect=EFFECT,
    ),
    declared=True,
)
