"""Casts the float32 operands of a product to tfloat32, which the tensor cores multiply.

Without the cast cuTile multiplies float32 exactly, on the ordinary cores. Where the task declares that tf32 or coarser
is precise enough, the cast loses nothing that was promised; elsewhere it is lossy (`tf32_lossy`). It costs bits of the
mantissa: ten remain. On an H200 it was kept in the one try that there was, and matmul_fp32 ran 48 times as fast in the
end (bench/recorded/README.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from tilewright.languages import language_of
from tilewright.playbook.analyses.dataflow import parameters, values_by_name
from tilewright.playbook.analyses.expressions import operands_of, text_of
from tilewright.playbook.analyses.task_code import starts
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Function, Source, argument, dotted
from tilewright.task.tensors import ArraySpec

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


def _products(source: Source, function: Function) -> list[cst.BaseExpression]:
    """Calls of mma and matmul, and ``@``."""
    operations = source.every(cst.BinaryOperation, function)
    products = [one for one in operations if isinstance(one.operator, cst.MatrixMultiply)]
    return [*source.calls("mma", "matmul", inside=function), *products]


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


def _is_tf32(source: Source, function: Function, node: cst.BaseExpression) -> bool:
    return "tfloat32" in source.code(node) or dtype_of(source, function, node, {}) == "tfloat32"


def _short(source: Source, node: cst.BaseExpression) -> str:
    text = " ".join(source.code(node).split())
    return text if len(text) <= 24 else f"{text[:23]}…"


# The dtypes of tiles ------------------------------------------------------------------------------


_LIKE_FIRST = (
    "load", "gather", "reshape", "permute", "transpose", "broadcast_to", "expand_dims", "extract", "sum", "max",
    "min", "prod", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "abs", "negative", "maximum", "minimum",
    "add", "sub", "mul", "truediv",
)  # fmt: skip
ANY = "any"
"""The dtype of numbers and scalars, which take that of the tile they are combined with."""
_METHODS = ("reshape", "permute", "transpose", "extract", "slice", "load")
_MADE = {"zeros": 1, "ones": 1, "full": 2, "arange": None}


def array_dtypes(source: Source, facts: KernelFacts) -> Mapping[str, str]:
    """Parameters of the launched kernel and their dtypes, `ANY` of numbers; empty where another file has it."""
    launch = facts.launch(facts.workloads[0])
    kernel = starts(facts, source) or language_of(launch.kernel).kernel_name(launch.kernel)
    names = parameters(source.kernels[kernel]) if kernel in source.kernels else ()
    return {name: arg.dtype for name, arg in zip(names, launch.args, strict=False) if isinstance(arg, ArraySpec)}


def dtype_of(
    source: Source, function: Function, node: cst.BaseExpression | None, arrays: Mapping[str, str]
) -> str | None:
    """``"float32"`` of a tile or an array; None where the text does not tell."""
    found = _Dtypes(source, function, arrays).of(node)
    return None if found == ANY else found


class _Dtypes:
    def __init__(self, source: Source, function: Function, arrays: Mapping[str, str]) -> None:
        self.source, self.arrays = source, arrays
        self.values = values_by_name(source, function)
        self._open: set[str] = set()

    def of(self, node: cst.BaseExpression | None) -> str | None:
        match node:
            case cst.Integer() | cst.Float():
                return ANY
            case cst.Name():
                return self._named(node.value)
            case cst.Subscript(value=inside) | cst.UnaryOperation(expression=inside):
                return self.of(inside)
            case cst.BinaryOperation():
                left, right = self.of(node.left), self.of(node.right)
                return right if left in (ANY, right) else left if right == ANY else None
            case cst.Call():
                return self._called(node)
        return None

    def _named(self, name: str) -> str | None:
        if name in self._open:
            return ANY
        if name not in self.values:
            return self.arrays.get(name)
        self._open.add(name)
        found = {self.of(value) for value in self.values[name]} - {ANY}
        self._open.discard(name)
        return found.pop() if len(found) == 1 else None

    def _called(self, call: cst.Call) -> str | None:
        name = dotted(call.func).removeprefix(f"{self.source.tile_module}.")
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if method == "astype":
            of_module = dotted(call.func).startswith(f"{self.source.tile_module}.")
            return self._dtype(argument(call, "dtype", 1 if of_module else 0))
        if name in _MADE:
            return self._dtype(argument(call, "dtype", _MADE[name]))
        if name in ("mma", "where"):
            return self.of(argument(call, "acc", 2))
        if name in _LIKE_FIRST and call.args:
            return self.of(call.args[0].value)
        return self.of(call.func.value) if isinstance(call.func, cst.Attribute) and method in _METHODS else None

    def _dtype(self, node: cst.BaseExpression | None) -> str | None:
        if isinstance(node, cst.Attribute) and node.attr.value == "dtype":
            return self.of(node.value)
        return dotted(node).split(".")[-1] or None if node is not None else None


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
