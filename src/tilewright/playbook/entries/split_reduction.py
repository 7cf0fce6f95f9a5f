"""Splits a long reduction over several blocks: the last block that finishes combines the partial results.

    for k in range(n):                  for k in range(part, n, SPLITS):
        total = total + x[k]      →         total = total + x[k]
    store(y, total)                     store(total_parts[item, part], total)
                                        if atomic_add(arrived[item], 1) == SPLITS - 1:
                                            total = total_parts[item, 0] + total_parts[item, 1] + …
                                            store(y, total)

A grid with fewer blocks than the GPU has SMs leaves SMs idle, however long each block works. The parts are always
combined in the same order, so the result does not depend on which block is the last. But it is another order than
before, so the change is lossy. Partial results and counters are in scratch memory that the launch makes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import libcst as cst

from tilewright.playbook.analyses import task_code
from tilewright.playbook.analyses.block_loop import block_ids, grid_extents
from tilewright.playbook.analyses.chunk_loops import LEAVING, plain_target
from tilewright.playbook.analyses.dataflow import Effects, names_assigned, names_read, range_of, reaching
from tilewright.playbook.analyses.expressions import fitting, imported, text_of
from tilewright.playbook.analyses.loop_sums import read_from_outside, sums_of
from tilewright.playbook.analyses.tile_shapes import FILLED, Shapes, tile_call, tuple_text
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
from tilewright.source.syntax import Expression, Line, Source, argument, dotted, number
from tilewright.task.tensors import ITEM_BYTES

SPLITS = (2, 4, 8, 16, 32)
BLOCKS_PER_SM = 2  # the first value to try makes about this many blocks for each SM
ALMOST_ENOUGH = 0.3  # the promise if more than half of the SMs have a block already
MOST_AXES = 3  # of a grid
_COMBINED = {"maximum": "max", "minimum": "min"}
"""Function that a loop carries a value with → the reduction of a tile that belongs to it. Sums are found otherwise."""


class SplitReduction(Entry):
    about = EntryDescription(
        id="split_reduction",
        name="reduction split over blocks",
        what="SPLITS blocks share the loop of one; the last of them to finish combines the partial results",
        when="fewer blocks than SMs, each with a long loop: sums of long rows, small products with a long K",
        when_not="enough blocks for the GPU; short loops; a kernel that reads its data again after the reduction",
        priority={"memory": 2, "balanced": 2, "compute": 3},
        eases=("too few blocks", "last wave"),
        together=HINTS_OF_TILES,
        order=195,
        effect=Effect.assumed(1.1, 4.0),
        risk="lossy",
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        kernel, sms, blocks = task_code.own_kernel(facts, source), facts.board.sms, _fewest_blocks(facts)
        found = unless_refused(_reduction, source, kernel) if kernel and blocks < sms else None
        if found is None:
            return []
        values = sorted(SPLITS, key=lambda splits: abs(math.log2(blocks * splits / (BLOCKS_PER_SM * sms))))
        what = f"reduction to {', '.join(each.name for each in found.carried)}"
        promise, why = ALMOST_ENOUGH if 2 * blocks > sms else 1.0, f"{blocks} blocks on {sms} SMs"
        site = Site.at(source, source.kernels[kernel], what, tuple(values), promise, why)
        return [site] if self.applies(source, site) else []

    def why_not(self, source: Source, facts: KernelFacts) -> str:
        kernel, blocks = facts.kernel, _fewest_blocks(facts)
        if kernel not in source.kernels:
            return ""
        if blocks >= facts.board.sms:
            return f"its {blocks} blocks are enough for {facts.board.sms} SMs"
        refused = refusal(_reduction, source, kernel) or refusal(task_code.launch_of, source)
        return refused or refusal(_split, source, kernel, SPLITS[0])

    def apply(self, source: Source, site: Site, value: Value) -> str:
        kernel = site.function_here(source).name.value
        if not isinstance(value, int) or value < 2:
            raise NotApplicable(f"{source.name}: a reduction is split among two blocks or more, not {value}")
        return _split(source, kernel, value).text


def _fewest_blocks(facts: KernelFacts) -> int:
    return min(math.prod(launch.grid) for launch in facts.launches)


@dataclass(frozen=True, eq=False)
class _Carried:
    """A value that the loop carries from one iteration to the next.

    operation: ``+``, ``maximum`` or ``minimum``. shape, dtype: of the tile that is stored for each part.
    reduced: the reduction of the tile after the loop, if nothing else reads it there; it is made before the store.
    """

    name: str
    operation: str
    shape: tuple[str, ...]
    dtype: str
    reduced: cst.Call | None


@dataclass(frozen=True, eq=False)
class _Reduction:
    """The only loop of a kernel, and the statements after it."""

    loop: cst.For
    carried: tuple[_Carried, ...]
    after: tuple[cst.BaseStatement, ...]


def _reduction(source: Source, kernel: str) -> _Reduction:
    """Finds the loop of a kernel. Raises `NotApplicable` with the reason why it cannot be split."""
    function = source.kernels[kernel]
    body = [each for each in function.body.body if isinstance(each, cst.BaseStatement)]
    loops = [each for each in body if isinstance(each, cst.For)]
    if len(loops) != 1 or not range_of(loops[0]):
        raise NotApplicable(f"{kernel} has {len(loops)} loops in its body, and exactly one over a range can be split")
    loop = loops[0]
    before, after = body[: body.index(loop)], body[body.index(loop) + 1 :]
    if any(source.every(kind, each) for each in after for kind in (cst.For, cst.While)):
        raise NotApplicable(f"{kernel} has another loop after the reduction, which only one of the blocks would run")
    if any(source.every(cst.Return, each) for each in body):
        raise NotApplicable(f"{kernel} returns early, so that its last block would wait for parts that never come")
    if any(source.every(kind, loop) for kind in LEAVING):
        raise NotApplicable(f"the loop of {kernel} may end early")
    effects = Effects(source, function)
    if not all(effects.is_pure(each) for each in (*before, loop)):
        raise NotApplicable(f"{kernel} stores before the end of its loop")
    block_ids(source, kernel)
    if grid_extents(source, kernel):
        raise NotApplicable(f"{kernel} reads the number of blocks, which the change multiplies")
    read = {name for each in after for name in names_read(each)}
    names = [name for name in names_assigned(loop.body) if name in read | read_from_outside(source, loop)]
    if not names or dotted(loop.target) in read:
        raise NotApplicable(f"the loop of {kernel} computes nothing that can be combined after it")
    shapes = Shapes(source, function)
    return _Reduction(loop, tuple(_carried(source, shapes, loop, after, name) for name in names), tuple(after))


def _carried(source: Source, shapes: Shapes, loop: cst.For, after: Sequence[cst.BaseStatement], name: str) -> _Carried:
    updates = list(_updates(source, loop, name))
    reads = [node for node in source.every(cst.Name, loop.body) if node.value == name]
    own = [node for line, _ in updates for node in source.every(cst.Name, line) if node.value == name]
    operations = {operation for _, operation in updates}
    if len(updates) != names_assigned(loop.body)[name] or len(operations) != 1 or len(reads) != len(own):
        raise NotApplicable(f"the loop does more with {name} than to add to it, or to take a maximum or minimum")
    [operation] = operations
    first = reaching(source, name, loop)
    dtype = _dtype(source, first.value if first is not None else None, operation, name)
    found = [node for each in after for node in source.every(cst.Name, each) if node.value == name]
    reduced = _reduced(source, found[0], operation) if len(found) == 1 else None
    shape = shapes.of(reduced if reduced is not None else cst.Name(name))
    if shape is None:
        raise NotApplicable(f"the shape of {name} is not known")
    return _Carried(name, operation, shape, dtype, reduced)


def _updates(source: Source, loop: cst.For, name: str) -> Iterator[tuple[Line, str]]:
    """Yields the statements that combine ``name`` with a new value, and the operation."""
    yield from ((each.statement, "+") for each in sums_of(source, loop.body) if each.name == name)
    for line in source.every(Line, loop.body):
        value = line.body[0].value if isinstance(line.body[0], cst.Assign) else None
        if plain_target(line) == name and isinstance(value, cst.Call):
            called, given = tile_call(source, value), [dotted(arg.value) for arg in value.args]
            if sum(name in names_read(arg.value) for arg in value.args) != 1:
                continue  # the other operands depend on the old value
            if called in _COMBINED and name in given and len(given) == 2:
                yield line, called
            if called == "mma" and dotted(argument(value, "acc", 2) or value) == name:
                yield line, "+"


def _dtype(source: Source, first: Expression | None, operation: str, name: str) -> str:
    """Returns the dtype of the value with which the loop begins. Raises `NotApplicable` if parts cannot begin with it,
    because it would be added several times."""
    made = tile_call(source, first) if isinstance(first, cst.Call) else ""
    if made not in FILLED or not isinstance(first, cst.Call):
        raise NotApplicable(f"{name} does not begin as ct.zeros or ct.full")
    if operation == "+" and made != "zeros" and number(argument(first, "fill_value", 1)) != 0:
        raise NotApplicable(f"{name} does not begin at 0, and would be added once for each part")
    given = argument(first, "dtype", 2 if made == "full" else 1)
    dtype = source.tile_name(dotted(given)) if given is not None else ""
    if dtype not in ITEM_BYTES:
        raise NotApplicable(f"the dtype of {name} is not written where it begins")
    return dtype


def _reduced(source: Source, node: cst.Name, operation: str) -> cst.Call | None:
    """Returns the reduction of a tile ``node`` that may as well be made for each part."""
    call = source.parent(above) if isinstance(above := source.parent(node), cst.Arg) else None
    wanted = "sum" if operation == "+" else _COMBINED[operation]
    is_reduction = isinstance(call, cst.Call) and tile_call(source, call) == wanted and call.args[0] is above
    return call if is_reduction and isinstance(call, cst.Call) else None


# The split kernel ---------------------------------------------------------------------------------------


def _split(source: Source, kernel: str, splits: int) -> Source:
    _reduction(source, kernel)  # its refusal comes before that of the grid
    grid = task_code.flat_grid(source)
    knob = task_code.fresh_name(grid.source, "SPLITS")
    source, numbers = _numbered(grid, kernel, knob)
    found = _reduction(source, kernel)
    parts = {each.name: task_code.fresh_in(source, kernel, f"{each.name}_parts") for each in found.carried}
    arrived = task_code.fresh_in(source, kernel, "arrived")
    memory = {
        parts[each.name]: (f"{grid.items}, config.{knob}, {_in_launch(source, kernel, each)}", each.dtype)
        for each in found.carried
    }
    memory[arrived] = f"{grid.items},", "int32"
    source = _with_kernel(source, kernel, found, parts, arrived, knob, numbers)
    source = task_code.with_grid(source, numbers.grid)
    called, _, _ = dotted(task_code.launch_of(source).call.func).rpartition(".")
    if not called:
        raise NotApplicable(f"{source.name}: the launch is not written as tilewright.Launch, so scratch is unknown")
    for name, (shape, dtype) in memory.items():
        source = task_code.with_kernel_argument(
            source, kernel, name, f'{called}.scratch("{name}", ({shape}), "{dtype}")'
        )
    source = task_code.with_kernel_constant(source, kernel, knob)
    return task_code.with_knob(source, knob, (1, *SPLITS), splits)


@dataclass(frozen=True)
class _Numbers:
    """How a block finds its item and its part, as text of the kernel, and the grid, as text of the launch."""

    item: str
    part: str
    grid: str


def _numbered(grid: task_code.Grid, kernel: str, knob: str) -> tuple[Source, _Numbers]:
    """The parts are a further axis of the grid. If it has all three already, its last axis numbers items and parts."""
    source, axes = grid.source, list(grid.axes)
    spelled = partial(imported, source)
    while len(axes) > 1 and axes[-1] == "1":
        axes.pop()
    ids = block_ids(source, kernel)
    if any(axis >= len(axes) for axis in ids.values()):
        raise NotApplicable(f"{kernel} reads the block's id of an axis that the grid does not have")
    last, number_of = len(axes) - 1, f"{spelled('bid')}(0)"
    if len(axes) < MOST_AXES:
        for axis in range(1, len(axes)):
            number_of = f"{number_of} * {spelled('num_blocks')}({axis}) + {spelled('bid')}({axis})"
        return source, _Numbers(number_of, f"{spelled('bid')}({last + 1})", f"({', '.join(axes)}, config.{knob})")
    old = f"{spelled('bid')}({last}) // {knob}"
    blocks = f"({spelled('num_blocks')}({last}) // {knob})"
    number_of = f"({number_of} * {spelled('num_blocks')}(1) + {spelled('bid')}(1)) * {blocks} + {old}"
    source = source.changed({call: fitting(source, call, old) for call, axis in ids.items() if axis == last})
    text = f"({', '.join(axes[:-1])}, {axes[-1]} * config.{knob})"
    return source, _Numbers(number_of, f"{spelled('bid')}({last}) % {knob}", text)


def _in_launch(source: Source, kernel: str, carried: _Carried) -> str:
    """Returns the shape of a partial result in the launch, as the text of a tuple's items."""
    found = []
    for extent in carried.shape:
        given = task_code.argument_of(source, kernel, extent)
        if given is None and not extent.isdigit():
            raise NotApplicable(f"{source.name}: the launch does not pass {extent}, the size of {carried.name}")
        found.append(extent if given is None else source.code(given))
    return ", ".join(found)


