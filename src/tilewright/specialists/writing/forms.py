"""Finds the form (the supported pattern) of a computation: element-wise, row reductions, or the product of two matrices
with an epilogue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from tilewright.specialists.writing.cheaper import cheaper
from tilewright.specialists.writing.expression import (
    FLOATS,
    REDUCTIONS,
    Computation,
    Expression,
    Graph,
    Operand,
    OutsideForms,
    Shape,
    below,
    broadcast,
    spelled,
)

FormName: TypeAlias = Literal["element-wise", "row reductions", "product of matrices"]


@dataclass(frozen=True)
class KernelForm:
    """A computation with its form, and the axes over which a kernel iterates. The last axis is the columns."""

    name: FormName
    computation: Computation
    axes: tuple[str, ...]

    @property
    def columns(self) -> str:
        return self.axes[-1]

    def varies(self, expression: Expression) -> bool:
        """Returns whether an expression has a value for each column. Otherwise it has one value for the row."""
        return self.columns in expression.shape

    @property
    def same_shapes(self) -> bool:
        """Whether all tensors have all axes. Each tensor is then one contiguous range of memory."""
        tensors = [*self.computation.inputs, *(operand for operand, _ in self.computation.outputs)]
        return all(each.shape == self.axes for each in tensors)

    @property
    def reductions(self) -> tuple[Expression, ...]:
        return tuple(each for each in below(self.computation.results) if each.op in REDUCTIONS)


def form_of(computation: Computation) -> KernelForm:
    """Returns the form. Raises OutsideForms, whose message contains the unsupported part."""
    computation = stabilised(computation)
    used = tuple(below(computation.results))
    read = {each.value for each in used if each.op == "input"}
    if unused := [each.name for each in computation.inputs if each.name not in read]:
        raise OutsideForms(f"the reference does not use its tensor '{unused[0]}'")
    products = [each for each in used if each.op == "product"]
    reductions = [each for each in used if each.op in REDUCTIONS]
    if len(products) > 1 or (products and reductions):
        beside = "a reduction" if reductions else "another product"
        raise OutsideForms(
            f"a product of matrices beside {beside}; one product with an element-wise epilogue is written"
        )
    if products:
        return _product(computation, products[0], used)
    axes = _axes([each.shape for each in used if each.op != "index"])
    name: FormName = "row reductions" if reductions else "element-wise"
    form = KernelForm(name, computation, axes)
    for each in reductions:
        if each.operands[0].shape[-1:] != axes[-1:]:
            raise OutsideForms(f"a reduction over {spelled(each.operands[0].shape[-1:])}; only {axes[-1]} is reduced")
    if any(each.op == "transpose" for each in used):
        raise OutsideForms("a transpose outside a product of matrices")
    if any(each.op == "index" and each.value != form.columns for each in used):
        raise OutsideForms(f"an index along another axis than {form.columns}")
    if reductions or any(each.op == "drop" for each in used):
        wanted: list[Shape] = [axes, (*axes[:-1], 1), axes[:-1]]
    else:
        wanted = [axes]
    for operand, _ in computation.outputs:
        if operand.shape not in wanted:
            known = " or ".join(spelled(each) for each in wanted)
            raise OutsideForms(f"the output {spelled(operand.shape)}; outputs of {known} are written")
    return replace(form, computation=cheaper(computation, form.columns if reductions else None))


def _axes(shapes: list[Shape]) -> tuple[str, ...]:
    """Returns the axes of the longest shape. Raises OutsideForms unless each other shape has some of these axes, in
    order."""
    widest = broadcast([max(shapes, key=lambda shape: (len(shape), sum(each != 1 for each in shape)))])
    axes = tuple(each for each in widest if isinstance(each, str))
    for shape in shapes:
        extents = [each for each in shape if each != 1]
        missing = [each for each in extents if each not in axes]
        if missing or [each for each in axes if each in extents] != extents:
            raise OutsideForms(f"the shape {spelled(shape)} beside {spelled(widest)}; one set of axes is written")
    if not axes or len(axes) < len(widest):
        raise OutsideForms(f"the shape {spelled(widest)}, whose axes are not all named")
    return axes


@dataclass(frozen=True)
class Product:
    """The product in a form: its two operands, whether each is transposed first, and the axis that is summed."""

    expression: Expression
    left: Operand
    right: Operand
    left_transposed: bool
    right_transposed: bool
    inner: str


def product_of(form: KernelForm) -> Product:
    """Returns the product of a form that is a product of matrices."""
    (product,) = (each for each in below(form.computation.results) if each.op == "product")
    inputs = {each.name: each for each in form.computation.inputs}
    left, right = (inputs[str(_matrix(each).value)] for each in product.operands)
    transposed = [each.op == "transpose" for each in product.operands]
    return Product(product, left, right, transposed[0], transposed[1], str(product.operands[0].shape[1]))


def _product(computation: Computation, product: Expression, used: tuple[Expression, ...]) -> KernelForm:
    axes = (str(product.shape[0]), str(product.shape[1]))
    if 1 in product.shape or any(_matrix(each).op != "input" for each in product.operands):
        raise OutsideForms("a product of computed matrices or of a vector; the operands must be tensors of two axes")
    tensors = {each.name: each.dtype for each in computation.inputs}
    dtypes = [tensors[str(_matrix(each).value)] for each in product.operands]
    if len(set(dtypes)) > 1 or dtypes[0] not in FLOATS:
        raise OutsideForms(f"a product of {' and '.join(dtypes)}; both operands must be floats of one dtype")
    operands = {_matrix(each) for each in product.operands}
    plain = [each for each in used if each not in (product, *product.operands, *operands)]
    if any(each.op == "index" or (each.op == "transpose") for each in plain):
        raise OutsideForms("an index or a transpose in the epilogue")
    if any(each.shape not in _parts(axes) for each in plain) or any(
        result.shape != axes for result in computation.results
    ):
        raise OutsideForms(f"an epilogue with other shapes than parts of {spelled(axes)}")
    if any(each in operands for one in plain for each in one.operands):
        raise OutsideForms("an operand of the product that the epilogue reads again")
    return KernelForm("product of matrices", cheaper(computation), axes)


def _parts(axes: tuple[str, str]) -> tuple[Shape, ...]:
    return ((), (1,), axes, (1, axes[1]), (axes[0], 1), (axes[0],), (axes[1],), (1, 1))


def _matrix(operand: Expression) -> Expression:
    return operand.operands[0] if operand.op == "transpose" else operand


# Stable forms ---------------------------------------------------------------------------------------

NAIVE = (
    "the reference sums powers without subtracting the largest first; the kernel subtracts it, and does not overflow"
)


def stabilised(computation: Computation) -> Computation:
    """Subtracts the largest value if the reference divides powers by their sum, or takes the log of such a sum."""
    graph, changed = computation.graph, dict[Expression, Expression]()
    for each in below(computation.results):
        operands = tuple(changed[operand] for operand in each.operands)
        kept = each if operands == each.operands else graph.make(each.op, operands, each.shape, each.value, each.dtype)
        if kept is not each and each in graph.names:
            graph.names.setdefault(kept, graph.names[each])
        changed[each] = _stable(graph, kept) or kept
    outputs = tuple((operand, changed[result]) for operand, result in computation.outputs)
    notes = computation.notes
    if tuple(result for _, result in outputs) != computation.results:
        notes = (*notes, NAIVE)
    return replace(computation, outputs=outputs, notes=notes)


def _stable(graph: Graph, each: Expression) -> Expression | None:
    if each.op == "/":
        total = _total(each.operands[1])
        if total is not None and each.operands[0] is total:
            powers, _ = _shifted(graph, total)
            return graph.apply("/", powers, graph.reduce("sum", powers))
    if each.op == "log":
        total, dropped = _total(each.operands[0]), each.operands[0].op == "drop"
        if total is not None:
            powers, largest = _shifted(graph, total)
            stable = graph.apply("+", largest, graph.apply("log", graph.reduce("sum", powers)))
            return graph.make("drop", [stable], stable.shape[:-1]) if dropped else stable
    return None


def _total(expression: Expression) -> Expression | None:
    """Returns the exponentials that a sum adds up. Returns None if a maximum was already subtracted from the exponents,
    or if there is no such sum.
    """
    while expression.op in ("drop", "expand"):
        (expression,) = expression.operands
    if expression.op != "sum" or expression.operands[0].op != "exp":
        return None
    powers = expression.operands[0]
    exponent = powers.operands[0]
    shifted = exponent.op == "-" and any(each.op == "max" for each in below(exponent.operands[1:]))
    return None if shifted else powers


def _shifted(graph: Graph, powers: Expression) -> tuple[Expression, Expression]:
    (exponent,) = powers.operands
    largest = graph.reduce("max", exponent)
    return graph.apply("exp", graph.apply("-", exponent, largest)), largest
