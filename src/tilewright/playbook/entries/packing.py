"""Groups the elements of a flat range before the range is divided into rows and columns, so that accesses are wide.

    flat = block * TILE + arange(TILE)        PACK = min(min(N & -N, TILE), 16)
    row = flat // N                       →   group = block * (TILE // PACK) + arange(TILE // PACK)
    column = flat % N                         row = group // (N // PACK), repeated PACK times
    gather(x, (row, column))                  column = group % (N // PACK) * PACK + arange(PACK)

tileiras 13.4 combines the loads of consecutive elements, whatever their dtype, if it sees that they are consecutive. It
does not look through a division. So bfloat16 is then loaded in pieces of 2 bytes, and the quotient is computed for each
element (bench/packing.py). PACK is the largest power of two, up to 16, that divides N and TILE. So no group is in two
rows, for any N, and all indices are the same as before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_assigned, reaching
from tilewright.playbook.analyses.expressions import imported, line_of, text_of
from tilewright.playbook.analyses.index_forms import Forms, Span
from tilewright.playbook.analyses.task_code import fresh_in, passed_constants
from tilewright.playbook.analyses.tile_shapes import Shapes, same_elements, tile_call, tuple_text
from tilewright.playbook.base import Effect, EntryDescription, KernelFacts, NotApplicable, Site, unless_refused
from tilewright.playbook.rewriting import Rewritable, Rewriting
from tilewright.records import MachineCode
from tilewright.source.syntax import Expression, Function, Line, Source, argument, dotted

MOST = 16  # elements in a group: 16 bytes, the widest access, of the narrowest dtype
WHOLE = ("int32", "int64")
NARROW = ("8", "16", "32")
"""The widths in bits of the accesses that can become wider."""


class Packing(Rewriting[Rewritable[Function]]):
    about = EntryDescription(
        id="packing",
        name="packed accesses",
        what="divides groups of up to 16 elements into rows and columns, so that narrow accesses are combined",
        when="an element-wise kernel divides a flat index by the length of a row, and loads 1 to 4 bytes at a time",
        when_not="accesses are wide already; an odd length of the rows; indices that are loaded, or are no multiples",
        priority={"memory": 2, "balanced": 3},
        eases=("access path", "issue slots", "bytes in flight"),
        order=245,
        effect=Effect.assumed(1.0, 2.0),
    )
    missing = "no flat range is divided here"

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        narrow = narrow_accesses(facts.codes)
        if not narrow or facts.kernel not in source.kernels:
            return []
        given = _constants(source, facts)
        return [
            place.site(source, narrow)
            for place in unless_refused(lambda: list(self.places(source, source.kernels[facts.kernel]))) or ()
            if {each[0].length for each in _shared(source, place.node)} - _integers(source, place.node) <= given
        ]

    def why_not(self, source: Source, facts: KernelFacts) -> str:
        if not narrow_accesses(facts.codes):
            return "its machine code has no narrow accesses"
        return super().why_not(source, facts)

    def places(self, source: Source, function: Function) -> Iterator[Rewritable[Function]]:
        name = function.name.value
        if not source.calls("gather", "scatter", inside=function):
            raise NotApplicable(f"{name} has no gather or scatter")
        lengths = dict.fromkeys(each[0].length for each in _shared(source, function))
        if not lengths:
            raise NotApplicable(f"{name} divides no range that begins at a multiple of its size")
        what = f"a flat range divided by {', '.join(lengths)}"
        yield Rewritable(function, what, {MOST: partial(_packed, source, name)})


def _constants(source: Source, facts: KernelFacts) -> set[str]:
    """Returns the kernel's constant parameters that are positive integers in all launches."""
    every = passed_constants(source, facts).items()
    return {name for name, given in every if all(isinstance(each, int) and each > 0 for each in given)}


def narrow_accesses(codes: Mapping[str, MachineCode]) -> str:
    """Returns the narrow loads and stores of global memory in words, of the workload with most of them; "" if none."""
    found = []
    for code in codes.values():
        narrow = {name: count for name, count in code.copies.items() if name[:4] in ("LDG.", "STG.")}
        narrow = {name: count for name, count in narrow.items() if name[4:] in NARROW}
        found.append((sum(narrow.values()), ", ".join(f"{count} {name}" for name, count in sorted(narrow.items()))))
    return max(found, default=(0, ""))[1]


@dataclass(frozen=True, eq=False)
class _Division:
    """A flat range divided by the ``length`` of a row: ``flat // N`` or ``flat % N``, in the statement ``line``."""

    node: cst.BinaryOperation
    line: Line
    flat: Span
    length: str


def _divisions(source: Source, function: Function) -> list[_Division]:
    shapes = Shapes(source, function)
    found = (unless_refused(_division, source, shapes, node) for node in source.every(cst.BinaryOperation, function))
    return [each for each in found if each is not None]


def _shared(source: Source, function: Function) -> list[list[_Division]]:
    """Returns the divisions that share their groups: of one range, in one block of statements, by one length.

    A range without ``%`` is left out: its quotients are the same number many times, and nothing is combined."""
    shared: dict[tuple[object, ...], list[_Division]] = defaultdict(list)
    for each in _divisions(source, function):
        left = each.node.left
        definition = reaching(source, left.value, left) if isinstance(left, cst.Name) else None
        flat = definition.node if definition is not None else source.code(left)
        shared[source.parent(each.line), flat, each.length].append(each)
    found = shared.values()
    return [each for each in found if any(isinstance(one.node.operator, cst.Modulo) for one in each)]


