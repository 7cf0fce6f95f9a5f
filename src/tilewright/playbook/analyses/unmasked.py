"""Writes the body of a loop without its masks, and says which statements only the masks need."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses.constants import is_constant
from tilewright.playbook.analyses.dataflow import Effects, names_assigned, names_read, reaching
from tilewright.playbook.analyses.expressions import fitting
from tilewright.playbook.analyses.helper_calls import shapes_in
from tilewright.playbook.analyses.masked_tiles import FIXED, MaskedTile
from tilewright.playbook.analyses.number_kinds import Float32
from tilewright.playbook.analyses.unchanged import read_outside
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Expression, Function, Line, Source, argument, dotted

GONE: cst.FlattenSentinel[cst.CSTNode] = cst.FlattenSentinel([])


@dataclass(frozen=True)
class Unmasked:
    """A loop without its masks.

    loop: the loop; its header is the old one.
    masks: the statements of the old loop's body that are not in the new one, in order.
    whole: the statements among them that mask a tile. None if a tile is masked within another expression, or in a
    branch with other statements.
    """

    loop: cst.For
    masks: tuple[cst.BaseStatement, ...]
    whole: tuple[cst.BaseStatement, ...] | None


def unmasked(source: Source, function: Function, loop: cst.For, tiles: Sequence[MaskedTile]) -> Unmasked:
    """Returns a loop without the masks of ``tiles``, and without the statements that only they need.

    Raises `NotApplicable` if a mask gives its tile another shape, or may give it another dtype.
    """
    changes: dict[cst.CSTNode, cst.CSTNode | cst.FlattenSentinel[cst.CSTNode]] = {}
    shapes, floats = shapes_in(source, function), Float32(source, function)
    for tile in tiles:
        is_number = _is_number(source, function, tile)
        shown, masked = shapes.of(tile.shown), shapes.of(tile.node)
        may_grow = masked is not None or shown == () or (tile.hides == FIXED and not is_number)
        if shown is not None and shown != masked and may_grow:
            raise NotApplicable(f"{source.code(tile.shown)} may have another shape than its masked tile")
        if not is_number and not floats.has(tile.shown):
            raise NotApplicable(f"{source.code(tile.shown)} may have another dtype than its masked tile")
    lines = {tile: _whole_line(source, tile) for tile in tiles}
    for tile, line in lines.items():
        changes[line or tile.node] = GONE if line else fitting(source, tile.node, source.code(tile.shown))
    place = source.every(cst.For, function).index(loop)
    name = function.name.value
    plain = source.changed(changes)
    again = plain.every(cst.For, plain.functions[name])[place]
    dead = list(_dead(plain, plain.functions[name], again))
    left = [statement for statement in loop.body.body if statement not in changes]
    paired = zip(left, again.body.body, strict=True)
    gone = [old for old, new in paired if new in dead]
    masks = tuple(each for each in loop.body.body if each in changes or each in gone)
    clean = plain.changed(dict.fromkeys(dead, GONE)) if dead else plain
    final = clean.every(cst.For, clean.functions[name])[place]
    tops = [_top(source, loop, line) if line else None for line in lines.values()]
    whole = tuple(dict.fromkeys(top for top in tops if top is not None and top in masks))
    alone = all(top is not None and top in masks for top in tops)
    return Unmasked(final, masks, whole if alone else None)  # type: ignore[arg-type]


def _is_number(source: Source, function: Function, tile: MaskedTile) -> bool:
    """Returns whether a mask replaces elements by a constant, which takes the dtype of the tile."""
    if not isinstance(tile.node, cst.Call):
        return False  # a sum with a tile
    values = [argument(tile.node, name, place) for place, name in ((1, "x"), (2, "y"))]
    return all(each is tile.shown or _is_plain(source, function, each) for each in values if each is not None)


def _is_plain(source: Source, function: Function, node: Expression) -> bool:
    match node:
        case cst.IfExp(body=first, orelse=second):
            return _is_plain(source, function, first) and _is_plain(source, function, second)
        case cst.UnaryOperation(expression=inside):
            return _is_plain(source, function, inside)
        case cst.Call(func=cst.Name(value="float")):
            return True
        case cst.Name(value=name) if (found := reaching(source, name, node)) is not None and found.value is not None:
            return _is_plain(source, function, found.value)
    return is_constant(source, function, node)


def _whole_line(source: Source, tile: MaskedTile) -> Line | None:
    """Returns the statement ``x = ct.where(mask, x, …)`` of a tile; None for a tile that is masked in another one."""
    assign = source.parent(tile.node)
    match assign:
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))]) if dotted(tile.shown) == name:
            line = source.parent(assign)
            return line if isinstance(line, Line) and len(line.body) == 1 else None
    return None


def _top(source: Source, loop: cst.For, node: cst.CSTNode) -> cst.CSTNode:
    """Returns the statement of the loop's body that holds ``node``."""
    around = (node, *source.parents(node))
    return next(each for each in around if source.parent(each) is loop.body)


def _dead(source: Source, function: Function, loop: cst.For) -> Iterator[cst.CSTNode]:
    """Yields the statements of a loop that compute nothing that is read."""
    effects = Effects(source, function)
    lines = source.every(Line, loop.body)
    live = {line for line in lines if not _only_assigns(line) or not effects.is_pure(line)}
    live -= {line for line in lines if all(isinstance(part, cst.Pass) for part in line.body)}
    needed = read_outside(source, function, loop)
    while True:
        more = {line for line in lines if line not in live and set(names_assigned(line)) & needed}
        live |= more
        reads = {name for line in live for name in names_read(line)} | _tests(source, loop, live)
        if not more and reads <= needed:
            break
        needed |= reads
    yield from _without(source, loop.body, live)


def _only_assigns(line: Line) -> bool:
    return all(isinstance(part, (cst.Assign, cst.AugAssign, cst.AnnAssign, cst.Pass)) for part in line.body)


def _tests(source: Source, loop: cst.For, live: Collection[Line]) -> set[str]:
    """Returns the names that the headers around live statements read."""
    read = set[str]()
    for line in live:
        for above in source.parents(line):
            if above is loop:
                break
            if isinstance(above, (cst.If, cst.While)):
                read |= names_read(above.test)
            elif isinstance(above, cst.For):
                read |= names_read(above.iter)
    return read


def _without(source: Source, block: cst.BaseSuite, live: Collection[Line]) -> Iterator[cst.CSTNode]:
    for statement in block.body:
        if not any(line in live for line in source.every(Line, statement)):
            yield statement
        elif isinstance(statement, cst.If):
            yield from _without(source, statement.body, live)
            if isinstance(statement.orelse, cst.Else):
                yield from _without(source, statement.orelse.body, live)


def moves_down(body: Sequence[cst.BaseStatement], masks: Collection[cst.BaseStatement], to: int) -> bool:
    """Returns whether the ``masks`` before place ``to`` of a body may run there: what they read stays as it is."""
    for place, statement in enumerate(body[:to]):
        if statement in masks:
            later = (each for each in body[place + 1 : to] if each not in masks)
            if any(names_read(statement) & set(names_assigned(each)) for each in later):
                return False
    return True
