"""Turns pointer loads and stores of a Triton kernel into loads and stores of a tensor descriptor.

``tl.load(x + rows[:, None] * stride + columns[None, :], mask=…, other=0)`` reads a block of a matrix. With a descriptor
the compiler knows this, and copies the block by TMA instead of computing an address for each element. The descriptor
gets the kernel's own strides. The last one must be 1, and Triton compiles the descriptor only if the launch passes 1.
If the first of two strides is 1 instead, the descriptor describes the transposed matrix: ``x_desc.load([…]).T``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import libcst as cst

from tilewright.playbook.analyses import task_code
from tilewright.playbook.analyses.dataflow import names_read, parameters
from tilewright.playbook.analyses.index_forms import Scalar
from tilewright.playbook.analyses.triton_addresses import Statement, Walk
from tilewright.playbook.analyses.triton_blocks import Block, block_of, turned
from tilewright.playbook.analyses.triton_code import LANGUAGE, jit_functions, spelled, without_dead_names
from tilewright.playbook.analyses.triton_forms import Form, Names, plain
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.playbook.rewriting import preceded
from tilewright.records import Value
from tilewright.source.syntax import SPACED, Function, Replacement, Source, argument
from tilewright.task.tensors import ITEM_BYTES, ArraySpec

ALIGNMENT = 16
"""The strides of a descriptor must be multiples of this many bytes."""
TURNED = ".T"
"""The suffix of a tensor's name in a value, if its descriptor describes the transposed matrix."""


