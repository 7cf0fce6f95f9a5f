"""Turns the block pointers of a Triton kernel into tensor descriptors.

Triton 3.9 has removed `tl.make_block_ptr`. A descriptor has the same base, shape, strides and block, but its loads and
stores take the offsets as arguments. An axis along which `tl.advance` moves the block gets a variable for its offset.
If the first stride is 1, the descriptor describes the transposed matrix. An axis without a bounds check ends where the
block ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import libcst as cst

from tilewright.playbook.analyses.dataflow import assignments, names_assigned, names_read, pairs_of, reaching
from tilewright.playbook.analyses.expressions import text_of
from tilewright.playbook.analyses.triton_code import LANGUAGE, jit_functions, spelled, tl_call, tl_calls
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Expression, Function, Line, Replacement, Source, argument, dotted, elements, number

ALL = "all block pointers"
PARTS = ("base", "shape", "strides", "offsets", "block_shape")
PADDING = {"": "", "zero": "", "nan": ', padding_option="nan"'}
"""Maps the padding of a load to the padding argument of the descriptor."""


class BlockPointersAsDescriptors(Entry):
    about = EntryDescription(
        id="block_pointers",
        name="block pointers",
        what="tl.make_block_ptr, tl.advance and their loads and stores as a tl.make_tensor_descriptor with offsets",
        when="the kernel uses block pointers, which Triton 3.9 has removed",
        when_not="no stride is 1, or strides are no multiples of 16 bytes",
        priority={"memory": 1, "balanced": 1, "compute": 1},
        eases=("access path",),
        order=280,
        language=LANGUAGE,
        effect=Effect.assumed(0.9, 2.0),
        together=("tile_ir_route",),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        function = jit_functions(source).get(facts.kernel)
        if function is None or not tl_calls(source, function, "make_block_ptr"):
            return []
        site = Site.at(source, function, "block pointers", (ALL,))
        return [site] if self.applies(source, site) else []

    def apply(self, source: Source, site: Site, value: Value) -> str:
        function = site.function_here(source)
        if value != ALL or site.kernel not in jit_functions(source):
            raise site.refused(source, f"'{value}' is no value of this entry")
        return _with_descriptors(source, function).text

    def findings(self, source: Source, facts: KernelFacts) -> list[str]:
        function = jit_functions(source).get(facts.kernel)
        try:
            if function is not None and tl_calls(source, function, "make_block_ptr"):
                _with_descriptors(source, function)
        except NotApplicable as reason:
            return [str(reason)]
        return []


@dataclass(frozen=True)
class MadeBlockPointer:
    """The variable ``name``, which the statement ``line`` sets to a new block pointer.

    parts: the arguments of ``call``.
    moved: the variable that will hold the offset of each axis that `tl.advance` moves.
    turned: whether the first stride is 1; the descriptor then describes the transposed matrix.
    """

    name: str
    line: Line
    call: cst.Call
    parts: Mapping[str, list[Expression]]
    moved: Mapping[int, str]
    turned: bool


def _with_descriptors(source: Source, function: Function) -> Source:
    """Returns the source without the block pointers of a function. Raises `NotApplicable` with the first reason, if
    any."""
    source = _one_assignment_a_line(source, function)
    function = source.functions[function.name.value]
    pointers = _block_pointers(source, function)
    changes: dict[cst.CSTNode, Replacement | Callable[[cst.CSTNode], Replacement]] = {}
    known, checked, padding = set[cst.CSTNode](), dict[str, set[int]](), dict[str, str]()
    for call in tl_calls(source, function, "load", "store"):
        pointer = pointers.get(dotted(call.args[0].value)) if call.args else None
        if pointer is not None:
            known.add(call.args[0].value)
            axes = _checked(source, call, len(pointer.parts["shape"]))
            if checked.setdefault(pointer.name, axes) != axes:
                raise _refused(source, call, f"the accesses of {pointer.name} check different axes")
            if tl_call(source, call) == "load":
                new = _padding(source, call)
                if padding.setdefault(pointer.name, new) != new:
                    raise _refused(source, call, f"the loads of {pointer.name} have different paddings")
            changes[call] = partial(_access, source, pointer, _offsets(source, call, pointer))
    for call in tl_calls(source, function, "advance"):
        known.add(call.args[0].value)
    for attribute in source.every(cst.Attribute, function.body):  # replaces p.dtype.element_ty by p.dtype
        if dotted(attribute) in {f"{name}.dtype.element_ty" for name in pointers}:
            changes[attribute] = attribute.value
            known.add(source.every(cst.Name, attribute)[0])
    for line, name, value in assignments(source, function.body):
        if tl_call(source, value) == "advance" and (moved := pointers.get(name)) is not None:
            changes[line] = _advanced(source, line, value, moved)
            known.add(_target(line))
    for pointer in pointers.values():
        made = _made(source, pointer, checked.get(pointer.name, set()), padding.get(pointer.name, ""))
        changes[pointer.line] = cst.FlattenSentinel(made)
        known.add(_target(pointer.line))
    for node in source.every(cst.Name, function.body):
        if node.value in pointers and node not in known:
            raise _refused(source, node, f"{node.value} is used for something other than loads, stores and advance")
    return source.changed(changes)


def _one_assignment_a_line(source: Source, function: Function) -> Source:
    """Returns the source in which each assignment of a block pointer has a line of its own.

    ``p, q = …, …`` is divided if no later value reads an earlier name.
    """
    changes: dict[cst.CSTNode, Replacement | Callable[[cst.CSTNode], Replacement]] = {}
    for line in source.every(Line, function.body):
        if not tl_calls(source, line, "make_block_ptr", "advance"):
            continue
        pieces = [piece for statement in line.body for piece in _divided(statement)]
        if len(pieces) > 1:
            lines = [Line([piece.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)]) for piece in pieces]
            changes[line] = cst.FlattenSentinel(_in_place_of(line, lines))
    return source.changed(changes) if changes else source


def _divided(statement: cst.BaseSmallStatement) -> list[cst.BaseSmallStatement]:
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return [statement]
    divided, names = list[cst.BaseSmallStatement](), set[str]()
    for target, value in pairs_of(statement):
        if not isinstance(target, cst.Name) or value is None or names & names_read(value):
            return [statement]
        names.add(target.value)
        divided.append(cst.Assign([cst.AssignTarget(target)], value))
    return divided


def _block_pointers(source: Source, function: Function) -> dict[str, MadeBlockPointer]:
    """Returns the function's block pointers, by name."""
    found: dict[str, MadeBlockPointer] = {}
    calls = tl_calls(source, function, "make_block_ptr")
    advances = tl_calls(source, function, "advance")
    taken = {name.value for name in source.every(cst.Name)}
    for line, name, call in assignments(source, function.body):
        if call not in calls or not isinstance(call, cst.Call):
            continue
        given = {part: argument(call, part, place) for place, part in enumerate(PARTS)}
        parts = {part: elements(node) or [] for part, node in given.items() if part != "base" and node is not None}
        rank = len(parts.get("shape", ()))
        if given["base"] is None or len(parts) < 4 or any(len(part) != rank for part in parts.values()) or not rank:
            raise _refused(source, call, "its arguments are not written as tuples of the same length")
        own = [each for each in advances if each.args and dotted(each.args[0].value) == name]
        if names_assigned(function.body)[name] != 1 + len(own):
            raise _refused(source, call, f"{name} is assigned several times")
        axes = {axis for each in own for axis in _steps(source, each, rank)}
        moved = {axis: f"{name}_offset" + (f"_{axis}" if len(axes) > 1 else "") for axis in axes}
        if taken & set(moved.values()):
            raise _refused(source, call, f"the name {min(moved.values())} is in use")
        if "#" in source.code(call):
            raise _refused(source, call, "a comment inside the call would be lost")
        turned = rank == 2 and number(parts["strides"][0]) == 1 and number(parts["strides"][1]) != 1
        if not turned and number(last := parts["strides"][-1]) != 1 and not isinstance(last, cst.Name):
            raise _refused(source, call, f"the last stride is {source.code(last)}")
        found[name] = MadeBlockPointer(name, line, call, {**parts, "base": [given["base"]]}, moved, turned)
    if len(found) != len(calls):
        raise _refused(source, calls[0], "a block pointer is not assigned to one name")
    if any(not each.args or dotted(each.args[0].value) not in found for each in advances):
        raise _refused(source, advances[0], "what is advanced is not a block pointer of this function")
    return found