def _with_kernel(
    source: Source, kernel: str, found: _Reduction, parts: dict[str, str], arrived: str, knob: str, numbers: _Numbers
) -> Source:  # fmt: skip
    """Returns the source with the kernel's loop split, and the statements after it in the last block."""
    function, spelled = source.kernels[kernel], partial(imported, source)
    part, item, other = (task_code.fresh_in(source, kernel, name) for name in ("part", "item", "other"))
    lines = [f"{item} = {numbers.item}"]
    loads, combined = list[str](), list[str]()
    for each in found.carried:
        memory, shape = parts[each.name], ("1", "1", *each.shape)
        zeros = ", 0" * len(each.shape)
        if each.reduced is not None:
            lines.append(f"{each.name} = {source.code(each.reduced)}")
        tile = f"{spelled('reshape')}({each.name}, {tuple_text(shape)})"
        lines.append(f"{spelled('store')}({memory}, ({item}, {part}{zeros}), {tile}, allow_tma=False)")
        load = f"{spelled('load')}({memory}, ({item}, {{}}{zeros}), {tuple_text(shape)}, allow_tma=False)"
        load = f"{spelled('reshape')}({load}, {tuple_text(each.shape)})"
        loads.append(f"{each.name} = {load.format(0)}")
        new = load.format(other)
        both = f"{each.name} + {new}" if each.operation == "+" else f"{spelled(each.operation)}({each.name}, {new})"
        combined.append(f"{each.name} = {both}")
    again = cst.parse_statement(f"for {other} in range(1, {knob}):\n" + "".join(f"    {line}\n" for line in combined))
    last = cst.parse_statement(f"if {spelled('atomic_add')}({arrived}, ({item},), 1).item() == {knob} - 1:\n    pass\n")
    assert isinstance(last, cst.If)
    body = cst.IndentedBlock([*map(cst.parse_statement, loads), again, *found.after]).visit(_Named(found.carried))
    last = last.with_changes(body=body, leading_lines=[cst.EmptyLine(comment=cst.Comment("# the last part"))])
    start = cst.parse_statement(f"{part} = {numbers.part}")
    loop = found.loop.with_changes(iter=_range(source, found.loop, part, knob))
    statements = list(function.body.body)
    at = statements.index(found.loop)
    new_body = [*statements[:at], start, loop, *map(cst.parse_statement, lines), last]
    return source.changed({function.body: function.body.with_changes(body=new_body)})


def _range(source: Source, loop: cst.For, part: str, knob: str) -> Expression:
    """Returns the range of every ``knob``-th iteration, beginning with that of number ``part``."""
    bounds = range_of(loop)
    end = source.code(bounds[0] if len(bounds) == 1 else bounds[1])
    first = "" if len(bounds) == 1 or number(bounds[0]) == 0 else f"{text_of(source, bounds[0])} + "
    step = "" if len(bounds) < 3 else f" * {text_of(source, bounds[2])}"
    return cst.parse_expression(f"range({first}{part}{step}, {end}, {knob}{step})")


class _Named(cst.CSTTransformer):
    """Puts the name of a carried value in the place of its reduction, which was made before."""

    def __init__(self, carried: Sequence[_Carried]) -> None:
        super().__init__()
        self.names = {id(each.reduced): each.name for each in carried if each.reduced is not None}

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        name = self.names.get(id(original_node))
        return updated_node if name is None else cst.Name(name)


ENTRY = SplitReduction()
