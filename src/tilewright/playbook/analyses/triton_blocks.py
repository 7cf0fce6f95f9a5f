"""Reads a load or store through pointers as an access to a block, if the text shows that both are equal.

A block has a tensor, with base, shape and strides, and the offsets of its first element. The mask gives the shape: it
must load or store the elements whose offset along each axis is below one bound. An axis without a mask is as long as
the block. If a loop takes one block after the other, the axis is as long as all blocks together. Rows that wrap round
(``% M``) are treated as rows beyond the end, if no stored value depends on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import libcst as cst

from tilewright.playbook.analyses.dataflow import assignments, names_assigned, names_read, parameters
from tilewright.playbook.analyses.index_forms import ONE, Scalar
from tilewright.playbook.analyses.triton_addresses import PointerAccess, Walk
from tilewright.playbook.analyses.triton_code import spelled, tl_call, tl_calls
from tilewright.playbook.analyses.triton_forms import ZERO, Form, Lane, Mask, plain
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Expression, Function, Source, argument, dotted, number

KNOWN = ("pointer", "mask", "other", "value", "cache_modifier", "eviction_policy")
_KEEPS_ROWS = (
    "abs", "arange", "assume", "cdiv", "dot", "exp", "exp2", "full", "load", "log", "log2", "max_contiguous", "maximum",
    "minimum", "multiple_of", "num_programs", "program_id", "range", "rsqrt", "sigmoid", "sqrt", "store", "where",
    "zeros",
)  # fmt: skip
"""Functions that do not mix rows and columns. A row of the result depends only on that row of the left operand. A
column depends only on that column of the right operand."""


@dataclass(frozen=True)
class Block:
    """The block that ``access`` loads or stores.

    pointer: the parameter that holds the tensor's address. turned: whether the axes are in the other order than those
    of the access.
    """

    access: PointerAccess
    pointer: str
    base: Scalar
    shape: tuple[Scalar, ...]
    strides: tuple[Scalar, ...]
    sizes: tuple[Scalar, ...]
    offsets: tuple[Scalar, ...]
    turned: bool = False


def turned(block: Block) -> Block:
    """Returns the block of the transposed tensor."""
    shape, strides, sizes, offsets = (
        tuple(reversed(values)) for values in (block.shape, block.strides, block.sizes, block.offsets)
    )
    return replace(block, shape=shape, strides=strides, sizes=sizes, offsets=offsets, turned=not block.turned)


def block_of(walk: Walk, access: PointerAccess) -> Block:
    """Returns the block of an access. Raises `NotApplicable` with the reason if the text does not show one."""
    source, call = walk.source, access.call
    text, form = " ".join(source.code(call).split()), access.pointer
    if unknown := [arg for arg in call.args if arg.keyword is not None and arg.keyword.value not in KNOWN]:
        raise NotApplicable(f"{text}: {source.code(unknown[0])} has no counterpart in a descriptor")
    if len([arg for arg in call.args if arg.keyword is None]) > len(("pointer", "mask", "other")):
        raise NotApplicable(f"{text}: it has more arguments than a descriptor has counterparts of")
    if "#" in source.code(call):
        raise NotApplicable(f"{text}: a comment inside the call would be lost")
    if not isinstance(form, Form):
        raise NotApplicable(f"{text}: its addresses are not a pointer plus strides times ranges")
    if not form.axes or None in form.axes:
        raise NotApplicable(f"{text}: it takes one element along an axis")
    lanes = [lane for lane in form.axes if lane is not None]
    masked = _bounds(walk, access, lanes, text)
    other = argument(call, "other", 2) if access.kind == "load" else None
    if masked and other is not None and (number(other) != 0 or source.code(other).startswith("-")):
        raise NotApplicable(f"{text}: outside the mask it loads {source.code(other)}; a descriptor loads 0")
    base, offsets, shape = form.start, [], []
    for axis, lane in enumerate(lanes):
        offset, bound = masked.get(axis, (ZERO, lane.size))
        if lane.wrapped is not None:
            if axis in masked:
                raise NotApplicable(f"{text}: an axis wraps round and is masked, too")
            _keep_apart(walk, access, axis, lane, text)
            offset, bound = lane.wrapped
        else:
            offset, bound = masked.get(axis) or _in_loop(walk, access, lane, base) or (offset, bound)
            base += -(lane.step * offset)
        if not walk.not_negative(offset):
            raise NotApplicable(f"{text}: the text does not show that {plain(offset.text)} is not negative")
        offsets.append(offset)
        shape.append(bound)
    strides = [lane.step for lane in lanes]
    if not any(map(_may_be_one, strides[-1:] if len(strides) != 2 else strides)):
        raise NotApplicable(f"{text}: the stride of its last axis is {plain(strides[-1].text)}, which is never 1")
    pointer = _pointer(walk, access, form)
    return Block(
        access, pointer, base, tuple(shape), tuple(strides), tuple(lane.size for lane in lanes), tuple(offsets)
    )  # fmt: skip


def _may_be_one(stride: Scalar) -> bool:
    return stride == ONE or list(stride.terms.values()) == [1]


def _in_loop(walk: Walk, access: PointerAccess, lane: Lane, base: Scalar) -> tuple[Scalar, Scalar] | None:
    """Returns offset and end of an axis without a mask, along which a loop takes one block after the other. Returns
    None without such a loop."""
    for name, (end, step) in walk.ends.items():
        turn = Scalar({(name,): 1})
        moved = Scalar({term: factor for term, factor in base.terms.items() if name in term})
        if step == ONE and moved == lane.step * lane.size * turn:
            return lane.size * turn, lane.size * end
        if step == lane.size and moved == lane.step * turn:
            blocks = f"{spelled(walk.source, access.call, 'cdiv')}({end.text}, {step.text})"
            return turn, Scalar({(blocks,): 1}) * step
    return None


def _bounds(walk: Walk, access: PointerAccess, lanes: list[Lane], text: str) -> dict[int, tuple[Scalar, Scalar]]:
    """Returns, for each axis that the mask limits, the offset of the block's first element and the bound."""
    if argument(access.call, "mask", 1 if access.kind == "load" else 2) is None:
        return {}
    found: dict[int, tuple[Scalar, Scalar]] = {}
    mask = access.mask
    if not isinstance(mask, Mask):
        raise NotApplicable(f"{text}: its mask is not made of comparisons index < bound")
    for index, limit in mask.parts:
        axes = [axis for axis, lane in enumerate(index.axes) if lane is not None]
        if len(axes) != 1 or len(index.axes) != len(lanes):
            raise NotApplicable(f"{text}: its mask compares something other than one index of the block")
        [axis] = axes
        lane = index.axes[axis]
        if lane is None or lane.wrapped or lane.step != ONE or lane.size != lanes[axis].size or axis in found:
            raise NotApplicable(f"{text}: its mask does not limit axis {axis} by one bound")
        moved = Scalar({term: -factor for term, factor in limit.terms.items() if factor < 0 and term})
        if (left := limit.text) in walk.highest:  # a loop that counts down: the elements that are left
            moved = walk.highest[left] + -limit
        found[axis] = (index.start + moved, limit + moved)
    return found


