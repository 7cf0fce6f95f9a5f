"""Changes how many blocks of a persistent kernel start: another number for each SM, or one for each item.

    grid = (4 * SMs,)      →      grid = (config.BLOCKS_PER_SM * SMs,)      or      grid = (M,)

Fewer blocks touch less memory at the same time. If a kernel reads its item several times, such as a long row in three
passes, and the items under way fit into the L2 cache, only the first pass reads from memory. More blocks hide more
latency. With a block for each item, the hardware gives an SM its next item as soon as it has room, and a block of a
slow SM holds up nothing. The change is possible only if each block works through items whose step is the number of
blocks, and keeps nothing from one item to the next. Then every grid computes the same.
"""

from __future__ import annotations

import libcst as cst

from tilewright.playbook.analyses import dataflow, task_code, unchanged
from tilewright.playbook.analyses.best_predicted import allowed
from tilewright.playbook.analyses.block_loop import block_ids, blocks_per_sm, grid_extents
from tilewright.playbook.analyses.configuration_sites import current, read_changes, written_in_space
from tilewright.playbook.analyses.launch_expressions import in_launch
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
from tilewright.source.syntax import Function, Source, argument, dotted, elements, number

BLOCKS_PER_SM = (1, 2, 4, 8, 16)
EACH_ITEM = "one block an item"
ONE_ITEM, BEYOND = "ONE_ITEM", "1 << 30"
"""The constant that says so to the kernel, and a step that leads beyond the last item."""
MORE_WARPS = "num_worker_warps=8"
"""Fewer blocks are tried with more warps, too: alone, they have fewer loads under way."""
RESIDENT = ("", "occupancy=4", "occupancy=8", "occupancy=8,num_worker_warps=4")
"""The hints that a block for each item is tried with: a short block hides latency only beside others on its SM."""
BESIDE_OTHERS = {"num_ctas": 1, "num_worker_warps": 4}
"""The hints of a block with fewer rows than now, where the incumbent has more: they were chosen for the larger tile."""


class PersistentGrid(Entry):
    about = EntryDescription(
        id="persistent_grid",
        name="grid of a persistent kernel",
        what="starts SMs × BLOCKS_PER_SM blocks, or one for each item, instead of the number that the launch has",
        when="a persistent kernel whose items under way do not fit into the L2, or whose blocks are too few",
        when_not="a grid that the task's space already varies; blocks that keep something for the next item",
        priority={"memory": 2, "balanced": 3, "compute": 5},
        eases=("traffic", "bytes in flight", "residency", "last wave"),
        order=31,
        effect=Effect(
            1.0, 1.6, "with one block an item: softmax 85.6 → 71.3 µs, RMS norm of 2048 columns 117.7 → 72.9 µs, H200",
            "2026-11-30",
        ),
        together=HINTS_OF_TILES,
    )  # fmt: skip

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        kernel = task_code.own_kernel(facts, source)
        axes = unless_refused(_checked, source, kernel) if kernel else None
        if axes is None:
            return []
        sms = facts.board.sms
        blocks = {launch.grid[0] for launch in facts.launches}
        values = [str(each) for each in BLOCKS_PER_SM if blocks != {each * sms}]
        values += [f"{each},{MORE_WARPS}" for each in BLOCKS_PER_SM if each * sms < min(blocks)]
        if unless_refused(_with_each_item, source, kernel, axes) is not None:
            each_item = [*RESIDENT, *_with_fewer_rows(source, kernel, facts)]
            values = [f"{EACH_ITEM},{hints}".rstrip(",") for hints in each_item] + values
        now = " or ".join(f"{each:,}" for each in sorted(blocks))
        why = f"{now} blocks on {sms} SMs"
        return [Site.at(source, source.kernels[kernel], "blocks for each SM", tuple(values), why=why)]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        kernel = site.function_here(source).name.value
        axes = _checked(source, kernel)
        blocks, _, hints = str(value).partition(",")
        if blocks == EACH_ITEM:
            source = _with_each_item(source, kernel, axes)
        else:
            knob = task_code.fresh_name(source, "BLOCKS_PER_SM")
            source, resident = blocks_per_sm(source, kernel, knob)
            source = _with_blocks(source, resident, axes)
            source = task_code.with_knob(source, knob, sorted(BLOCKS_PER_SM), int(blocks))
        return written_in_space(source, read_changes(hints)) if hints else source.text

    def why_not(self, source: Source, facts: KernelFacts) -> str:
        kernel = task_code.own_kernel(facts, source)
        return refusal(_checked, source, kernel) if kernel else ""


