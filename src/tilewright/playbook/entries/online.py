"""Computes the maximum of a row and the sum of its exponentials in one pass: the online form of softmax and logsumexp.

    for n: m = max(m, x)              for n: before = m
    for n: s = s + exp(x - m)     →          m = max(m, x)
                                             s = s * exp(before - m) + exp(x - m)

The row is read once less. A chunk is needed only once, so a row may have any length.
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses import task_code
from tilewright.playbook.analyses.chunk_loops import (
    Chunked,
    Pair,
    first_pair,
    plain_target,
    site_of_passes,
    with_own_names,
)
from tilewright.playbook.analyses.dataflow import Effects, names_assigned, names_read
from tilewright.playbook.analyses.expressions import line_of
from tilewright.playbook.analyses.loop_sums import Statements, needed, sums_of
from tilewright.playbook.analyses.renaming import renamed
from tilewright.playbook.analyses.repeated import without_repeated
from tilewright.playbook.analyses.tile_shapes import tile_call
from tilewright.playbook.base import (
    HINTS_OF_TILES,
    Effect,
    Entry,
    EntryDescription,
    KernelFacts,
    NotApplicable,
    Site,
    refusal,
    unless_refused,
)
from tilewright.records import Value
from tilewright.source.syntax import Changes, Source, dotted

ONLINE = "online"


class Online(Entry):
    about = EntryDescription(
        id="online",
        name="online maximum and sum",
        what="one loop for the maximum of a row and the sum of its exponentials, in place of two",
        when="softmax, logsumexp or cross entropy of rows that do not fit into registers",
        when_not="rows that fit; rows that may begin with a whole chunk of -inf",
        priority={"memory": 1, "balanced": 2},
        eases=("traffic", "bytes in flight", "issue slots"),
        together=HINTS_OF_TILES,
        order=191,
        effect=Effect.assumed(1.1, 1.5),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        kernel = task_code.own_kernel(facts, source)
        pair = unless_refused(_pair, source, kernel) if kernel else None
        if pair is None:
            return []
        what = f"passes for {pair.most} and {pair.total}"
        site = site_of_passes(source, kernel, pair.found, facts, what, ONLINE)
        return [site] if self.applies(source, site) else []

    def why_not(self, source: Source, facts: KernelFacts) -> str:
        return refusal(_pair, source, facts.kernel) if facts.kernel in source.kernels else ""

    def apply(self, source: Source, site: Site, value: Value) -> str:
        kernel = site.function_here(source).name.value
        if value != ONLINE:
            raise NotApplicable(f"'{value}' is no value of this entry; known: {ONLINE}")
        source = with_own_names(source, kernel, _pair(source, kernel).loops)
        return without_repeated(_fused(source, kernel, _pair(source, kernel)), kernel)[0].text


@dataclass(frozen=True, eq=False)
class _Pair:
    """Two loops over the chunks of a row, and the names of the maximum and of the sum.

    update: the statement ``m = max(m, x)`` of the first loop.
    added: the statement ``s = s + term`` of the second loop. factor: ``exp(before - m)`` with the name ``before``.
    moved: the statements between the loops that the second loop needs.
    """

    found: Chunked
    loops: Pair
    most: str
    total: str
    update: cst.BaseStatement
    added: cst.BaseStatement
    term: str
    factor: str
    before: str
    moved: Statements


def _pair(source: Source, kernel: str) -> _Pair:
    """Finds two loops that may become one. Raises `NotApplicable` with the reason of the last pair."""
    return first_pair(source, kernel, _paired)


def _paired(source: Source, kernel: str, found: Chunked, loops: Pair) -> _Pair:
    first, second = loops
    effects = Effects(source, source.kernels[kernel])
    if not effects.is_pure(first.body) or not effects.is_pure(second.body):
        raise NotApplicable(f"{kernel} stores in a loop that computes a maximum or a sum")
    most, update = _maximum(source, first)
    total, added, term = _sum(source, second)
    own = set(names_assigned(second.body))
    if {most, total} & (own - {total}) or (own & names_read(first.body)) - set(names_assigned(first.body)):
        raise NotApplicable(f"the second loop of {kernel} changes what the first one reads")
    before = task_code.fresh_in(source, kernel, f"{most}_before")
    factor = _factor(source, second, most, before)
    moved = _between(source, kernel, found, loops)
    return _Pair(found, loops, most, total, update, added, term, factor, before, moved)


def _maximum(source: Source, loop: cst.For) -> tuple[str, cst.BaseStatement]:
    """Returns m and the statement ``m = ct.maximum(m, x)`` of a loop."""
    for statement in loop.body.body:
        name = plain_target(statement)
        for call in source.every(cst.Call, statement) if name else ():
            operands = [arg.value for arg in call.args]
            if tile_call(source, call) == "maximum" and name in map(dotted, operands) and source.parent(call) is (
                source.every(cst.Assign, statement)[0]
            ):  # fmt: skip
                assert isinstance(statement, cst.BaseStatement)
                return name, statement
    raise NotApplicable("the first loop computes no maximum of a row")


def _sum(source: Source, loop: cst.For) -> tuple[str, cst.BaseStatement, str]:
    """Returns s, the statement ``s = s + term`` of a loop, and the text of the term."""
    for each in sums_of(source, loop.body):
        if each.statement in loop.body.body:
            return each.name, each.statement, source.code(each.term)
    raise NotApplicable("the second loop computes no sum over a row")


def _factor(source: Source, loop: cst.For, most: str, before: str) -> str:
    """Returns the exponential of ``x - m`` in a loop with ``before`` in place of x: the factor by which the sum shrinks
    as the maximum grows. Raises `NotApplicable` if the loop reads m for anything else."""
    reads = [node for node in source.every(cst.Name, loop.body) if node.value == most]
    above = source.parent(reads[0]) if len(reads) == 1 else None
    if not isinstance(above, cst.BinaryOperation) or not isinstance(above.operator, cst.Subtract):
        raise NotApplicable(f"the sum does not read {most} in one subtraction only")
    if above.right is not reads[0]:
        raise NotApplicable(f"the sum does not subtract {most}")
    node: cst.CSTNode = above
    text = f"({before} - {most})"
    while node is not None:
        line = source.parent(node)
        match line:
            case cst.BinaryOperation(operator=cst.Multiply(), left=left, right=right):
                other = right if left is node else left
                if names_read(other) & set(names_assigned(loop.body)):
                    raise NotApplicable("the exponent has a factor that changes")
                text = f"({text} * {source.code(other)})"
                node = line
            case cst.Arg() if isinstance(call := source.parent(line), cst.Call):
                if tile_call(source, call) not in ("exp", "exp2"):
                    raise NotApplicable(f"{source.code(call.func)} is no exponential")
                rest = ", ".join(
                    source.code(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for arg in call.args[1:]
                )
                return f"{source.code(call.func)}({text[1:-1]}{', ' if rest else ''}{rest})"
            case cst.Assign():
                node = _only_read(source, loop, line)
            case _:
                raise NotApplicable(f"what subtracts {most} is no exponent")
    raise NotApplicable(f"what subtracts {most} is no exponent")


def _only_read(source: Source, loop: cst.For, assign: cst.Assign) -> cst.Name:
    """Returns the only place in a loop that reads the assigned name."""
    name = dotted(assign.targets[0].target)
    reads = [node for node in source.every(cst.Name, loop.body) if node.value == name]
    if len(reads) != 2:
        raise NotApplicable(f"{name} is read more than once")
    return reads[1]


def _between(source: Source, kernel: str, found: Chunked, loops: Pair) -> list[cst.BaseStatement]:
    """Returns the statements between two loops that the second one needs. They move before the first loop.

    Raises `NotApplicable` if one of them needs the first loop.
    """
    effects, computed = Effects(source, source.kernels[kernel]), set(names_assigned(loops[0]))
    moved = needed(found.between(loops), names_read(loops[1]))
    for statement in moved:
        late = names_read(statement) & computed or set(names_assigned(statement)) & names_read(loops[0])
        if late or not effects.is_pure(statement) or not plain_target(statement):
            raise NotApplicable(f"{source.code(statement).strip()} stands between the loops")
    return moved


def _fused(source: Source, kernel: str, pair: _Pair) -> Source:
    """Returns the source with the statements of the second loop at the end of the first."""
    first, second = pair.loops
    changes: Changes = {pair.update: cst.FlattenSentinel([line_of(f"{pair.before} = {pair.most}"), pair.update])}
    place = source.place(first)
    grown = f"{pair.total} = {pair.total} * {pair.factor} + {pair.term}"
    inside = []
    for statement in second.body.body:
        assert isinstance(statement, cst.BaseStatement)
        new = statement
        if statement is pair.added:
            new = line_of(grown).with_changes(leading_lines=statement.leading_lines)  # type: ignore[attr-defined]
        inside.append(renamed(new, {dotted(second.target): dotted(first.target)}))
    comments = [line for line in second.leading_lines if line.comment is not None]
    inside[0] = inside[0].with_changes(leading_lines=[*comments, *inside[0].leading_lines])  # type: ignore[attr-defined]
    gone: Changes = {statement: cst.FlattenSentinel([]) for statement in (second, *pair.moved)}
    source = source.changed({**changes, **gone})
    again = next(loop for loop in source.every(cst.For, source.functions[kernel]) if source.place(loop) == place)
    assert isinstance(again.body, cst.IndentedBlock)
    longer = again.with_changes(body=again.body.with_changes(body=[*again.body.body, *inside]))
    return source.changed({again: cst.FlattenSentinel([*pair.moved, longer])})


ENTRY = Online()
