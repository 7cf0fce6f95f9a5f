"""Divides the rows of a float32 tile by one value each with one exact division a row, if the quotients become float16.

    out = x / ct.expand_dims(l, axis=1)

becomes

    divisor = ct.expand_dims(l, axis=1)
    power = ct.where(ct.abs(divisor) > 2.0**64, 2.0**-64, ct.where(ct.abs(divisor) < 2.0**-64, 2.0**64, 1.0))
    scale = ct.where(divisor < 0.0, -power, power)
    scaled = divisor * scale
    inverse = 1.0 / scaled
    dividend = x * scale
    product = dividend * inverse
    corrected = -(product * scaled - dividend) * inverse + product
    out = ct.where(ct.abs(corrected) < 2.0**64, corrected, product)

An exact quotient takes about ten instructions and a branch for each element, the last four lines take six. cuda.tile
fuses a product at the left of + or - with the sum. So the remainder, `product * scaled - dividend`, is exact. In this
order of its terms the remainder of a zero is +0, and a quotient keeps the sign of its zero if the divisor is positive.

The result is equal to the bit. Let a and b, from 1 to 2, be the mantissas of dividend and divisor, and u the distance
of floats at a / b. The inverse is within 2^-25 of 1 / b, so the product is within 1.5 u of a / b. Its remainder may
have 25 bits, and loses the last. So the corrected quotient is within 7 · 2^-48 / b of a / b before it is rounded. It
can round to another float than a / b only if a / b is that close to the middle of two floats. The test of this entry
computes all such pairs, 70 million, and all are right.

The scale keeps the inverse normal, and the remainders of scaled dividends from 2^-102 on. Smaller dividends have
quotients below 2^-38, which are 0 in float16. If the corrected quotient is NaN, or infinite in float16, the product is
taken. In bfloat16 or float32 small quotients would differ, so a kernel for several dtypes keeps the division for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import libcst as cst

from tilewright.playbook.analyses.chunk_loops import plain_target
from tilewright.playbook.analyses.compiled_dtypes import may_be_computed_in
from tilewright.playbook.analyses.dataflow import Effects, names_assigned, names_read, parameters, reaching
from tilewright.playbook.analyses.expressions import bare, exact_quotient, factor_of, fitting, imported, line_around
from tilewright.playbook.analyses.helper_calls import shapes_in
from tilewright.playbook.analyses.number_kinds import Float32
from tilewright.playbook.analyses.online_loops import reads_of
from tilewright.playbook.analyses.task_code import fresh_in, passed
from tilewright.playbook.analyses.tile_shapes import REDUCTIONS, is_true, new_axes, same_elements, tile_call
from tilewright.playbook.base import Effect, EntryDescription, KernelFacts, Site, refusal, refused_at
from tilewright.playbook.rewriting import Rewritable, Rewriting, preceded
from tilewright.source.syntax import Expression, Function, Line, Source, argument, dotted

INVERSE = "one inverse a row"


@dataclass(frozen=True, eq=False)
class RowQuotient:
    """The quotient ``node``. Its divisor has fewer elements than its dividend, as far as the text shows it."""

    node: Expression
    dividend: Expression
    divisor: Expression


class RowDivision(Rewriting[Rewritable[Expression]]):
    about = EntryDescription(
        id="row_division",
        name="one division a row",
        what="float32 quotients by a value a row as products with its inverse, corrected to the rounding of a division",
        when="rows that are divided by their sum or root and cast to float16: attention, softmax, norms",
        when_not="quotients in bfloat16 or float32; a divisor for each element; a quotient that is used twice",
        priority={"memory": 7, "balanced": 4, "compute": 3},
        eases=("conversions and special functions", "issue slots", "tile size"),
        order=138,
        effect=Effect(1.0, 1.08, "TileGym's attention with a window: 5 % less time, H200", "2026-12-01"),
    )
    missing = "no quotient by a value a row begins here"
    most = 4

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        found = []
        for place in self.found(source, facts):
            if not refusal(place.rewrites[INVERSE]) and _is_half(source, facts, place.node):
                found.append(place.site(source))
        return found[: self.most] if found and not may_be_computed_in(facts, "f64") else []

    def places(self, source: Source, function: Function) -> Iterator[Rewritable[Expression]]:
        for quotient in _quotients(source, function):
            rewrites = {INVERSE: partial(_rewritten, source, function, quotient)}
            yield Rewritable(quotient.node, "quotient by a value a row", rewrites)


def _quotients(source: Source, function: Function) -> Iterator[RowQuotient]:
    """Yields the quotients by a value a row or column that are rounded to nearest."""
    for node in (*source.every(cst.BinaryOperation, function), *source.calls("truediv", inside=function)):
        if (operands := exact_quotient(source, node)) is not None and _is_smaller(source, function, *operands):
            yield RowQuotient(node, *operands)


def _is_smaller(source: Source, function: Function, dividend: Expression, divisor: Expression) -> bool:
    """Returns whether the divisor is a tile with fewer elements than the quotient, as far as shapes are known."""
    shapes = shapes_in(source, function)
    shape, wide = shapes.of(divisor), shapes.of(dividend)
    if shape is None:
        return _is_expanded(source, divisor)
    return shape != wide and ("1" in shape or (shape == () and Float32(source, function).has(divisor)))


def _is_expanded(source: Source, node: Expression) -> bool:
    """Returns whether the last operation of a tile gives an axis the extent 1."""
    match node:
        case cst.Name(value=name):
            found = reaching(source, name, node)
            return found is not None and found.value is not None and _is_expanded(source, found.value)
        case cst.Subscript():
            return any(new_axes(node) or ())
        case cst.Call():
            name = tile_call(source, node)
            kept = name in REDUCTIONS and is_true(argument(node, "keepdims"))
            return name == "expand_dims" or kept is True
    return False


def _is_half(source: Source, facts: KernelFacts, node: Expression) -> bool:
    """Returns whether a quotient is cast to float16 in at least one launch."""
    array = _array_cast_to(source, node)
    if not array:
        return True
    launches = facts.launches if source.function_of(node) == facts.kernel else []
    given = (passed(source, launch).get(array) for launch in launches)
    return any(str(getattr(each, "dtype", "")) == "float16" for each in given)


def _rewritten(source: Source, function: Function, quotient: RowQuotient) -> str:
    """Returns the text with one inverse a row. Raises `NotApplicable` if results could differ."""
    node = quotient.node
    _check_operands(source, function, quotient)
    array, line = _array_cast_to(source, node), line_around(source, node)
    if line is None:
        raise refused_at(source, node, "the quotient is no part of a statement on a line of its own")
    fresh = partial(fresh_in, source, function.name.value)
    lines, new = _corrected(source, quotient, array, fresh)
    if not isinstance(source.parent(node), cst.Assign):
        name = fresh("quotient")
        lines.append(f"{name} = {new}")
        new = name
    statements = [cst.parse_statement(each) for each in lines]
    return source.replaced({node: fitting(source, node, new), line: partial(preceded, statements)})


def _corrected(source: Source, quotient: RowQuotient, array: str, fresh: Callable[[str], str]) -> tuple[list[str], str]:
    """Returns the statements before a quotient, and the text of the quotient. ``array``: the array to whose dtype it is
    cast, or "". ``fresh``: makes a name new."""
    where, absolute = imported(source, "where"), imported(source, "abs")
    lines, divisor = list[str](), source.code(bare(quotient.divisor))
    if not isinstance(quotient.divisor, cst.Name):
        lines.append(f"{(name := fresh('divisor'))} = {divisor}")
        divisor = name
    power, scale, scaled, inverse = map(fresh, ("power", "scale", "scaled", "inverse"))
    dividend, product, corrected = map(fresh, ("dividend", "product", "corrected"))
    size, divided = f"{absolute}({divisor})", factor_of(source, quotient.dividend)
    lines += [
        f"{power} = {where}({size} > 2.0**64, 2.0**-64, {where}({size} < 2.0**-64, 2.0**64, 1.0))",
        f"{scale} = {where}({divisor} < 0.0, -{power}, {power})",
        f"{scaled} = {divisor} * {scale}",
        f"{inverse} = 1.0 / {scaled}",
        f"{dividend} = {divided} * {scale}",
        f"{product} = {dividend} * {inverse}",
        f"{corrected} = -({product} * {scaled} - {dividend}) * {inverse} + {product}",
    ]
    new = f"{where}({absolute}({corrected}) < 2.0**64, {corrected}, {product})"
    if array:
        new = f"{new} if {array}.dtype == {imported(source, 'float16')} else {divided} / {divisor}"
    return lines, new


def _check_operands(source: Source, function: Function, quotient: RowQuotient) -> None:
    """Refuses operands that may be other than float32, or that cannot be computed before the statement."""
    kinds, effects = Float32(source, function), Effects(source, function)
    if "float64" in source.code(function):
        raise refused_at(source, quotient.node, "the kernel computes in float64")
    if len(source.every(cst.FunctionDef, function)) > 1 or source.every(cst.Lambda, function):
        raise refused_at(source, quotient.node, "a function inside this function has its own names")
    if renamed := {"float16", "float32"} & {*names_assigned(source.module), *parameters(function)}:
        raise refused_at(source, quotient.node, f"{min(renamed)} may be another dtype here")
    if "\n" in source.code(quotient.node):
        raise refused_at(source, quotient.node, "the quotient is written on several lines")
    for operand in (quotient.dividend, quotient.divisor):
        if not kinds.has(operand):
            raise refused_at(source, quotient.node, f"{source.code(operand)} is not known to be a tile of float32")
        if not effects.is_pure(operand):
            raise refused_at(source, quotient.node, f"{source.code(operand)} may have effects, or read what is stored")


def _array_cast_to(source: Source, node: Expression) -> str:
    """Returns the array to whose dtype a quotient is cast; "" if it is cast to float16 for any array.

    Raises `NotApplicable` if the quotient is used for anything else.
    """
    cast, above = node, source.parent(node)
    if isinstance(above, cst.Assign):
        cast = _only_read(source, node, above)
    call = next((each for each in source.parents(cast) if isinstance(each, cst.Call)), None)
    if call is None or same_elements(source, call) is not cast:
        raise refused_at(source, cast, "the quotient is used for more than a cast to float16")
    dtype = argument(call, "dtype", 1 if tile_call(source, call) else 0)
    if dtype is not None and source.tile_name(dotted(dtype)) == "float16":
        return ""
    function = source.function_around(node)
    match dtype:
        case cst.Attribute(value=cst.Name(value=array), attr=cst.Name(value="dtype")):
            is_kernel = function.name.value in source.kernels
            if is_kernel and array in parameters(function) and not names_assigned(function)[array]:
                return array
    text = source.code(dtype) if dtype is not None else "an unknown dtype"
    raise refused_at(source, cast, f"the quotient is cast to {text}, which is not known to be float16")


def _only_read(source: Source, node: Expression, assign: cst.Assign) -> cst.Name:
    """Returns the only place that reads the name to which a quotient is assigned."""
    function, name = source.function_around(node), dotted(assign.targets[0].target)
    changes = [each.target for each in source.every(cst.AugAssign, function) if dotted(each.target) == name]
    start, end = _first_other_value(source, name, node), source.place(node)
    reads = []
    for read in (*reads_of(source, name, function.body), *changes):
        found = reaching(source, name, read)
        earlier = start <= source.place(read) and (source.place(read) < end or assign in source.parents(read))
        if not earlier and isinstance(read, cst.Name) and (found is None or found.node is assign):
            reads.append(read)
    if len(assign.targets) != 1 or not name or len(reads) != 1:
        raise refused_at(source, node, "the quotient is used for more than a cast to float16")
    return reads[0]


def _first_other_value(source: Source, name: str, node: Expression) -> tuple[int, int]:
    """Returns the first place from which on, up to a quotient and in all branches, its name has other values. In a loop
    this is after a statement that gives it a new value in each iteration."""
    end = source.place(node)
    loop = next((above for above in source.parents(node) if isinstance(above, (cst.For, cst.While))), None)
    if loop is None:
        return (0, 0)
    lines = [each for each in loop.body.body if isinstance(each, Line) and source.place(each) < end]
    news = (each for each in lines if plain_target(each) == name and name not in names_read(each))
    return next((source.place(each) for each in news if each not in source.parents(node)), (end[0] + 1, 0))


ENTRY = RowDivision()