def _with_fewer_rows(source: Source, kernel: str, facts: KernelFacts) -> list[str]:
    """Returns configurations with smaller items, as knobs of the task's space set them: 2 and 4 rows in place of 8. If
    the incumbent's hints do not suit them, the items of today are tried without these, too."""
    items = cst.parse_expression(in_launch(source, kernel, dataflow.range_of(_loop(source, kernel))[1]))
    read = {dotted(node) for node in source.every(cst.Attribute, items)}
    sizes = {name: value for name, value in current(facts).items() if isinstance(value, int)}
    hints = "".join(f",{hint}={most}" for hint, most in BESIDE_OTHERS.items() if sizes.get(hint, 0) > most)
    found = []
    for knob, listed in facts.task.space.constants.items():
        if knob in sizes and f"config.{knob}" in read:
            most = sizes[knob] if hints else sizes[knob] - 1
            smaller = sorted(value for value in listed if isinstance(value, int) and value <= most)
            fewer = [rows for rows in smaller if allowed(facts, facts.task.space.shipped.replace(**{knob: rows}))][-3:]
            found += [f"{knob}={rows},{resident}{hints}" for rows in fewer for resident in RESIDENT[1:3]]
    return found


def _with_each_item(source: Source, kernel: str, axes: int) -> Source:
    """Returns the source with a block for each item. Raises `NotApplicable` if the launch does not know the items.

    A constant of the launch tells the kernel that its loop runs once. Then the compiler makes no loop.
    """
    loop = _loop(source, kernel)
    _, end, step = dataflow.range_of(loop)
    items, name = in_launch(source, kernel, end), task_code.fresh_in(source, kernel, ONE_ITEM)
    locals_ = set(dataflow.names_assigned(task_code.launch_of(source).function.body))
    known = {*locals_, *task_code.visible_at_top(source)}
    source = source.changed({step: cst.parse_expression(f"{BEYOND} if {name} else {source.code(step)}")})
    for dimension in sorted(dataflow.names_read(cst.parse_expression(items)) - known):
        source = task_code.with_launch_parameter(source, dimension)
    source = task_code.with_kernel_argument(
        source, kernel, name, f"{items} < {BEYOND}", f"{source.spelled('Constant')}[bool]"
    )
    if not items.isidentifier() or items in locals_:  # only a dimension is at least 1 for certain
        items = f"max(1, {items})"
    return _with_blocks(source, items, axes)


def _with_blocks(source: Source, blocks: str, axes: int) -> Source:
    """Returns the source with a grid of so many blocks along the first of its axes."""
    return task_code.with_grid(source, f"({blocks}{', 1' * (axes - 1)}{',' * (axes == 1)})")


def _checked(source: Source, kernel: str) -> int:
    """Returns the number of the grid's axes. Raises `NotApplicable` unless every grid computes the same."""
    launch = task_code.launch_of(source)
    axes = elements(launch.grid)
    if not axes or any(number(axis) != 1 for axis in axes[1:]):
        raise NotApplicable("the grid is not written as one number of blocks")
    varied = {"config"}
    if isinstance(launch.function, cst.FunctionDef):
        varied = dataflow.dependent(source, launch.function, varied)
    if varied & dataflow.names_read(axes[0]):
        raise NotApplicable("the task's space already varies the grid")
    loop = _loop(source, kernel)
    _refuse_kept(source.functions[kernel], loop)
    _refuse_shared(source, source.functions[kernel], loop)
    return len(axes)


def _refuse_kept(function: Function, loop: cst.For) -> None:
    """Raises `NotApplicable` if a name has a value of one item in the next item, or after the last one."""
    assert isinstance(function.body, cst.IndentedBlock), "it contains the loop"
    statements = list(function.body.body)
    place = statements.index(loop)
    before, after = (cst.IndentedBlock(part) for part in (statements[:place], statements[place + 1 :]))
    outside = {*dataflow.parameters(function), *dataflow.names_assigned(before), *dataflow.names_read(after)}
    if kept := sorted(outside & set(dataflow.names_assigned(loop))):
        name = function.name.value
        raise NotApplicable(f"{kept[0]} of {name} is kept from one item to the next, or is read after the last one")