def _steps(source: Source, call: cst.Call, rank: int) -> dict[int, Expression]:
    """Returns the steps of a `tl.advance` call by axis. Steps of 0 are left out."""
    steps = elements(argument(call, "offsets", 1))
    if steps is None or len(steps) != rank:
        raise _refused(source, call, "its steps are not written as a tuple")
    return {axis: step for axis, step in enumerate(steps) if number(step) != 0}


def _made(source: Source, pointer: MadeBlockPointer, checked: set[int], padding: str) -> list[Line]:
    """Returns the statements that make the descriptor and set its offset variables."""
    parts, lines = pointer.parts, list[str]()
    shape = [source.code(extent) for extent in parts["shape"]]
    for axis in range(len(shape)):
        if axis not in checked:
            if axis in pointer.moved:
                raise _refused(source, pointer.call, f"{pointer.name} is advanced along axis {axis} unchecked")
            first, size = parts["offsets"][axis], text_of(source, parts["block_shape"][axis])
            shape[axis] = size if number(first) == 0 else f"{source.code(first)} + {size}"
    strides = [source.code(stride) for stride in parts["strides"]]
    sizes = [source.code(size) for size in parts["block_shape"]]
    if pointer.turned:
        shape, strides, sizes = shape[::-1], strides[::-1], sizes[::-1]
    made_by = spelled(source, pointer.call, "make_tensor_descriptor")
    listed = ", ".join(f"[{', '.join(items)}]" for items in (shape, strides, sizes))
    lines.append(f"{pointer.name} = {made_by}({source.code(parts['base'][0])}, {listed}{padding})")
    lines += [f"{name} = {source.code(parts['offsets'][axis])}" for axis, name in pointer.moved.items()]
    return _instead(pointer.line, lines)