def _integers(source: Source, function: Function) -> set[str]:
    return {source.code(node) for node in source.every(cst.Integer, function)}


def _division(source: Source, shapes: Shapes, node: cst.BinaryOperation) -> _Division:
    """Raises `NotApplicable` unless ``node`` divides a range of consecutive elements by a name or a number.

    The range must begin at a multiple of its size: then it consists of whole groups.
    """
    refused = NotApplicable(f"{source.code(node)} divides no flat range")
    length = node.right
    if not isinstance(node.operator, (cst.FloorDivide, cst.Modulo)) or not isinstance(length, (cst.Name, cst.Integer)):
        raise refused
    if isinstance(length, cst.Integer) and length.evaluated_value < 1:
        raise refused
    if names_assigned(shapes.function)[source.code(length)] or source.tile_name("min"):
        raise refused
    flat = Forms(source, node, shapes).of(node.left, node)
    if not isinstance(flat, Span) or flat.same or flat.start.over(flat.size)[1].terms:
        raise refused
    if not _is_whole(source, node.left):
        raise refused
    # The quotient of a range by its own size is one number, which `tile_load` understands.
    if source.code(length) == flat.size.text:
        raise refused
    for above in source.parents(node):
        if isinstance(above, Line) and isinstance(source.parent(above), cst.IndentedBlock):
            return _Division(node, above, flat, source.code(length))
        if isinstance(above, (cst.BaseCompoundStatement, cst.Lambda, cst.BaseComp, cst.NamedExpr)):
            break
    raise refused


def _is_whole(source: Source, node: Expression, below: tuple[Expression, ...] = ()) -> bool:
    """Returns whether all dtypes that are named on the way to a value are int32 or int64. In a smaller dtype, a range
    may wrap, and its groups may not; a range of floats may be rounded."""
    named = [argument(call, "dtype") for call in source.every(cst.Call, node) if tile_call(source, call) == "arange"]
    converted = [call for call in source.every(cst.Call, node) if same_elements(source, call) is not None]
    named += [argument(call, "dtype", 1 if tile_call(source, call) else 0) for call in converted]
    if any(dtype is None or source.tile_name(dotted(dtype)) not in WHOLE for dtype in named):
        return False
    before = [reaching(source, name.value, name) for name in source.every(cst.Name, node)]
    values = [each.value for each in before if each is not None and each.value is not None]
    return all(_is_whole(source, value, (*below, node)) for value in values if value not in (*below, node))


def _packed(source: Source, kernel: str) -> str:
    """Returns the text with all divisions of flat ranges by groups."""
    changes, lines, taken = dict[cst.CSTNode, Expression](), dict[cst.BaseStatement, list[str]](), set[str]()
    for divisions in _shared(source, source.functions[kernel]):
        names = _Names(*(fresh_in(source, kernel, name, taken) for name in ("PACK", "group")))
        taken |= {names.pack, names.group}
        first = divisions[0]
        lines.setdefault(first.line, []).extend(_groups(source, first, names))
        for each in divisions:
            changes[each.node] = cst.parse_expression(_divided(source, each, names))
    return source.replaced({**changes, **{line: partial(_after, added) for line, added in lines.items()}})


@dataclass(frozen=True)
class _Names:
    """The names of the number of elements in a group, and of the tile of the groups' numbers."""

    pack: str
    group: str


def _groups(source: Source, division: _Division, names: _Names) -> list[str]:
    """Returns the statements that define the groups of a range."""
    size, length, pack = _size(source, division), division.length, names.pack
    block = text_of(source, cst.parse_expression(division.flat.start.over(division.flat.size)[0].text))
    dtype = f"{text_of(source, division.node.left)}.dtype"
    return [
        f"{pack} = min(min({length} & -{length}, {size}), {MOST})",
        f"{names.group} = {block} * ({size} // {pack}) + {imported(source, 'arange')}({size} // {pack}, dtype={dtype})",
    ]


def _divided(source: Source, division: _Division, names: _Names) -> str:
    """Returns the row, or the column, of each element."""
    span, pack, group = division.flat, names.pack, names.group
    size, rows = _size(source, division), f"({division.length} // {names.pack})"
    shape = ["1"] * span.rank
    shape[span.axis] = span.size.text
    if isinstance(division.node.operator, cst.FloorDivide):
        both = f"{imported(source, 'broadcast_to')}(({group} // {rows})[:, None], ({size} // {pack}, {pack}))"
    else:
        dtype = f"{text_of(source, division.node.left)}.dtype"
        inside = f"{imported(source, 'arange')}({pack}, dtype={dtype})[None, :]"
        both = f"({group} % {rows} * {pack})[:, None] + {inside}"
    return f"{imported(source, 'reshape')}({both}, {tuple_text(shape)})"


def _size(source: Source, division: _Division) -> str:
    return text_of(source, cst.parse_expression(division.flat.size.text))


def _after(added: list[str], line: cst.CSTNode) -> cst.FlattenSentinel[cst.CSTNode]:
    """Puts new statements before ``line``, below its comments."""
    assert isinstance(line, cst.SimpleStatementLine)
    words = cst.EmptyLine(comment=cst.Comment("# groups of elements in one row, which are accessed together"))
    first, *others = map(line_of, added)
    first = first.with_changes(leading_lines=[*line.leading_lines, words])
    return cst.FlattenSentinel([first, *others, line.with_changes(leading_lines=())])


ENTRY = Packing()