def _refuse_shared(source: Source, function: Function, loop: cst.For) -> None:
    """Raises `NotApplicable` if the number or the order of the items of a block may change what is in memory."""
    name, effects = function.name.value, dataflow.Effects(source, function)
    for statement in function.body.body:
        if statement is not loop and not effects.is_pure(statement):
            raise NotApplicable(f"{name} does more than compute values outside of its loop, once for each block")
    kinds: tuple[type[cst.CSTNode], ...] = (cst.Return, cst.While)
    ends = [each for kind in kinds for each in source.every(kind, loop)]
    if ends or dataflow.breaks_of(source, loop):
        raise NotApplicable(f"an item of {name} may end its block's loop, or wait for another item")
    for call in source.every(cst.Call, loop):
        if effects.name_of(call).startswith("atomic") and not isinstance(source.parent(call), cst.Expr):
            raise NotApplicable(f"{name} reads the result of {source.code(call.func)}, which other items change")
        if effects.is_load(call) and not effects.is_pure(call) and not _is_own(source, effects, loop, call):
            raise NotApplicable(f"{source.name}:{source.place(call)[0]}: {name} loads what another item may store")
        if dotted(call.func) in source.functions and not _only_loads(source, effects, call):
            raise NotApplicable(f"{dotted(call.func)}, which {name} calls, stores, or loads what {name} stores")


def _only_loads(source: Source, effects: dataflow.Effects, call: cst.Call) -> bool:
    """Returns whether a function of the file stores nothing, and gets no array that its caller stores to."""
    function = source.functions[dotted(call.func)]
    given = {array for each in call.args for array in effects.arrays_behind(each.value)}
    written = given if effects.written is None else effects.written
    return dataflow.Effects(source, function).stores_nothing(function.body) and not given & written


def _is_own(source: Source, effects: dataflow.Effects, loop: cst.For, load: cst.Call) -> bool:
    """Returns whether a load is of elements that only its own item stores: the loop accesses the array at one index,
    and the number of the item is a part of it."""
    arrays, item, indices = effects.arrays_behind(_accessed(effects, load)), dotted(loop.target), set[str]()
    for call in source.every(cst.Call, loop):
        if effects.arrays_behind(_accessed(effects, call)) & arrays:
            index = argument(call, "index", 1) if effects.name_of(call) else None
            indices.add("" if index is None else source.code(index))
    parts = elements(argument(load, "index", 1)) or []
    return dataflow.names_assigned(loop)[item] == 1 == len(indices) and item in map(dotted, parts)


def _accessed(effects: dataflow.Effects, call: cst.Call) -> cst.BaseExpression:
    """Returns what a call accesses, if it accesses an array: the object of a method, or the first argument."""
    if isinstance(call.func, cst.Attribute) and not effects.name_of(call):
        return call.func.value
    return call.args[0].value if call.args else call.func


def _loop(source: Source, kernel: str) -> cst.For:
    """Returns the loop over items. Nothing else reads the block's id and the number of blocks."""
    calls = [*block_ids(source, kernel).items(), *grid_extents(source, kernel).items()]
    for loop in (each for each in source.functions[kernel].body.body if isinstance(each, cst.For)):
        match dataflow.range_of(loop), calls:
            case [first, _, step], [(start, 0), (blocks, 0)]:
                if _is_only(source, kernel, first, start) and _is_only(source, kernel, step, blocks):
                    return loop
    raise NotApplicable(f"{kernel} has no loop over items that alone reads the block's id and the number of blocks")


def _is_only(source: Source, kernel: str, node: cst.BaseExpression, call: cst.Call) -> bool:
    """Returns whether ``node`` is the ``call``, or a name that has its value and is read nowhere else."""
    if node is call:
        return True
    names = (name for name in source.every(cst.Name, source.functions[kernel]) if name.value == dotted(node))
    reads = [name for name in names if unchanged.is_read(source, name)]
    defined = dataflow.reaching(source, dotted(node), node) if len(reads) == 1 else None
    return defined is not None and defined.value is call


ENTRY = PersistentGrid()