def _offsets(source: Source, call: cst.Call, pointer: MadeBlockPointer) -> list[str]:
    """Returns the offsets of a load or store as text. Raises `NotApplicable` if their values may have changed."""
    offsets = []
    for axis, offset in enumerate(pointer.parts["offsets"]):
        made = reaching(source, pointer.name, call)
        if not pointer.moved and (made is None or made.value is not pointer.call):
            raise _refused(source, call, f"{pointer.name} may not be made here")
        for name in names_read(offset) if axis not in pointer.moved else ():
            here, there = reaching(source, name, call), reaching(source, name, pointer.call)
            if here is None or there is None or here.node is not there.node:
                raise _refused(source, call, f"{name} changes between the block pointer and its access")
        offsets.append(pointer.moved.get(axis) or source.code(offset))
    return offsets


def _access(source: Source, pointer: MadeBlockPointer, offsets: list[str], call: cst.CSTNode) -> cst.BaseExpression:
    """Returns the load or store through the descriptor that replaces ``call``."""
    assert isinstance(call, cst.Call)
    trans = spelled(source, call, "trans")
    where = ", ".join(offsets[::-1] if pointer.turned else offsets)
    if tl_call(source, call) == "load":
        loaded = f"{pointer.name}.load([{where}])"
        return cst.parse_expression(f"{trans}({loaded})" if pointer.turned else loaded)
    value = argument(call, "value", 1)
    stored = "" if value is None else source.code(value)
    return cst.parse_expression(
        f"{pointer.name}.store([{where}], {f'{trans}({stored})' if pointer.turned else stored})"
    )


def _checked(source: Source, call: cst.Call, rank: int) -> set[int]:
    """Returns the axes whose bounds a load or store checks."""
    given = argument(call, "boundary_check")
    axes = [] if given is None else [number(axis) for axis in elements(given) or [given]]
    whole = {axis % rank for axis in axes if isinstance(axis, int)}
    if len(whole) != len(axes):
        raise _refused(source, call, "its boundary_check is not written as numbers of axes")
    return whole


def _padding(source: Source, call: cst.Call) -> str:
    given = argument(call, "padding_option")
    name = source.code(given).strip("\"'") if given is not None else ""
    if name not in PADDING:
        raise _refused(source, call, f"padding_option={name} has no counterpart in a descriptor")
    return PADDING[name]


def _advanced(
    source: Source, line: Line, call: Expression, pointer: MadeBlockPointer
) -> cst.FlattenSentinel[cst.CSTNode]:
    """Returns the statements that replace ``line``. They advance the offsets."""
    assert isinstance(call, cst.Call)
    steps = _steps(source, call, len(pointer.parts["shape"]))
    if dotted(call.args[0].value) != pointer.name:
        raise _refused(source, call, "it advances another block pointer than it assigns")
    lines = [f"{pointer.moved[axis]} += {source.code(step)}" for axis, step in steps.items()]
    return cst.FlattenSentinel(_instead(line, lines))


def _instead(line: Line, texts: Sequence[str]) -> list[Line]:
    """Returns the statements ``texts``, which replace ``line``. They keep the comments of ``line``."""
    return _in_place_of(line, [Line([*cst.ensure_type(cst.parse_statement(text), Line).body]) for text in texts])


def _in_place_of(line: Line, lines: list[Line]) -> list[Line]:
    """Returns ``lines`` with the comments of ``line``, which they replace."""
    if lines:
        lines[0] = lines[0].with_changes(leading_lines=line.leading_lines)
        lines[-1] = lines[-1].with_changes(trailing_whitespace=line.trailing_whitespace)
    return lines


def _target(line: Line) -> cst.CSTNode:
    """Returns the node of the name that a plain assignment assigns."""
    [statement] = line.body
    assert isinstance(statement, cst.Assign)
    return statement.targets[0].target


def _refused(source: Source, node: cst.CSTNode, reason: str) -> NotApplicable:
    return NotApplicable(f"{source.name}:{source.place(node)[0]}: block pointer not replaced: {reason}")


ENTRY = BlockPointersAsDescriptors()
