"""Writes a gather or scatter of consecutive elements as a load or store of a tile.

``ct.gather(x, (row, n * TILE + arange(TILE)))`` reads block n of row `row`: ``ct.load(x, (row, n), (1, TILE))``.
A range that does not begin at a multiple of its size is loaded from a view that begins there (`Array.slice`). A table
that all lanes ask for the same page is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_read, parameters, reaching, without_dead
from tilewright.playbook.analyses.expressions import text_of
from tilewright.playbook.analyses.index_forms import ONE, Form, Forms, Scalar, Span, bare
from tilewright.playbook.analyses.task_code import argument_of, extent_of
from tilewright.playbook.analyses.tile_shapes import Shape, Shapes, is_true, tile_call, tuple_text
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Source, argument, dotted, elements, number

PADDING = {"0": "ZERO", "-0.0": "NEG_ZERO", "inf": "POS_INF", "-inf": "NEG_INF", "nan": "NAN"}
INDENT = " " * 4
LINE = 110
"""Columns of code."""
KNOWN = ("mask", "padding_value", "check_bounds", "latency")


@dataclass(frozen=True)
class Converted:
    """What replaces the call."""

    call: cst.Call
    function: str
    arguments: tuple[str, ...]
    reshaped: str
    """``.reshape(...)`` to the shape of the index tile, where that is another one."""
    sliced: bool
    """Whether the array is viewed from an element at which no tile begins."""
    read: frozenset[str]
    """Names that the old index and mask read."""

    def text(self, columns: int | None = None) -> str:
        """As Python. With ``columns``, the arguments stand on lines of their own of at most that length."""
        arguments = ", ".join(self.arguments)
        if columns is not None and len(arguments) + len(INDENT) <= columns:
            arguments = f"\n{INDENT}{arguments}\n"
        elif columns is not None:
            arguments = "".join(f"\n{INDENT}{one}," for one in self.arguments) + "\n"
        return f"{self.function}({arguments}){self.reshaped}"


def _with_access(source: Source, one: Converted) -> Source:
    """The source with one access converted, over several lines where one would be too long."""
    new = source.changed({one.call: cst.parse_expression(one.text())})
    line = source.place(one.call)[0] - 1
    if len(new.text.splitlines()[line]) <= LINE:
        return new
    written = source.text.splitlines()[line]
    columns = LINE - (len(written) - len(written.lstrip()))  # libcst indents the lines within parentheses
    return source.changed({one.call: cst.parse_expression(one.text(columns))})


def convertible(
    source: Source, function: str, kinds: Sequence[str], convert: Callable[[Source, cst.Call], Converted]
) -> Iterator[Converted]:
    """The accesses of a function that ``convert`` does not refuse."""
    for call in source.calls(*kinds, inside=source.functions[function]):
        try:
            yield convert(source, call)
        except NotApplicable:
            continue


def with_accesses(source: Source, function: str, possible: Callable[[Source], Iterator[Converted]]) -> str:
    """The text with the ``possible`` accesses converted one after the other, and without what only they read."""
    read, changed = set[str](), source
    while (one := next(possible(changed), None)) is not None:
        read |= one.read
        changed = _with_access(changed, one)
    if changed is source:
        raise NotApplicable(f"{function} has no such access that can be replaced")
    return without_dead(changed, function, read).text


def converted(source: Source, call: cst.Call) -> Converted:
    """The tile access that does what ``call`` does. Raises `NotApplicable` where there is none."""
    name = tile_call(source, call)
    if name not in ("gather", "scatter"):
        raise NotApplicable(f"{source.code(call.func)} is neither a gather nor a scatter")
    positional = 2 if name == "gather" else 3
    if [arg.keyword for arg in call.args[:positional]] != [None] * positional or any(arg.star for arg in call.args):
        raise NotApplicable("the arguments of the access are not written one by one")
    if unknown := [arg for arg in call.args[positional:] if arg.keyword is None or arg.keyword.value not in KNOWN]:
        raise NotApplicable(f"{source.code(unknown[0])} has no counterpart in a tile access")
    shapes = Shapes(source, source.functions[source.function_of(call)])
    array, sizes, index, result = _place(source, call, shapes)
    reshape = ""
    if name == "gather":
        function, last = source.spelled("load"), [tuple_text(sizes), f"padding_mode={_padding(source, call)}"]
        if sizes != result:
            reshape = f".reshape({tuple_text(result)})"
    else:
        function, last = source.spelled("store"), [_value(source, call.args[2].value, shapes, sizes)]
    if not function:
        raise NotApplicable(f"{source.name} does not import the tile access of cuda.tile")
    arguments = with_kept(source, call, [array, index, *last])
    read = frozenset(names_read(call) - names_read(call.args[0].value))
    return Converted(call, function, arguments, reshape, array != source.code(call.args[0].value), read)


def _place(source: Source, call: cst.Call, shapes: Shapes) -> tuple[str, Shape, str, Shape]:
    """The array or its view, the tile's sizes by axes of the array, its index, and the shape of the index tile."""
    given = call.args[1].value
    if isinstance(given, cst.Name):
        definition = reaching(source, given.value, call)
        if definition is not None and elements(definition.value) is not None:
            raise NotApplicable(f"the indices are put together before the access, in {given.value}")
    listed = elements(given)
    indices = listed if listed is not None else [given]
    forms = [Forms(source, call, shapes).of(one, call) for one in indices]
    result = _result(forms)
    stops = _stops(source, call, forms, shapes)
    array = whole = source.code(call.args[0].value)
    index, sizes = [], []
    for axis, form in enumerate(forms):
        if isinstance(form, Scalar) or form.same:
            index.append(source.code(bare(indices[axis])) if isinstance(form, Scalar) else form.start.text)
            sizes.append("1")
            continue
        block, rest = form.start.over(form.size)
        if rest.terms or stops[axis] is not None:
            array += f".slice({axis}, {rest.text}, {stops[axis] or f'{whole}.shape[{axis}]'})"
        index.append(block.text)
        sizes.append(form.size.text)
    return array, tuple(sizes), tuple_text(index), result