def _pointer(walk: Walk, access: PointerAccess, form: Form) -> str:
    """Returns the parameter at the beginning of the address. Raises `NotApplicable` if the tensor may overlap
    another."""
    source, function = walk.source, walk.function
    text = " ".join(source.code(access.call).split())
    pointer = plain(form.lead)
    if pointer not in parameters(function) or form.start.terms.get((form.lead,)) != 1:
        raise NotApplicable(f"{text}: its address does not begin with a parameter of the kernel")
    read, written = tensors_used(source, function)
    if pointer in (written if access.kind == "load" else read):
        raise NotApplicable(f"{text}: the kernel both reads and writes {pointer}, and the order must stay")
    return pointer


def tensors_used(source: Source, function: Function) -> tuple[set[str], set[str]]:
    """Returns two sets of the kernel's parameters. The kernel may read memory through parameters of the first set, and
    write memory through parameters of the second set."""
    given: dict[str, set[str]] = {}
    for statement in source.every(cst.BaseSmallStatement, function.body):  # type: ignore[type-abstract]
        for name in names_assigned(statement):
            given.setdefault(name, set()).update(names_read(statement))
    read, written = set[str](), set[str]()
    for call in source.every(cst.Call, function.body):
        name = tl_call(source, call)
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) and not name else ""
        if name in ("load", "store"):
            used = _origins(argument(call, "pointer", 0), given)
        elif method in ("load", "store", "gather", "scatter") or method.startswith("atomic"):
            used = _origins(call.func, given)
        elif name.startswith("atomic") or _uses_memory(source, dotted(call.func)):
            used = set[str]().union(*(_origins(arg.value, given) for arg in call.args))
        else:
            continue
        if name != "store" and method not in ("store", "scatter"):
            read |= used
        if name != "load" and method not in ("load", "gather"):
            written |= used
    own = set(parameters(function))
    return read & own, written & own


