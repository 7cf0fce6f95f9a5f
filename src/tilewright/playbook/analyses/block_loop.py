"""Puts the body of a kernel into a loop over items, where each block did one item before.

The old block ids become values of the item. What does not depend on the item moves in front of the loop, loads
included: a block then loads its weights once. Comments stay with their statements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst

from tilewright.playbook.analyses.dataflow import (
    LOOPS,
    Effects,
    assignments,
    names_assigned,
    names_read,
    parameters,
    range_of,
)
from tilewright.playbook.analyses.expressions import fitting
from tilewright.playbook.analyses.task_code import Grid, fresh_in, with_kernel_argument
from tilewright.playbook.base import NotApplicable, Site
from tilewright.source.syntax import Changes, Function, Source, argument, number

Statement = cst.BaseStatement


def block_ids(source: Source, kernel: str) -> dict[cst.Call, int]:
    """The calls of ``ct.bid`` in a kernel and their axes.

    Raises `NotApplicable` where an axis is no literal, or a function that the kernel calls asks for its block.
    """
    function = source.kernels[kernel]
    for name in source.called_by([kernel]) - {kernel}:
        if source.calls("bid", "num_blocks", inside=source.functions[name]):
            raise NotApplicable(f"{name}, which {kernel} calls, asks for the block itself")
    return {call: _axis(source, call) for call in source.calls("bid", inside=function)}


def grid_extents(source: Source, kernel: str) -> dict[cst.Call, int]:
    """The calls of ``ct.num_blocks`` in a kernel and their axes."""
    return {call: _axis(source, call) for call in source.calls("num_blocks", inside=source.kernels[kernel])}


def is_persistent(source: Source, kernel: str) -> bool:
    """Whether the kernel already strides over its items by the number of blocks."""
    assigns = source.every(cst.Assign, source.kernels[kernel])
    numbers = [one for one in assigns if source.calls("num_blocks", inside=one.value)]
    names = {name for one in numbers for name in names_assigned(one)}
    strides = [stride for loop in source.every(cst.For, source.kernels[kernel]) for stride in range_of(loop)[2:]]
    return any(source.calls("num_blocks", inside=one) or names_read(one) & names for one in strides)


def one_item_kernel(source: Source, site: Site) -> str:
    """The kernel at ``site``, if each of its blocks does one item. Raises `NotApplicable`."""
    kernel = site.function_here(source).name.value
    if is_persistent(source, kernel) or not block_ids(source, kernel):
        raise NotApplicable(f"{kernel} does not do one item a block")
    return kernel


def with_items(grid: Grid, kernel: str, header: str, *, guarded: bool = False) -> Source:
    """The kernel with its body under ``header`` for each item, and given the extents that it needs.

    ``header`` is the line of a loop, with ``{item}`` for its variable and ``{items}`` for their number. Where
    ``guarded``, its variable may go beyond the last item. The items count along the grid as the hardware
    starts blocks: axis 0 first. The grid of the launch is for the caller to set. Raises `NotApplicable`.
    """
    source = grid.source
    axes = [axis for axis, extent in enumerate(grid.axes) if extent != "1"] or [0]
    asked = {*block_ids(source, kernel).values(), *grid_extents(source, kernel).values()}
    if beyond := sorted(one for one in asked if one >= len(grid.axes)):
        raise NotApplicable(f"{kernel} asks for axis {beyond[0]} of a grid of {len(grid.axes)}")
    *inner, last = axes
    names = {axis: fresh_in(source, kernel, f"grid_{axis}") for axis in inner}
    items = fresh_in(source, kernel, "items")
    indices, extents = dict.fromkeys(range(len(grid.axes)), "0"), dict.fromkeys(range(len(grid.axes)), "1")
    for place, axis in enumerate(axes):
        index = _quotient("{item}", [names[one] for one in axes[:place]])
        indices[axis] = index if axis == last else f"{index} % {names[axis]}"
    extents |= names | {last: _quotient(items, list(names.values()))}
    line = header.replace("ct.", f"{source.tile_module}.").replace("{items}", items)
    guard = items if guarded else None
    source = _looped(source, kernel, line, fresh_in(source, kernel, "item"), indices, extents, guard)
    used = {one.value for one in source.every(cst.Name, source.kernels[kernel].body)}
    for name, expression in [*((names[axis], grid.axes[axis]) for axis in inner), (items, grid.items)]:
        if name in used:
            source = with_kernel_argument(source, kernel, name, expression)
    return source


def _quotient(number: str, divisors: list[str]) -> str:
    if not divisors:
        return number
    return f"{number} // {divisors[0]}" if len(divisors) == 1 else f"{number} // ({' * '.join(divisors)})"


def _looped(
    source: Source,
    kernel: str,
    header: str,
    item: str,
    indices: Mapping[int, str],
    extents: Mapping[int, str],
    guard: str | None,
) -> Source:
    """The kernel with its body inside ``header``: a line such as ``for {item} in …:``, or that and a statement.

    Each ``ct.bid(axis)`` becomes ``indices[axis]`` and each ``ct.num_blocks(axis)`` ``extents[axis]``. The loop's
    variable takes the name that the kernel has for its only block id, and otherwise ``item``.
    """
    named = _only_name(source, kernel) if set(indices.values()) <= {"{item}", "0"} else None
    item = named or item
    asked = ((block_ids(source, kernel), indices), (grid_extents(source, kernel), extents))
    changes: Changes = {
        call: fitting(source, call, texts[axis].format(item=item))
        for calls, texts in asked
        for call, axis in calls.items()
    }
    source = source.changed(changes)
    function = source.kernels[kernel]
    if not isinstance(function.body, cst.IndentedBlock):
        raise NotApplicable(f"{kernel} is written on one line")
    statements = list(function.body.body)
    start = 1 if function.get_docstring() is not None else 0
    before, inside = statements[:start], statements[start:]
    loop = cst.parse_statement(header.format(item=item) + ("" if "\n" in header else "\n    pass\n"))
    assert isinstance(loop, cst.For)
    if named is not None:  # its statement is the loop's header now
        [own] = [one for one in inside if _targets(one) == {named}]
        assert isinstance(own, cst.SimpleStatementLine)
        inside.remove(own)
        body = loop.body.with_changes(header=own.trailing_whitespace)
        loop = loop.with_changes(leading_lines=own.leading_lines, body=body)
    moved = _invariant(source, function, inside, item)
    kept = [one for one in inside if one not in moved]
    moved, inside = (moved, kept) if kept else ([], inside)
    for name in names_assigned(cst.IndentedBlock(inside)):
        if name in parameters(function):
            raise NotApplicable(f"{kernel} changes its parameter {name}, which the next item would see")
    inside = _continued(source, inside, kernel, guard)
    if guard is not None:
        test = cst.parse_expression(f"{item} < {guard}")
        inside = [cst.If(test=test, body=cst.IndentedBlock(body=inside))]
    first = list(loop.body.body) if "\n" in header else []  # what the header computes for each item
    loop = loop.with_changes(body=loop.body.with_changes(body=[*first, *inside], footer=function.body.footer))
    body = function.body.with_changes(body=[*before, *moved, loop], footer=())
    return source.changed({function.body: body})


def _invariant(source: Source, function: Function, statements: Sequence[Statement], item: str) -> list[Statement]:
    """Those of ``statements`` that give the same in every iteration of a loop over ``item`` whose body they are."""
    effects = Effects(source, function)
    assigned = names_assigned(function)
    given = set(parameters(function))
    changing = {item, *(name for one in statements for name in names_assigned(one))}
    found: list[Statement] = []
    for index, one in enumerate(statements):
        if any(source.every(kind, one) for kind in (cst.Return, cst.Continue, cst.Break)):
            break  # what follows may be skipped
        targets = _targets(one)
        if not targets or not effects.is_pure(one):
            continue
        if any(assigned[name] != 1 for name in targets) or names_read(one) & (changing - targets):
            continue
        own = targets & names_read(one)  # q = q · c: of a parameter, that nothing has read before
        if own and (not own <= given or any(own & names_read(other) for other in statements[:index])):
            continue
        found.append(one)
        changing -= targets
    return found


def _targets(statement: Statement) -> set[str]:
    """What a plain assignment assigns; nothing for any other statement."""
    match statement:
        case cst.SimpleStatementLine(body=[cst.Assign(targets=targets)]):
            if all(isinstance(one.target, (cst.Name, cst.Tuple)) for one in targets):
                return set(names_assigned(statement))
    return set()


def _continued(source: Source, statements: Sequence[Statement], kernel: str, guard: str | None) -> list[Statement]:
    """The statements with each ``return`` as a ``continue``: it ends the item, no longer the block."""
    changed: list[Statement] = []
    for one in statements:
        returns = source.every(cst.Return, one)
        if any(isinstance(above, LOOPS) for each in returns for above in source.parents(each)):
            raise NotApplicable(f"{kernel} returns from within a loop")
        if isinstance(one, cst.SimpleStatementLine) and returns and one is statements[-1]:
            continue
        if returns and guard is not None:
            raise NotApplicable(f"{kernel} returns early, which an unrolled loop cannot")
        replaced = one.visit(_Returns())
        assert isinstance(replaced, cst.BaseStatement)
        changed.append(replaced)
    return changed


class _Returns(cst.CSTTransformer):
    def leave_Return(self, original_node: cst.Return, updated_node: cst.Return) -> cst.BaseSmallStatement:
        return cst.Continue(semicolon=updated_node.semicolon)


def _only_name(source: Source, kernel: str) -> str | None:
    """``row`` where the kernel asks once for its block, in ``row = ct.bid(0)`` at the top of its body."""
    calls = list(block_ids(source, kernel))
    function = source.kernels[kernel]
    for line, name, value in assignments(source, function) if len(calls) == 1 else ():
        if value is calls[0] and source.parent(line) is function.body and _targets(line) == {name}:
            return name if names_assigned(function)[name] == 1 else None
    return None


def _axis(source: Source, call: cst.Call) -> int:
    axis = number(argument(call, "axis", 0))
    if not isinstance(axis, int):
        raise NotApplicable(f"the axis in {source.code(call)} is not written as a number")
    return axis
