"""Writes a gather or scatter of consecutive elements as a load or store of a tile.

``ct.gather(x, (row, n * TILE + arange(TILE)))`` reads block n of row `row`: ``ct.load(x, (row, n), (1, TILE))``.
A range that does not begin at a multiple of its size is loaded from a view that begins there (`Array.slice`). A table
that all lanes ask for the same page is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_read
from tilewright.playbook.analyses.dead_names import without_dead
from tilewright.playbook.analyses.expressions import text_of
from tilewright.playbook.analyses.index_forms import ONE, Form, Forms, Scalar, Span, bare
from tilewright.playbook.analyses.index_masks import limits_of
from tilewright.playbook.analyses.reaching import reaching
from tilewright.playbook.analyses.tile_shapes import Shape, Shapes, is_true, tile_call, tuple_text
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Source, argument, elements, number

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


def with_access(source: Source, one: Converted) -> Source:
    """The source with one access converted, over several lines where one would be too long."""
    new = Source(source.name, source.replaced({one.call: cst.parse_expression(one.text())}))
    line, _ = source.place(one.call)
    if len(new.text.splitlines()[line - 1]) <= LINE:
        return new
    written = source.text.splitlines()[line - 1]
    indent = len(written) - len(written.lstrip())
    broken = cst.parse_expression(one.text(LINE - indent))  # libcst indents the lines within parentheses
    return Source(source.name, source.replaced({one.call: broken}))


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
    read: set[str] = set()
    changed = source
    while (one := next(possible(changed), None)) is not None:
        read |= one.read
        changed = with_access(changed, one)
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
    place = _place(source, call)
    reshape = ""
    if name == "gather":
        function, last = source.spelled("load"), [place.shape, f"padding_mode={_padding(source, call)}"]
        if place.sizes != place.result:
            reshape = f".reshape({tuple_text(place.result)})"
    else:
        function, last = source.spelled("store"), [_value(source, call, place)]
    if not function:
        raise NotApplicable(f"{source.name} does not import the tile access of cuda.tile")
    arguments = with_kept(source, call, [place.array, place.index, *last])
    read = frozenset(names_read(call) - names_read(call.args[0].value))
    return Converted(call, function, arguments, reshape, place.sliced, read)


@dataclass(frozen=True)
class _Place:
    array: str
    index: str
    sizes: Shape
    """Of the tile, by axes of the array."""
    result: Shape
    """Of the index tile."""
    sliced: bool

    @property
    def shape(self) -> str:
        return tuple_text(self.sizes)


def _place(source: Source, call: cst.Call) -> _Place:
    shapes = Shapes(source, source.functions[source.function_of(call)])
    given, where = call.args[1].value, call
    indices = _indices(source, given, call)
    forms = [Forms(source, call, shapes).of(one, where) for one in indices]
    result = _result(forms)
    stops = _stops(source, call, indices, forms, shapes)
    array, sliced = source.code(call.args[0].value), False
    index, sizes = [], []
    for axis, form in enumerate(forms):
        if isinstance(form, Scalar) or form.same:
            index.append(source.code(bare(indices[axis])) if isinstance(form, Scalar) else form.start.text)
            sizes.append("1")
            continue
        block, rest = form.start.over(form.size)
        stop = stops[axis]
        if rest.terms or stop is not None:
            sliced = True
            end = stop or f"{source.code(call.args[0].value)}.shape[{axis}]"
            array += f".slice({axis}, {rest.text}, {end})"
        index.append(block.text)
        sizes.append(form.size.text)
    return _Place(array, tuple_text(index), tuple(sizes), result, sliced)


def _indices(source: Source, given: cst.BaseExpression, call: cst.Call) -> list[cst.BaseExpression]:
    listed = elements(given)
    if listed is None and isinstance(given, cst.Name):
        definition = reaching(source, given.value, call)
        value = definition.value if definition is not None else None
        if elements(value) is not None:
            raise NotApplicable(f"the indices are put together before the access, in {given.value}")
    return listed if listed is not None else [given]


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


def _stops(
    source: Source, call: cst.Call, indices: Sequence[cst.BaseExpression], forms: Sequence[Form], shapes: Shapes
) -> list[str | None]:
    """Where a mask ends the range of each axis before the array does; None where it does not."""
    mask = argument(call, "mask", None)
    stops: list[str | None] = [None] * len(forms)
    if mask is None:
        return stops
    for limit in limits_of(source, mask, call, shapes):
        axes = [axis for axis, form in enumerate(forms) if form == limit.index]
        if len(axes) != 1:
            raise NotApplicable(f"the mask {source.code(mask)} limits something else than the indices")
        [axis] = axes
        if not limit.is_extent(source, call.args[0].value, axis):
            if stops[axis] is not None:
                raise NotApplicable("the mask limits an index twice")
            stops[axis] = limit.stop
    return stops


def _padding(source: Source, call: cst.Call) -> str:
    given = argument(call, "padding_value", None)
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


def _value(source: Source, call: cst.Call, place: _Place) -> str:
    """What is stored, in the shape of the tile: `ct.store` takes the extent of the tile from it."""
    node = call.args[2].value
    shape = Shapes(source, source.functions[source.function_of(call)]).of(node)
    text = source.code(node)
    if shape == place.sizes:
        return text
    if shape is not None and _long(shape) != _long(place.sizes):
        raise NotApplicable(f"{text} is stored to more elements than it has")
    return f"{text_of(source, node)}.reshape({place.shape})"


def _long(shape: Shape) -> list[str]:
    return [size for size in shape if size != "1"]
