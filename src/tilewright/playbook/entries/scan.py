"""Scans a long tile in two levels: the rows of a reshaped tile, and then the sums of these rows.

                                   rows = reshape(x, (N // 32, 32))
    y = ct.cumsum(x, 0)      →     before = the sum of all rows before each row
                                   y = reshape(ct.cumsum(rows, 1) + before, (N,))

The compiler scans one long axis with more exchanges between threads than many short ones. cuda.tile does not say in
which order `cumsum` adds, so only the bound for any order holds: N - 1 roundings of N elements. The two levels make at
most 32 + N / 32 on the way to each element, so the bound is not larger than before, and the change is lossless. As with
any order other than from left to right, the scan of numbers that are not negative may fall by a rounding.

The sum of the rows before a row is a scan of pairs (sum before, sum). ``cumsum(sums) - sums`` would lose the digits of
small sums before a large row, and would make NaN of an infinity.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst

from tilewright.playbook.analyses.dataflow import Effects, assignments, assignments_at_top, names_assigned, parameters
from tilewright.playbook.analyses.dtypes import Dtypes
from tilewright.playbook.analyses.expressions import fitting, line_around, line_of
from tilewright.playbook.analyses.task_code import fresh_in, passed
from tilewright.playbook.analyses.tile_shapes import Shape, Shapes, is_true
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
from tilewright.source.syntax import Changes, Expression, Function, Line, Source, argument, dotted, number
from tilewright.source.values import Known, value_of_text
from tilewright.task.tensors import ArraySpec

LENGTHS = (32, 64, 128)
"""The lengths of a row, the fastest on an H200 first."""
LONG = 512  # a shorter scan has no cost that two levels would lower
_NEW = ("rows", "sums", "pairs", "before")  # the ends of new names


class Scan(Rewriting[Rewritable[cst.Call]]):
    about = EntryDescription(
        id="scan",
        name="two-level scan",
        what="ct.cumsum of a long axis as a scan of short rows and a scan of their sums",
        when=f"a scan of at least {LONG} elements along the last axis of a tile",
        when_not="short scans; scans in float16, in reverse or with a rounding mode; custom scans",
        priority={"memory": 1, "balanced": 2, "compute": 4},
        eases=("issue slots", "residency"),
        together=HINTS_OF_TILES,
        order=196,
        effect=Effect(1.05, 1.4, "sparsemax 8192×4096 with one cumsum a row 112 → 89.7 µs, H200", "2026-11-29"),
    )
    missing = "no scan begins here"

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        places = [(place, *_possible(source, place.node, facts)) for place in self.found(source, facts)]
        return [
            place.site(source, f"{max(lengths)} elements", values)
            for place, lengths, values in places
            if values and not refusal(place.rewrites[values[0]])
        ]

    def places(self, source: Source, function: Function) -> Iterator[Rewritable[cst.Call]]:
        for call in source.calls("cumsum", inside=function):
            rewrites = {row: partial(_in_two_levels, source, call, row) for row in LENGTHS}
            yield Rewritable(call, f"scan of {_name(source, call)}", rewrites)

    def why_not(self, source: Source, facts: KernelFacts) -> str:
        calls = (
            source.calls("cumsum", inside=source.kernels.get(facts.kernel)) if facts.kernel in source.kernels else []
        )
        for call in calls:
            lengths, values = _possible(source, call, facts)
            if _in_float16(source, call, facts):
                return "the scan is in float16: the sum of a row may overflow where no sum up to an element does"
            if lengths and not values:
                return f"the scan has {max(lengths)} elements; from {LONG} on, two levels are faster"
        return super().why_not(source, facts)


def _possible(source: Source, call: cst.Call, facts: KernelFacts) -> tuple[list[int], tuple[int, ...]]:
    """Returns the lengths of a scan in all launches (none if one is not known), and the lengths of rows to try."""
    scanned = unless_refused(_scanned, source, call)
    known = [value_of_text(scanned[1][-1], names) for names in _names(source, call, facts)] if scanned else []
    lengths = [each for each in known if isinstance(each, int)]
    if not lengths or len(lengths) < len(known) or min(lengths) < LONG:
        return lengths if len(lengths) == len(known) else [], ()
    if _in_float16(source, call, facts):
        return lengths, ()
    return lengths, tuple(row for row in LENGTHS if all(each % row == 0 and each // row > 1 for each in lengths))


def _in_float16(source: Source, call: cst.Call, facts: KernelFacts) -> bool:
    """Returns whether a scan adds in float16. `ct.sum` may add elements that are no neighbours, and so overflow."""
    kernel, tile = source.function_of(call), argument(call, "x", 0)
    for given in _passed(source, kernel, facts):
        arrays = {name: str(value.dtype) for name, value in given.items() if isinstance(value, ArraySpec)}
        if Dtypes(source, source.functions[kernel], arrays).of(tile) == "float16":
            return True
    return False


def _names(source: Source, call: cst.Call, facts: KernelFacts) -> Iterator[dict[str, Known | ast.expr]]:
    """Yields the values of the names around a scan for each launch: those that are assigned once, and the arguments."""
    kernel, once = source.function_of(call), names_assigned(source.module)
    inside = source.functions[kernel]
    fixed: dict[str, Known | ast.expr] = {
        name: ast.parse(f"({source.code(value)})", mode="eval").body
        for _, name, value in (*assignments_at_top(source), *assignments(source, inside))
        if once[name] == 1 and name not in parameters(inside)
    }
    for given in _passed(source, kernel, facts):
        yield {**fixed, **{name: value for name, value in given.items() if isinstance(value, int)}}


def _passed(source: Source, function: str, facts: KernelFacts) -> Iterator[dict[str, Any]]:
    """Yields the arguments of each launch, by parameter; none if the function is not the launched kernel."""
    for launch in facts.launches:
        yield passed(source, launch) if function == facts.kernel else {}


def _scanned(source: Source, call: cst.Call) -> tuple[Expression, Shape]:
    """Returns the tile of a scan and its shape. Raises `NotApplicable` if it cannot be scanned in two levels."""
    place = f"{source.name}:{source.place(call)[0]}"
    tile, axis = argument(call, "x", 0), argument(call, "axis", 1)
    if tile is None or is_true(argument(call, "reverse")) is not False:
        raise NotApplicable(f"{place}: the scan is, or may be, in reverse")
    if not source.spelled("scan"):
        raise NotApplicable(f"{place}: the file does not import cuda.tile as a module")
    for name in ("rounding_mode", "flush_to_zero"):
        if argument(call, name) is not None:
            raise NotApplicable(f"{place}: the scan has a {name}, which the sums of its rows would need, too")
    shape = Shapes(source, source.function_around(call)).of(tile)
    if not shape:
        raise NotApplicable(f"{place}: the shape of {source.code(tile)} is not known")
    along = 0 if axis is None else number(axis)
    if not isinstance(along, int) or along % len(shape) != len(shape) - 1:
        raise NotApplicable(f"{place}: the scan is not along the last axis of its tile")
    return tile, shape


def _in_two_levels(source: Source, call: cst.Call, row: int) -> str:
    """Returns the text with a scan of rows of ``row`` elements."""
    tile, shape = _scanned(source, call)
    line, name = _statement(source, call, tile), source.function_of(call)
    base = _target(line) or "scan"
    rows, sums, pairs, before = (fresh_in(source, name, f"{base}_{each}") for each in _NEW)
    reshape, total, zeros, scan, cumsum = map(source.spelled, ("reshape", "sum", "zeros", "scan", "cumsum"))
    whole, last = "".join(f"{each}, " for each in shape[:-1]), len(shape)
    lines = [
        line_of(f"{rows} = {reshape}({source.code(tile)}, ({whole}{_rows(shape[-1], row)}))"),
        line_of(f"{sums} = {total}({rows}, {last}, keepdims=True)"),
        line_of(f"{pairs} = ({zeros}({sums}.shape, {sums}.dtype), {sums})"),
        line_of(f"{before} = {scan}({pairs}, {last - 1}, lambda a, b, c, d: (b + c, b + d), (0, 0))[0]"),
    ]
    words = f"# rows of {row}: each is scanned, and the sum of all rows before it is added"
    comment = cst.EmptyLine(comment=cst.Comment(words))
    new = f"{reshape}({cumsum}({rows}, {last}) + {before}, ({whole}{shape[-1]}{',' * (last == 1)}))"
    changes: Changes = {call: fitting(source, call, new), line: lambda now: _after(now, lines, comment)}
    return source.replaced(changes)


def _after(now: cst.CSTNode, lines: list[Line], comment: cst.EmptyLine) -> cst.FlattenSentinel[cst.CSTNode]:
    """Puts ``lines`` before the statement ``now``, below its comments."""
    assert isinstance(now, cst.SimpleStatementLine)
    first = lines[0].with_changes(leading_lines=[*now.leading_lines, comment])
    return cst.FlattenSentinel([first, *lines[1:], now.with_changes(leading_lines=())])


def _statement(source: Source, call: cst.Call, tile: Expression) -> Line:
    """Returns the statement of a scan, before which the scan may begin."""
    line = line_around(source, call)
    if line is None or not Effects(source, source.function_around(call)).stores_nothing(tile):
        raise refused_at(source, call, "the scan is not in a statement of its own line")
    return line


def _target(line: Line) -> str:
    """Returns the name that a statement assigns; "" if it assigns none, or several."""
    match line.body[0]:
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))]):
            return name
    return ""


def _name(source: Source, call: cst.Call) -> str:
    tile = argument(call, "x", 0)
    return dotted(tile) or "a tile" if tile is not None else "a tile"


def _rows(extent: str, row: int) -> str:
    """Formats the number and the length of the rows. A task may serve an extent that is shorter than a row."""
    if extent.isdigit():
        return f"{int(extent) // row}, {row}"
    return f"max({extent if extent.isidentifier() else f'({extent})'} // {row}, 1), min({extent}, {row})"


ENTRY = Scan()