def _uses_memory(source: Source, name: str) -> bool:
    """Returns whether ``name`` is a function of this file that may read or write memory, itself or in a call."""
    reached = source.called_by([name]) if name in source.functions else ()
    words = ("load", "store", "gather", "scatter", "atomic")
    calls = (call for each in reached for call in source.every(cst.Call, source.functions[each].body))
    return any(dotted(call.func).rpartition(".")[2].startswith(words) for call in calls)


def _origins(node: Expression | None, given: dict[str, set[str]]) -> set[str]:
    """Returns the names from which the value of ``node`` may be computed."""
    pending, found = names_read(node) if node is not None else set(), set[str]()
    while pending:
        found |= pending
        pending = set[str]().union(*(given.get(name, set()) for name in pending)) - found
    return found


def _keep_apart(walk: Walk, access: PointerAccess, axis: int, lane: Lane, text: str) -> None:
    """Raises `NotApplicable` if a stored value may depend on the rows (or columns) that wrap round.

    No stored value depends on them if the block goes directly into one side of a product, and all stores mask these
    rows.
    """
    source, function = walk.source, walk.function
    assert lane.wrapped is not None
    start, length = lane.wrapped
    reason = f"{text}: the text does not show that rows beyond {plain(length.text)}, which wrap round, are not used"
    lane_axes = access.pointer.axes if isinstance(access.pointer, Form) else ()
    products = tl_calls(source, function, "dot")
    sides = [(argument(call, "input", 0), argument(call, "other", 1)) for call in products]
    loads = {each for _, each, value in assignments(source, function) if tl_call(source, value) == "load"}
    if len(lane_axes) != 2 or not _only_in(walk, access.call, [pair[axis] for pair in sides]):
        raise NotApplicable(reason)
    for node in (node for pair in sides for node in pair):
        if node is None or not (tl_call(source, node) == "load" or dotted(node) in loads):
            raise NotApplicable(reason)
    if not all(_keeps_rows(source, name) for name in source.called_by([function.name.value])):
        raise NotApplicable(reason)
    for store in (each for each in walk.accesses if each.kind == "store"):
        parts = store.mask.parts if isinstance(store.mask, Mask) else ()
        limits = [
            (index.start, limit)
            for index, limit in parts
            if len(index.axes) == len(lane_axes) and isinstance(index.axes[axis], Lane)
        ]
        if (start, length) not in limits:
            raise NotApplicable(reason)


def _keeps_rows(source: Source, name: str) -> bool:
    """Returns whether a function mixes no rows and columns, as far as its own text shows it."""
    function = source.functions[name]
    for call in source.every(cst.Call, function.body):
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else dotted(call.func)
        called = tl_call(source, call) or method
        if called not in _KEEPS_ROWS and called not in ("min", "max", "to") and called not in source.functions:
            return False
    return all(each.attr.value != "T" for each in source.every(cst.Attribute, function.body))


def _only_in(walk: Walk, load: cst.Call, places: Sequence[Expression | None]) -> bool:
    """Returns whether the loaded value is read at these places only: directly, or by a name that is assigned once."""
    if any(node is load for node in places):
        return True
    above = walk.source.parent(load)
    if not isinstance(above, cst.Assign) or len(above.targets) != 1:
        return False
    target, body = above.targets[0].target, walk.function.body
    name = dotted(target)
    reads = [node for node in walk.source.every(cst.Name, body) if node.value == name and node is not target]
    read = [node for node in places if node is not None and dotted(node) == name]
    return bool(name) and len(read) == len(reads) and names_assigned(body)[name] == 1
