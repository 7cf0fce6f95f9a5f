"""Replaces a gather or scatter of consecutive elements by a load or store of a tile.

``ct.gather(x, (row, n * TILE + arange(TILE)))`` reads block n of a row. ``ct.load(x, (row, n), (1, TILE))`` replaces
it. A range that does not begin at a multiple of its size is loaded from a view that begins there (`Array.slice`). A
table entry that is the same for all elements is loaded once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses.access_masks import is_extent, limits
from tilewright.playbook.analyses.dataflow import names_read, reaching
from tilewright.playbook.analyses.expressions import bare, text_of
from tilewright.playbook.analyses.guarded import in_branch
from tilewright.playbook.analyses.index_forms import ONE, Form, Forms, Scalar, Span
from tilewright.playbook.analyses.removing import without_dead
from tilewright.playbook.analyses.row_views import row_view
from tilewright.playbook.analyses.tile_shapes import Shape, Shapes, is_true, tile_call, tuple_text
from tilewright.playbook.base import NotApplicable, unless_refused
from tilewright.source.syntax import Expression, Source, argument, dotted, elements, number

PADDING = {"0": "ZERO", "-0.0": "NEG_ZERO", "inf": "POS_INF", "-inf": "NEG_INF", "nan": "NAN"}
INDENT = " " * 4
LINE = 110  # a converted access is broken into lines of at most this many characters
KNOWN = ("mask", "padding_value", "check_bounds", "latency")


@dataclass(frozen=True)
class Converted:
    """The parts of an access that replaces ``call``.

    ``reshaped`` is a ``.reshape(...)`` to the shape of the index tile; "" if the loaded tile already has this shape.
    ``sliced`` says that the access goes through a view (`Array.slice`). ``read`` holds the names in the old arguments.
    ``conditions`` are tests of the launches for which the access is the same.
    """

    call: cst.Call
    function: str
    arguments: tuple[str, ...]
    reshaped: str
    sliced: bool
    read: frozenset[str]
    conditions: tuple[str, ...] = ()

    def text(self, columns: int | None = None) -> str:
        """Formats the access as Python source. With ``columns``, puts the arguments on lines of their own.

        The arguments share one line of at most ``columns`` characters, if they fit. Otherwise each argument gets a
        line.
        """
        arguments = ", ".join(self.arguments)
        if columns is not None and len(arguments) + len(INDENT) <= columns:
            arguments = f"\n{INDENT}{arguments}\n"
        elif columns is not None:
            arguments = "".join(f"\n{INDENT}{argument}," for argument in self.arguments) + "\n"
        return f"{self.function}({arguments}){self.reshaped}"


def convertible(
    source: Source, function: str, kinds: Sequence[str], convert: Callable[[Source, cst.Call], Converted]
) -> Iterator[Converted]:
    """Yields the accesses of a function that ``convert`` can convert."""
    for call in source.calls(*kinds, inside=source.functions[function]):
        if (access := unless_refused(convert, source, call)) is not None:
            yield access


def with_accesses(source: Source, function: str, possible: Callable[[Source], Iterator[Converted]]) -> str:
    """Returns the text with all ``possible`` accesses converted. If one of them is not the same for each launch, the
    function keeps its old body in a branch."""
    new, conditions = accessed(source, function, possible)
    return in_branch(new, source, function, conditions).text


def accessed(
    source: Source, function: str, possible: Callable[[Source], Iterator[Converted]]
) -> tuple[Source, tuple[str, ...]]:
    """Returns the source with all ``possible`` accesses converted, without assignments that are no longer read, and
    the conditions under which the function computes the same."""
    read, changed, conditions = set[str](), source, dict[str, None]()
    while accesses := _outermost(changed, list(possible(changed))):
        read.update(*(access.read for access in accesses))
        conditions.update(dict.fromkeys(each for access in accesses for each in access.conditions))
        texts = {access.call: access.text(_columns(changed, access)) for access in accesses}
        changed = changed.changed({call: cst.parse_expression(text) for call, text in texts.items()})
    if changed is source:
        raise NotApplicable(f"{function} has no access of this kind that can be replaced")
    return without_dead(changed, function, read), tuple(conditions)


def _outermost(source: Source, accesses: Sequence[Converted]) -> list[Converted]:
    """Returns the accesses that are not inside another of them: a scatter may store what a gather loads."""
    inside = {call for access in accesses for call in source.every(cst.Call, access.call)[1:]}
    return [access for access in accesses if access.call not in inside]


def _columns(source: Source, access: Converted) -> int | None:
    """Returns how many columns the arguments may have on lines of their own; None if the access fits into its line."""
    line, column = source.place(access.call)
    lines = source.text.splitlines()[line - 1 :]
    after = "\n".join(lines)[column + len(source.code(access.call)) :].partition("\n")[0]
    if column + len(access.text()) + len(after) <= LINE:
        return None
    return LINE - (len(lines[0]) - len(lines[0].lstrip()))  # libcst indents the lines within parentheses


def converted(source: Source, call: cst.Call) -> Converted:
    """Returns the tile access that replaces the gather or scatter ``call``; raises `NotApplicable` if there is none."""
    name = tile_call(source, call)
    if name not in ("gather", "scatter"):
        raise NotApplicable(f"{source.code(call.func)} is neither a gather nor a scatter")
    positional = 2 if name == "gather" else 3
    if [arg.keyword for arg in call.args[:positional]] != [None] * positional or any(arg.star for arg in call.args):
        raise NotApplicable("the first arguments of the access are not positional")
    if unknown := [arg for arg in call.args[positional:] if arg.keyword is None or arg.keyword.value not in KNOWN]:
        raise NotApplicable(f"{source.code(unknown[0])} has no counterpart in a tile access")
    shapes = Shapes(source, source.function_around(call))
    array, sizes, index, result, conditions = _place(source, call, shapes)
    reshape = ""
    if name == "gather":
        function, last = source.spelled("load"), [tuple_text(sizes)]
        if not _is_unchecked(call):
            last.append(f"padding_mode={_padding(source, call)}")
        if sizes != result:
            reshape = f".reshape({tuple_text(result)})"
    else:
        function, last = source.spelled("store"), [_value(source, call.args[2].value, shapes, sizes)]
    if not function:
        raise NotApplicable(f"{source.name} does not import load or store of cuda.tile")
    whole = call.args[0].value
    read = frozenset(names_read(call) - names_read(whole))
    arguments = with_kept(source, call, [array, index, *last])
    return Converted(call, function, arguments, reshape, array != source.code(whole), read, conditions)


def _place(source: Source, call: cst.Call, shapes: Shapes) -> tuple[str, Shape, str, Shape, tuple[str, ...]]:
    """Returns the array or a view of it, the tile's shape, the tile's index, the shape of the index tile, and the
    conditions of the view."""
    given = call.args[1].value
    if isinstance(given, cst.Name):
        definition = reaching(source, given.value, call)
        if definition is not None and elements(definition.value) is not None:
            raise NotApplicable(f"the indices are not written in the access: {given.value} holds the tuple")
    listed = elements(given)
    if listed is None and (view := unless_refused(row_view, source, call, shapes)) is not None:
        place = tuple_text((view.row, view.block))
        return view.array, ("1", view.size), place, _result([view.columns]), view.conditions
    indices = listed if listed is not None else [given]
    forms = [Forms(source, call, shapes).of(index, call) for index in indices]
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
    return array, tuple(sizes), tuple_text(index), result, ()


def _result(forms: Sequence[Form]) -> Shape:
    """Returns the shape of the index tile. Raises `NotApplicable` if its axes have another order than the array's."""
    spans = [form for form in forms if isinstance(form, Span) and not form.same]
    if all(span.size == ONE for span in spans):
        raise NotApplicable("no index is a range of consecutive elements")
    rank = max(form.rank for form in forms if not isinstance(form, Scalar))
    axes = [rank - span.rank + span.axis for span in spans]
    if axes != sorted(set(axes)):
        raise NotApplicable("the axes of the index tile have another order than those of the array")
    sizes = ["1"] * rank
    for axis, span in zip(axes, spans, strict=True):
        sizes[axis] = span.size.text
    for form in forms:
        if isinstance(form, Span) and form.same and sizes[rank - form.rank + form.axis] != form.size.text:
            raise NotApplicable("all elements along an axis of the tile read the same element")
    return tuple(sizes)