def _result(forms: Sequence[Form]) -> Shape:
    """Shape of the index tile. Its axes must be those of the array that are ranges, in their order."""
    spans = [form for form in forms if isinstance(form, Span) and not form.same]
    if all(span.size == ONE for span in spans):
        raise NotApplicable("no index is a range of consecutive elements")
    rank = max(form.rank for form in forms if not isinstance(form, Scalar))
    axes = [rank - span.rank + span.axis for span in spans]
    if axes != sorted(set(axes)):
        raise NotApplicable("the axes of the index tile are not those of the array in their order")
    sizes = ["1"] * rank
    for axis, span in zip(axes, spans, strict=True):
        sizes[axis] = span.size.text
    for form in forms:
        if isinstance(form, Span) and form.same and sizes[rank - form.rank + form.axis] != form.size.text:
            raise NotApplicable("all lanes along an axis read the same element")
    return tuple(sizes)


def _stops(source: Source, call: cst.Call, forms: Sequence[Form], shapes: Shapes) -> list[str | None]:
    """Where a mask ends the range of each axis before the array does; None where it does not."""
    mask, array = argument(call, "mask"), call.args[0].value
    stops: list[str | None] = [None] * len(forms)
    for index, stop in () if mask is None else _limits(source, mask, Forms(source, call, shapes)):
        axes = [axis for axis, form in enumerate(forms) if form == index]
        if mask is not None and len(axes) != 1:
            raise NotApplicable(f"the mask {source.code(mask)} limits something else than the indices")
        [axis] = axes
        if stop.replace(" ", "") != f"{dotted(array)}.shape[{axis}]" and stop != _extent(source, array, axis):
            if stops[axis] is not None:
                raise NotApplicable("the mask limits an index twice")
            stops[axis] = stop
    return stops


