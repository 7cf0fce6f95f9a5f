"""Scales a maximum in place of the tile that it is taken of: ``ct.max(x * s)`` as ``ct.max(x) * s``, for a scalar s.

    m = ct.maximum(m, ct.max(x * s, axis=1))    →    m = ct.maximum(m, ct.max(x, axis=1) * s if 0 < s < 1e38 else
                                                                       ct.max(x * s, axis=1))
    p = ct.exp2(x * s - m[:, None])                  p = ct.exp2(x * s - m[:, None])

The compiler makes the other product and its difference one fused multiply-add. So each element costs an instruction
less. Rounding keeps the order of numbers. So for a finite s above 0 the maximum is equal to the bit, also with infinite
elements and NaN. Any other s takes the old expression. A product that has a name is left alone: the compiler rounds it
before the difference, and would no longer.

All blocks take the same branch. But in some kernels a branch in a loop keeps the compiler from starting the products of
the next iteration early, and in others two loops have fewer stages. So both forms are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_assigned, names_read
from tilewright.playbook.analyses.expressions import bare, fitting, operands_of
from tilewright.playbook.analyses.helper_calls import is_scalar, may_be_imported
from tilewright.playbook.analyses.loop_bounds import placed
from tilewright.playbook.analyses.number_kinds import Floats
from tilewright.playbook.analyses.ranges import range_of_values
from tilewright.playbook.base import (
    HINTS_OF_TILES,
    Effect,
    EntryDescription,
    KernelFacts,
    NotApplicable,
    Site,
    refusal,
    refused_at,
    unless_refused,
)
from tilewright.playbook.rewriting import Rewritable, Rewriting
from tilewright.source.syntax import Expression, Function, Source, argument, dotted

VALUES = AFTER, TWO_LOOPS = "after the maximum", "a loop for each sign"
_PRODUCTS = ("mul", "truediv")
_FINITE = "1e38"
"""Each element but 0 is infinite if it is scaled by infinity, and 0 is then no number."""


@dataclass(frozen=True, eq=False)
class ScaledMaximum:
    """A ``call`` of ``ct.max`` or ``ct.min`` for the ``product`` of a ``tile`` and a ``scale``."""

    call: cst.Call
    product: Expression
    tile: cst.Name
    scale: Expression


class ScaledMax(Rewriting[Rewritable[cst.Call]]):
    about = EntryDescription(
        id="scaled_max",
        name="scale after the maximum",
        what="ct.max(x * s) as ct.max(x) * s, for a scalar s above 0; the old form behind a branch for any other",
        when="attention or a softmax that scales a tile of scores, takes its maximum, and subtracts it",
        when_not="a product that is needed for more than its maximum and a difference; a scale that is a tile",
        priority={"memory": 6, "balanced": 4, "compute": 2},
        eases=("issue slots", "tile size"),
        together=HINTS_OF_TILES,
        order=136,
        effect=Effect(1.0, 1.05, "TileGym's attention with a window of 512: 0.6 % less time, H200", "2026-12-01"),
    )
    missing = "no maximum of a product begins here"

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        found = []
        for place in self.found(source, facts):
            values = tuple(value for value, rewrite in place.rewrites.items() if not refusal(rewrite))
            found += [place.site(source, values=values)] if values else []
        return found

    def places(self, source: Source, function: Function) -> Iterator[Rewritable[cst.Call]]:
        """Yields one place for all maxima of a function: loops that are copies of each other change together."""
        name = function.name.value
        if name not in source.kernels and may_be_imported(source, function):
            return  # other files may pass integers, or a scale that is a tile
        if first := next(_maxima(source, name), None):
            rewrites = {value: partial(_rewritten, source, name, value) for value in VALUES}
            yield Rewritable(first.call, "maximum of a product", rewrites)


def _maxima(source: Source, function: str) -> Iterator[ScaledMaximum]:
    """Yields the maxima of products, but for those that are behind a test of the scale already."""
    for call in source.calls("max", "min", inside=source.functions[function]):
        product = argument(call, "x", 0)
        factors = _factors(source, product)
        if product and factors and not any(_tests(source, above, factors[1]) for above in source.parents(call)):
            yield ScaledMaximum(call, product, *factors)


def _tests(source: Source, node: cst.CSTNode, scale: Expression) -> bool:
    return isinstance(node, (cst.If, cst.IfExp)) and source.code(node.test) == _test_of(source, scale)


def _test_of(source: Source, scale: Expression) -> str:
    return f"0 < {source.code(scale)} < {_FINITE}"


def _factors(source: Source, node: Expression | None) -> tuple[cst.Name, Expression] | None:
    """Returns the tile and the scale of ``x * s``, ``s * x`` or ``x / s``, by operator or by call; None for anything
    else. If no factor is a scalar, the second is the scale."""
    match node:
        case cst.BinaryOperation(operator=cst.Multiply() | cst.Divide() as operator):
            divided = isinstance(operator, cst.Divide)
        case cst.Call(func=called, args=[_, _]) if (name := source.tile_name(dotted(called))) in _PRODUCTS:
            divided = name == "truediv"
        case _:
            return None
    if (operands := operands_of(node)) is None:
        return None
    scalar = partial(is_scalar, source, source.function_around(node))
    tile, scale = operands if divided or not scalar(operands[0]) else operands[::-1]
    return (tile, scale) if isinstance(tile, cst.Name) and not scalar(tile) else None


def _rewritten(source: Source, function: str, value: str) -> str:
    """Returns the text with each maximum changed that can be. Raises `NotApplicable` with a reason if none can be."""
    change = _chosen if value == AFTER else _doubled
    done = source
    while new := _once(done, function, change):
        done = new
    if done is source:
        raise NotApplicable(refusal(change, source, next(_maxima(source, function))))
    return done.text


def _once(source: Source, function: str, change: Callable[[Source, ScaledMaximum], Source]) -> Source | None:
    """Returns the source with the first of the maxima changed that can be."""
    return next(filter(None, (unless_refused(change, source, found) for found in _maxima(source, function))), None)


def _chosen(source: Source, found: ScaledMaximum) -> Source:
    """Returns the source with both forms of one maximum; with one form if the scale is known to be above 0."""
    return _scaled(source, found, always=_is_positive(source, found))


def _doubled(source: Source, found: ScaledMaximum) -> Source:
    """Returns the source with a loop for each form of one maximum."""
    loop = next((above for above in source.parents(found.call) if isinstance(above, cst.For)), None)
    if _is_positive(source, found) or loop is None or names_read(found.scale) & names_assigned(loop).keys():
        raise refused_at(source, found.call, "the sign of the scale is not tested before a loop")
    place = source.every(cst.For).index(loop)
    plain = _scaled(source, found, always=True).every(cst.For)[place]
    first, other = (cst.IndentedBlock(body=[each.with_changes(leading_lines=())]) for each in (plain, loop))
    test = cst.parse_expression(_test_of(source, found.scale))
    branch = cst.If(test=test, body=first, orelse=cst.Else(body=other))
    return Source(source.name, placed(source, loop, [branch]))


def _scaled(source: Source, found: ScaledMaximum, always: bool) -> Source:
    """Returns the source with one maximum changed."""
    text = source.code(bare(found.product))
    for use in _uses(source, found):
        above = source.parent(use)
        if not isinstance(above, cst.BinaryOperation) or not isinstance(above.operator, (cst.Add, cst.Subtract)):
            raise refused_at(source, found.call, f"line {source.place(use)[0]} needs {text} for more than a difference")
    return source.changed({found.call: fitting(source, found.call, _text(source, found, always))})


def _text(source: Source, found: ScaledMaximum, always: bool) -> str:
    """Returns the text of the scaled maximum. ``always``: whether the scale is known to be above 0."""
    product = bare(found.product)
    maximum, whole = (source.code(found.call.deep_replace(found.product, each)) for each in (found.tile, product))
    scaled = source.code(product.deep_replace(found.tile, cst.parse_expression(maximum)))
    return scaled if always else f"{scaled} if {_test_of(source, found.scale)} else {whole}"


def _is_positive(source: Source, found: ScaledMaximum) -> bool:
    """Returns whether the scale is known to be above 0. Raises `NotApplicable` if the maximum cannot be scaled."""
    scale, bounds = source.code(found.scale), range_of_values(source, found.scale)
    function = source.function_around(found.call)
    if not is_scalar(source, function, found.scale):
        raise refused_at(source, found.call, f"{scale} is not known to be a scalar")
    if not Floats(source, function).has(found.product):
        raise refused_at(source, found.call, f"{source.code(found.product)} may be an integer, which may wrap")
    if bounds is not None and bounds.high <= 0:
        raise refused_at(source, found.call, f"{scale} is not above 0")
    if "\n" in source.code(found.product):
        raise refused_at(source, found.call, "the product is written on several lines")
    return bounds is not None and bounds.low > 0


def _uses(source: Source, found: ScaledMaximum) -> list[Expression]:
    """Returns the expressions with the text of the product that are no argument of a maximum."""
    function = source.function_around(found.call)
    maxima = [argument(call, "x", 0) for call in source.calls("max", "min", inside=function)]
    every: list[Expression] = [*source.every(cst.BinaryOperation, function), *source.calls(*_PRODUCTS, inside=function)]
    text = source.code(bare(found.product))
    return [each for each in every if source.code(bare(each)) == text and each not in maxima]


ENTRY = ScaledMax()