def _stops(source: Source, call: cst.Call, forms: Sequence[Form], shapes: Shapes) -> list[str | None]:
    """Returns the mask's limit along each axis; None for an axis on which only the array's extent limits the access."""
    mask, array = argument(call, "mask"), call.args[0].value
    stops: list[str | None] = [None] * len(forms)
    for index, stop in () if mask is None else limits(source, mask, Forms(source, call, shapes)):
        axes = [axis for axis, form in enumerate(forms) if form == index]
        if mask is not None and len(axes) != 1:
            raise NotApplicable(f"the mask {source.code(mask)} does not limit an index of the access")
        [axis] = axes
        if not is_extent(source, array, axis, stop):
            if stops[axis] is not None:
                raise NotApplicable("the mask limits an index twice")
            stops[axis] = stop
    return stops


def _is_unchecked(call: cst.Call) -> bool:
    """Returns whether a gather reads only elements of the array, and so needs no padding. The compiler (13.4, sm_90)
    refuses a tile load with a padding and without a bounds check."""
    checks = argument(call, "check_bounds", None)
    return checks is not None and dotted(checks) == "False" and argument(call, "mask") is None


def _padding(source: Source, call: cst.Call) -> str:
    """Returns the padding mode that equals a gather's ``padding_value``. Raises `NotApplicable` if no mode does."""
    given = argument(call, "padding_value")
    text = "0" if given is None else source.code(given)
    name = re.sub(r"""float\(["'](-?\w+)["']\)|\b(?:math|np|numpy)\.|\s""", r"\1", text)
    if number(given) == 0:
        name = "-0.0" if str(number(given)) == "-0.0" else "0"
    if name not in PADDING:
        raise NotApplicable(f"a tile cannot be padded with {text}")
    return f"{source.spelled('PaddingMode')}.{PADDING[name]}"