def _padding(source: Source, call: cst.Call) -> str:
    given = argument(call, "padding_value")
    value = 0 if given is None else number(given)
    if value is None and given is not None:
        text = source.code(given).replace(" ", "").replace("'", '"')
        name = text.replace('float("inf")', "inf").replace('float("-inf")', "-inf").replace('float("nan")', "nan")
        for module in ("math.", "np.", "numpy."):
            name = name.replace(module, "")
    else:
        name = "-0.0" if str(value) == "-0.0" else "0" if value == 0 else str(value)
    if name not in PADDING:
        raise NotApplicable(f"a tile cannot be padded with {source.code(given) if given else name}")
    return f"{source.spelled('PaddingMode')}.{PADDING[name]}"


def with_kept(source: Source, call: cst.Call, arguments: Sequence[str]) -> tuple[str, ...]:
    """The arguments of the new access, with those that both kinds have. Raises `NotApplicable` for a comment."""
    found = list(arguments)
    for name in ("check_bounds", "latency"):
        value = argument(call, name, None)
        if value is not None and not (name == "check_bounds" and is_true(value)):
            found.append(f"{name}={source.code(value)}")
    if sum(one.count("#") for one in found) != source.code(call).count("#"):
        raise NotApplicable("a comment stands inside the call")
    return tuple(found)


def _value(source: Source, node: cst.BaseExpression, shapes: Shapes, sizes: Shape) -> str:
    """The stored value, reshaped to the tile: `ct.store` takes the tile's extent from the value."""
    shape, text = shapes.of(node), source.code(node)
    if shape == sizes:
        return text
    if shape is not None and [one for one in shape if one != "1"] != [one for one in sizes if one != "1"]:
        raise NotApplicable(f"{text} is stored to more elements than it has")
    return f"{text_of(source, node)}.reshape({tuple_text(sizes)})"


# Masks: ``index < limit``, or several such joined by ``&`` ----------------------------------------


def _limits(source: Source, mask: cst.BaseExpression, forms: Forms) -> Iterator[tuple[Form, str]]:
    """The indices that a mask limits and their limits. Raises `NotApplicable` for any other mask."""
    for one, where in _parts(source, mask, mask):
        match one:
            case cst.Comparison(left=index, comparisons=[cst.ComparisonTarget(cst.LessThan(), comparator=limit)]):
                stop = forms.of(limit, where)
            case cst.Comparison(left=limit, comparisons=[cst.ComparisonTarget(cst.GreaterThan(), comparator=index)]):
                stop = forms.of(limit, where)
            case _:
                raise NotApplicable(f"the mask {source.code(mask)} is no limit on an index")
        if not isinstance(stop, Scalar):
            raise NotApplicable(f"the mask {source.code(mask)} has no scalar limit")
        yield forms.of(index, where), stop.text


def _parts(
    source: Source, mask: cst.BaseExpression, where: cst.CSTNode
) -> Iterator[tuple[cst.BaseExpression, cst.CSTNode]]:
    match mask:
        case cst.BinaryOperation(operator=cst.BitAnd()):
            yield from _parts(source, mask.left, where)
            yield from _parts(source, mask.right, where)
        case cst.Name():
            definition = reaching(source, mask.value, where)
            if definition is None or definition.value is None:
                raise NotApplicable(f"the mask {mask.value} is not plain where it is used")
            yield from _parts(source, definition.value, definition.node)
        case _:
            yield mask, where


def _extent(source: Source, array: cst.BaseExpression, axis: int) -> str | None:
    """The parameter of the kernel that is the extent of ``array``, by the names of the task's dimensions."""
    kernel = source.function_of(array)
    try:
        dimension = extent_of(source, kernel, dotted(array), axis)
        for name in parameters(source.functions[kernel]) if dimension is not None else ():
            passed = argument_of(source, kernel, name)
            if passed is not None and dotted(passed) == dimension:
                return name
    except NotApplicable:
        pass
    return None