class Descriptors(Entry):
    about = EntryDescription(
        id="descriptors",
        name="tensor descriptors",
        what="pointer loads and stores of blocks as loads and stores of a tl.make_tensor_descriptor, by TMA",
        when="the kernel loads blocks of a matrix through pointers; most of all on the Tile IR route",
        when_not="strides are no multiples of 16 bytes, or masks and paddings are no bounds of a tensor",
        priority={"memory": 1, "balanced": 1, "compute": 1},
        eases=("access path", "bytes in flight"),
        order=250,
        language=LANGUAGE,
        effect=Effect(0.9, 17.0, "matmul 4096³ bfloat16 on an H200, Tile IR route: 3,457.8 → 200.7 µs", "2026-11-22"),
        together=("tile_ir_route",),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        function = jit_functions(source).get(facts.kernel)
        if function is None:
            return []
        blocks = descriptors_in(source, facts.kernel)[0]
        fitting = {(block.access.kind, name) for block in blocks if (name := _fitting(function, facts, block))}
        fitting -= {(kind, name + TURNED) for kind, _ in fitting for _, name in fitting}  # one descriptor for a tensor
        kinds = (("load", "store"), ("load",), ("store",))
        named = [sorted({name for kind, name in fitting if kind in wanted}) for wanted in kinds]
        choices = [", ".join(names) for names in named if names]
        values = tuple(dict.fromkeys(choices))
        why = f"in all shapes the last stride is 1 and the others are multiples of {ALIGNMENT} bytes"
        return [Site.at(source, function, "pointer loads and stores", values, why=why)] if values else []

    def apply(self, source: Source, site: Site, value: Value) -> str:
        site.function_here(source)
        names = set(str(value).split(", "))
        blocks, reasons = descriptors_in(source, site.kernel)
        both = [*blocks, *map(turned, blocks)]
        wanted = [block for block in both if _name(block) in names]
        if missing := names - set(map(_name, wanted)):
            raise site.refused(source, "; ".join([f"no block of {min(missing)} can be replaced", *reasons]))
        return _with_descriptors(source, site.kernel, wanted).text

    def findings(self, source: Source, facts: KernelFacts) -> list[str]:
        function = jit_functions(source).get(facts.kernel)
        if function is None:
            return []
        blocks, reasons = descriptors_in(source, facts.kernel)
        misfits = [
            f"{facts.kernel} line {source.place(block.access.call)[0]}: {_misfit(function, facts, block)}"
            for block in blocks
            if not _fitting(function, facts, block)
        ]
        return [f"{source.name}: no tensor descriptor: {reason}" for reason in dict.fromkeys([*reasons, *misfits])]


def descriptors_in(source: Source, kernel: str) -> tuple[list[Block], list[str]]:
    """Returns the loads and stores that can go through descriptors, and the reasons why others cannot."""
    walk = Walk(source, jit_functions(source)[kernel])
    blocks, reasons = list[Block](), list[str]()
    for access in walk.accesses:
        if isinstance(access.pointer, Form) and not access.pointer.axes:
            continue  # a single element
        try:
            block = block_of(walk, access)
            _place(walk, block)
            blocks.append(block)
        except NotApplicable as reason:
            reasons.append(f"{kernel} line {source.place(access.call)[0]}: {reason}")
    return blocks, reasons


def _name(block: Block) -> str:
    return block.pointer + (TURNED if block.turned else "")


def _fitting(function: Function, facts: KernelFacts, block: Block) -> str:
    """Returns the name of the block's tensor if a descriptor can take it, as it is or transposed; "" if not."""
    forms = (block, turned(block)) if len(block.sizes) == 2 else (block,)
    return next((_name(form) for form in forms if not _misfit(function, facts, form)), "")


def _misfit(function: Function, facts: KernelFacts, block: Block) -> str:
    """Returns why a descriptor cannot take the launch's arguments for some shape; "" if it fits all shapes."""
    names = parameters(function)
    rest = block.base + -Scalar({(block.pointer,): 1})
    for launch in task_code.served_launches(facts):
        given = {**facts.task.space.shipped, **dict(zip(names, launch.args, strict=False))}
        array = given.get(block.pointer)
        if not isinstance(array, ArraySpec):
            return f"the launch passes no array as {block.pointer}"
        *strides, last = (_number(stride, given) for stride in block.strides)
        if last != 1:
            return f"the last stride of {block.pointer} is {last}, not 1"
        apart = [
            math.prod((factor, *(_known(name, given) or 1 for name in term))) for term, factor in rest.terms.items()
        ]
        for stride in (*strides, *apart):
            if stride is None or stride * ITEM_BYTES[array.dtype] % ALIGNMENT:
                return (
                    f"rows of {block.pointer} may be {stride} elements apart, not a multiple of {ALIGNMENT} bytes; if "
                    "no such shape is launched, say so with serves= of the task"
                )
    return ""


def _number(value: Scalar, given: Mapping[str, object]) -> int | None:
    """Returns the value of a stride in one launch. Returns None if the stride depends on anything but integer arguments
    of the launch."""
    total = 0
    for term, factor in value.terms.items():
        known = [_known(name, given) for name in term]
        if None in known:
            return None
        total += factor * math.prod(each for each in known if each is not None)
    return total


def _known(name: str, given: Mapping[str, object]) -> int | None:
    value = given.get(name)
    return value if isinstance(value, int) else None


def _place(walk: Walk, block: Block) -> tuple[Statement, str]:
    """Returns the statement before which the block's descriptor can be made, and the text of its base. Of several such
    statements, it is the outermost."""
    source, own = walk.source, block.access.path[-1]
    texts = [value.text for value in (*block.shape, *block.strides, *block.sizes)]
    for statement in block.access.path:
        names = walk.before[statement]
        base = _text(names, block.base)
        written = all(walk.before[own].holds(offset.text) for offset in block.offsets)
        if base and written and all(map(names.holds, texts)):
            return statement, base
    raise NotApplicable(f"{source.code(block.access.call)}: names of its address change before the access")


def _text(names: Names, value: Scalar) -> str:
    """Formats a value as an expression that is valid at a place: the name that holds it, if there is one. Returns "" if
    the place cannot refer to the value."""
    for name, known in names.values.items():
        if isinstance(known, Form) and not known.axes and known.start == value:
            return name
    return plain(value.text) if names.holds(value.text) else ""


def _with_descriptors(source: Source, kernel: str, blocks: Sequence[Block]) -> Source:
    """Returns the source in which descriptors load and store the blocks. Equal blocks share one descriptor."""
    walk = Walk(source, source.functions[kernel])
    made: dict[str, str] = {}  # the name of each descriptor, by its arguments with numbered names
    changes: dict[cst.CSTNode, Replacement | Callable[[cst.CSTNode], Replacement]] = {}
    before: dict[Statement, list[cst.BaseStatement | cst.SimpleStatementLine]] = {}
    taken, read = {name.value for name in source.every(cst.Name)}, set[str]()
    for block in blocks:
        call = block.access.call
        statement, base = _place(walk, block)
        shape, strides, sizes = (
            ", ".join(plain(value.text) for value in values) for values in (block.shape, block.strides, block.sizes)
        )
        made_by = f"{spelled(source, call, 'make_tensor_descriptor')}({base}, [{shape}], [{strides}], [{sizes}])"
        key = " | ".join(value.text for value in (block.base, *block.shape, *block.strides, *block.sizes))
        if len(block.access.path) > 1 and statement is not block.access.path[0]:
            key += f" in {source.place(statement)}"  # another branch or loop may run without it
        if key not in made:
            made[key] = task_code.numbered(f"{block.pointer.removesuffix('_ptr')}_desc", {*taken, *made.values()})
            before.setdefault(statement, []).append(cst.parse_statement(f"{made[key]} = {made_by}"))
        int32 = spelled(source, call, "int32")
        offsets = ", ".join(_offset(walk, offset, int32) for offset in block.offsets)
        text = f"{made[key]}.{block.access.kind}([{offsets}])"
        changes[call] = partial(_through, text, spelled(source, call, "trans") if block.turned else "")
        value = argument(call, "value", 1) if block.access.kind == "store" else None
        read |= names_read(call) - (set() if value is None else names_read(value))
    for statement, lines in before.items():
        changes[statement] = partial(preceded, lines)
    return without_dead_names(source.changed(changes), kernel, read)


def _through(text: str, trans: str, call: cst.CSTNode) -> cst.BaseExpression:
    """Returns the load or store ``text``. A store gets the value that ``call`` stores. ``trans``: the function that
    transposes a block; "" if the block is not transposed."""
    new = cst.parse_expression(text)
    assert isinstance(new, cst.Call) and isinstance(call, cst.Call)
    value = argument(call, "value", 1)
    if value is None or not text.partition("(")[0].endswith(".store"):
        return cst.Attribute(new, cst.Name("T")) if trans else new
    given = cst.Call(cst.parse_expression(trans), [cst.Arg(value)]) if trans else value
    return new.with_changes(args=[new.args[0].with_changes(comma=SPACED), cst.Arg(given)])


def _offset(walk: Walk, offset: Scalar, int32: str) -> str:
    """Formats an offset of a block, which must have the type ``int32``."""
    if not any(text in walk.wide for term in offset.terms for text in term):
        return plain(offset.text)
    return f"({plain(offset.text)}).to({int32})"


ENTRY = Descriptors()