def with_kept(source: Source, call: cst.Call, arguments: Sequence[str]) -> tuple[str, ...]:
    """Adds the ``check_bounds`` and ``latency`` of ``call`` to ``arguments``: every kind of access takes these. A
    bounds check that depends on a constant is always made if there is a padding (see `_is_unchecked`). With a mask, the
    bounds are always checked, because the check replaces the mask.

    Raises `NotApplicable` if a comment inside the call would be lost.
    """
    found, is_padded = list(arguments), any(text.startswith("padding_mode=") for text in arguments)
    checks = None if argument(call, "mask", None) is not None else argument(call, "check_bounds", None)
    if checks is not None and is_true(checks) is not True:
        found += [] if is_padded and is_true(checks) is None else [f"check_bounds={source.code(checks)}"]
    if (latency := argument(call, "latency", None)) is not None:
        found.append(f"latency={source.code(latency)}")
    if sum(text.count("#") for text in found) != source.code(call).count("#"):
        raise NotApplicable("a comment inside the call would be lost")
    return tuple(found)


def _value(source: Source, node: Expression, shapes: Shapes, sizes: Shape) -> str:
    """Returns the text of the stored value, reshaped to the tile's shape ``sizes``: `ct.store` takes the shape from the
    value."""
    shape, text = shapes.of(node), source.code(node)
    if shape == sizes:
        return text
    if shape is not None and [size for size in shape if size != "1"] != [size for size in sizes if size != "1"]:
        raise NotApplicable(f"{text} is stored to more elements than it has")
    return f"{text_of(source, node)}.reshape({tuple_text(sizes)})"
