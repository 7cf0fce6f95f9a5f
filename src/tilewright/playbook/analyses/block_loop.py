"""Puts the body of a kernel into a loop over items, so that a block computes several items instead of one. An item is
the work of one block of the old grid.

The old block ids are computed from the item's number. Statements that do not depend on the item move in front of the
loop, loads included: a block then loads its weights once. Comments stay with their statements. In a Triton kernel,
only index arithmetic and tensor descriptors move.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial

import libcst as cst

from tilewright.playbook.analyses import dataflow
from tilewright.playbook.analyses.expressions import fitting
from tilewright.playbook.analyses.task_code import Grid, fresh_in, space_of, with_kernel_argument, with_launch_parameter
from tilewright.playbook.analyses.triton_code import is_pure, tl_calls
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Changes, Function, Line, Source, argument, dotted, number

Statement = cst.BaseStatement
IN_TRITON = {"bid": "program_id", "num_blocks": "num_programs"}
"""Function of cuda.tile → the same function of `triton.language`."""
_PACKAGES = ("cuda", "triton", "math", "numpy", "torch")


def block_ids(source: Source, kernel: str) -> dict[cst.Call, int]:
    """Returns the calls of ``ct.bid`` or ``tl.program_id`` in a kernel, with their axes.

    Raises `NotApplicable` if an axis is no literal, or if a function that the kernel calls reads, or may read, the
    block's id itself.
    """
    if (use := _use_as_value(source)) is not None:
        raise NotApplicable(f"{source.name}:{source.place(use)[0]}: {source.code(use)} gets another name")
    for name in source.called_by([kernel]):
        if name != kernel and grid_calls(source, name):
            raise NotApplicable(f"{name}, which {kernel} calls, reads the block's id or the number of blocks itself")
        if foreign := next(_foreign(source, source.functions[name]), ""):
            raise NotApplicable(f"{foreign}, which {name} calls, may read the block's id: it is not in this file")
    return _axes(source, kernel, "bid")


@lru_cache(maxsize=64)
def _use_as_value(source: Source) -> cst.CSTNode | None:
    """Returns where ``ct.bid`` or ``ct.num_blocks`` is not called, but gets another name; None if nowhere."""
    names = {f"triton.language.{name}" for name in IN_TRITON.values()}
    for kind in (cst.Attribute, cst.Name):
        for node in source.every(kind):
            if source.tile_name(dotted(node)) in IN_TRITON or source.origin(dotted(node)) in names:
                above = source.parent(node)
                called = isinstance(above, cst.Call) and above.func is node
                if not called and not isinstance(above, (cst.ImportAlias, cst.AsName, cst.Attribute)):
                    return node
    return None


def _foreign(source: Source, function: Function) -> Iterator[str]:
    """Yields the names of the functions of other files that a function calls, but for those of known packages."""
    inner: list[Function | cst.Lambda] = [
        function,
        *source.every(cst.FunctionDef, function),
        *source.every(cst.Lambda, function),
    ]
    own = {name for each in inner for name in dataflow.parameters(each)} | set(dataflow.names_assigned(function))
    own |= {each.name.value for each in inner if isinstance(each, cst.FunctionDef)}
    for call in source.every(cst.Call, function.body):
        name = dotted(call.func)
        root, _, method = name.partition(".")
        package = source.origin(root).partition(".")[0]
        known = package in _PACKAGES or source.tile_name(name) or root in {*own, *source.functions}
        if root and not known and (method or not hasattr(builtins, root)):
            yield name


def grid_extents(source: Source, kernel: str) -> dict[cst.Call, int]:
    """Returns the calls of ``ct.num_blocks`` or ``tl.num_programs`` in a kernel, with their axes.

    Raises `NotApplicable` if an axis is no literal.
    """
    return _axes(source, kernel, "num_blocks")


def grid_calls(source: Source, function: str) -> list[cst.Call]:
    """Returns the calls in a function that read the block's id or the number of blocks.

    Raises `NotApplicable` if an axis is no literal.
    """
    return [*_axes(source, function, "bid"), *_axes(source, function, "num_blocks")]


def _axes(source: Source, kernel: str, function: str) -> dict[cst.Call, int]:
    found = {}
    for call in _calls(source, source.functions[kernel], function):
        axis = number(argument(call, "axis", 0))
        if not isinstance(axis, int):
            raise NotApplicable(f"the axis in {source.code(call)} is not written as a number")
        found[call] = axis
    return found


def _calls(source: Source, inside: cst.CSTNode, *names: str) -> list[cst.Call]:
    return [*source.calls(*names, inside=inside), *tl_calls(source, inside, *(IN_TRITON[name] for name in names))]


def is_persistent(source: Source, kernel: str) -> bool:
    """Returns whether the kernel already has a loop over items whose step is the number of blocks."""
    assigns = source.every(cst.Assign, source.functions[kernel])
    numbers = [assign for assign in assigns if _calls(source, assign.value, "num_blocks")]
    names = {name for assign in numbers for name in dataflow.names_assigned(assign)}
    steps = [step for loop in source.every(cst.For, source.functions[kernel]) for step in dataflow.range_of(loop)[2:]]
    return any(_calls(source, step, "num_blocks") or dataflow.names_read(step) & names for step in steps)


def clusters_divisor(source: Source, kernel: str) -> str:
    """Returns the text that divides the grid by num_ctas; "" if the kernel has no such hint. With the hint, each block
    runs as num_ctas CTAs on as many SMs, so fewer blocks fill the GPU.
    """
    hints = argument(space_of(source), "hints")
    if hints is not None and '"num_ctas"' in source.code(hints).replace("'", '"'):
        return " // (config.num_ctas or 1)"
    decorator = source.kernel_decorator(source.kernels[kernel])
    called = None if decorator is None else decorator.decorator
    fixed = number(argument(called, "num_ctas")) if isinstance(called, cst.Call) else None
    return f" // {fixed}" if isinstance(fixed, int) and fixed > 1 else ""


def blocks_per_sm(source: Source, kernel: str, knob: str) -> tuple[Source, str]:
    """Returns the source whose launch can compute SMs × ``knob`` blocks, and the text of this number."""
    for parameter in ("config", "hardware"):
        source = with_launch_parameter(source, parameter)
    return source, f"hardware.sms * config.{knob}{clusters_divisor(source, kernel)}"


def refuse_several_items(source: Source, kernel: str) -> None:
    """Raises `NotApplicable` unless each block of a kernel computes one item."""
    if is_persistent(source, kernel) or not block_ids(source, kernel):
        raise NotApplicable(f"a block of {kernel} does not compute exactly one item")


def with_items(grid: Grid, kernel: str, header: str, *, guarded: bool = False) -> Source:
    """Returns ``grid.source`` with the kernel's body inside a loop, and with the parameters that the loop needs.

    ``header`` is the loop's first line, with ``{item}`` for its variable and ``{items}`` for the number of items. A
    second line in ``header`` becomes the first statement of the loop. With ``guarded``, the loop may run beyond the
    last item, and the body tests the item's number. Items are numbered in the order in which the hardware starts
    blocks: axis 0 runs fastest. The caller sets the launch's grid. Raises `NotApplicable`.
    """
    source = grid.source
    axes = [axis for axis, extent in enumerate(grid.axes) if extent != "1"] or [0]
    asked = {*block_ids(source, kernel).values(), *grid_extents(source, kernel).values()}
    if beyond := sorted(axis for axis in asked if axis >= len(grid.axes)):
        raise NotApplicable(f"{kernel} reads axis {beyond[0]} of a grid of {len(grid.axes)} axes")
    *inner, last = axes
    names = {axis: fresh_in(source, kernel, f"grid_{axis}") for axis in inner}
    items = fresh_in(source, kernel, "items")
    indices, extents = dict.fromkeys(range(len(grid.axes)), "0"), dict.fromkeys(range(len(grid.axes)), "1")
    for place, axis in enumerate(axes):
        index = _quotient("{item}", [names[faster] for faster in axes[:place]])
        indices[axis] = index if axis == last else f"{index} % {names[axis]}"
    extents |= names | {last: _quotient(items, list(names.values()))}
    line = header.replace("ct.", f"{source.tile_module}.").replace("{items}", items)
    source = _looped(source, kernel, line, (indices, extents), items if guarded else None)
    used = {name.value for name in source.every(cst.Name, source.functions[kernel].body)}
    for name, expression in [*((names[axis], grid.axes[axis]) for axis in inner), (items, grid.items)]:
        if name in used:
            source = with_kernel_argument(source, kernel, name, expression)
    return source


def _quotient(number: str, divisors: list[str]) -> str:
    if not divisors:
        return number
    return f"{number} // {divisors[0]}" if len(divisors) == 1 else f"{number} // ({' * '.join(divisors)})"


def _looped(
    source: Source, kernel: str, header: str, texts: tuple[Mapping[int, str], Mapping[int, str]], guard: str | None
) -> Source:
    """Returns the source with the kernel's body inside the loop that begins with ``header``.

    ``texts`` holds two mappings from an axis to an expression: one for ``ct.bid(axis)``, one for
    ``ct.num_blocks(axis)``. ``guard`` is used if the loop may run beyond the last item. It is the name of the parameter
    with the number of items. The body is skipped for later items. If the kernel gives its only block id a name, the
    loop's variable takes that name.
    """
    whole = [axis for axis, text in texts[0].items() if text == "{item}"]
    named = _only_name(source, kernel, whole[0]) if whole and set(texts[0].values()) <= {"{item}", "0"} else None
    item = named or fresh_in(source, kernel, "item")
    changes: Changes = {
        call: fitting(source, call, expressions[axis].format(item=item))
        for calls, expressions in zip((block_ids(source, kernel), grid_extents(source, kernel)), texts, strict=True)
        for call, axis in calls.items()
    }
    source = source.changed(changes)
    function = source.functions[kernel]
    if not isinstance(function.body, cst.IndentedBlock):
        raise NotApplicable(f"{kernel} is written on one line")
    start = 1 if function.get_docstring() is not None else 0
    before, inside = list(function.body.body[:start]), list(function.body.body[start:])
    loop = cst.parse_statement(header.format(item=item) + ("" if "\n" in header else "\n    pass\n"))
    assert isinstance(loop, cst.For)
    if named is not None:  # the loop's header replaces the statement that assigned the name
        [own] = [statement for statement in inside if _targets(statement) == {named}]
        assert isinstance(own, Line)
        inside.remove(own)
        body = loop.body.with_changes(header=own.trailing_whitespace)
        loop = loop.with_changes(leading_lines=own.leading_lines, body=body)
    moved = _invariant(source, function, inside, item)
    kept = [statement for statement in inside if statement not in moved]
    moved, inside = (moved, kept) if kept else ([], inside)
    for name in dataflow.names_assigned(cst.IndentedBlock(inside)):
        if name in dataflow.parameters(function):
            raise NotApplicable(f"{kernel} changes its parameter {name}: the next item would read the changed value")
    inside = _continued(source, inside, kernel, guard)
    if guard is not None:
        test = cst.parse_expression(f"{item} < {guard}")
        inside = [cst.If(test=test, body=cst.IndentedBlock(body=inside))]
    first = list(loop.body.body) if "\n" in header else []  # a statement in the text of the header comes first
    loop = loop.with_changes(body=loop.body.with_changes(body=[*first, *inside], footer=function.body.footer))
    body = function.body.with_changes(body=[*before, *moved, loop], footer=())
    return source.changed({function.body: body})


def _invariant(source: Source, function: Function, statements: Sequence[Statement], item: str) -> list[Statement]:
    """Returns the ``statements`` (the body of a loop over ``item``) that compute the same value in each iteration."""
    in_triton = function.name.value not in source.kernels
    pure = (
        partial(is_pure, source, also=("make_tensor_descriptor",))
        if in_triton
        else dataflow.Effects(source, function).is_pure
    )
    assigned = dataflow.names_assigned(function)
    given = set(dataflow.parameters(function))
    changing = {item, *(name for statement in statements for name in dataflow.names_assigned(statement))}
    found: list[Statement] = []
    for index, statement in enumerate(statements):
        if any(source.every(kind, statement) for kind in (cst.Return, cst.Continue, cst.Break)):
            break  # a branch may skip the statements after it
        targets, reads = _targets(statement), dataflow.names_read(statement)
        if not targets or not pure(statement):
            continue
        if any(assigned[name] != 1 for name in targets) or reads & (changing - targets):
            continue
        own = targets & reads  # q = q · c: allowed for a parameter that no statement has read before
        if own and (not own <= given or any(own & dataflow.names_read(before) for before in statements[:index])):
            continue
        found.append(statement)
        changing -= targets
    return found


def _targets(statement: Statement) -> set[str]:
    """Returns the names that a plain assignment assigns; empty for any other statement."""
    match statement:
        case Line(body=[cst.Assign(targets=targets)]):
            if all(isinstance(target.target, (cst.Name, cst.Tuple)) for target in targets):
                return set(dataflow.names_assigned(statement))
    return set()


def _continued(source: Source, statements: Sequence[Statement], kernel: str, guard: str | None) -> list[Statement]:
    """Returns the statements with ``continue`` in place of ``return``, because ``return`` would end all items of the
    block."""
    changed: list[Statement] = []
    for statement in statements:
        returns = source.every(cst.Return, statement)
        if any(isinstance(above, dataflow.LOOPS) for each in returns for above in source.parents(each)):
            raise NotApplicable(f"{kernel} returns from within a loop")
        if isinstance(statement, Line) and returns and statement is statements[-1]:
            continue
        if returns and guard is not None:
            raise NotApplicable(f"{kernel} returns early: an unrolled loop cannot skip the rest of one item")
        replaced = statement.visit(_Returns())
        assert isinstance(replaced, cst.BaseStatement)
        changed.append(replaced)
    return changed


class _Returns(cst.CSTTransformer):
    def leave_Return(self, old: cst.Return, new: cst.Return) -> cst.BaseSmallStatement:
        return cst.Continue(semicolon=new.semicolon)


def _only_name(source: Source, kernel: str, axis: int) -> str | None:
    """Returns ``row`` if the kernel reads its block id along the grid's only long axis in nothing but
    ``row = ct.bid(axis)``, outside loops and branches."""
    calls = [call for call, along in block_ids(source, kernel).items() if along == axis]
    function = source.functions[kernel]
    for line, name, value in dataflow.assignments(source, function) if len(calls) == 1 else ():
        if value is calls[0] and source.parent(line) is function.body and _targets(line) == {name}:
            return name if dataflow.names_assigned(function)[name] == 1 else None
    return None
