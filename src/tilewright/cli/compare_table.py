"""The output of `tilewright compare`: the changes in Tile IR by source line, and in machine code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tilewright.cli.terminal_table import NOTHING, Column, Indented, TerminalTable, first
from tilewright.inspect.compare import VersionComparison
from tilewright.records import Failed, MachineCode
from tilewright.tileir.analysis.comparing import AccessChange, LineChange, OperationChange, Place, TraitChange, named

NUMBERS = (
    "registers", "stack_bytes", "shared_bytes", "local_loads", "local_stores", "tensor_path",
    "tensor_instructions", "threads", "cluster", "instructions",
)  # fmt: skip


def compared(result: VersionComparison, show_all: bool = False) -> RenderableType:
    """Returns the names of both versions, and the differences between them."""
    heading = [
        *(
            Text.assemble((f"{name} ", "bold"), f"{version}, grid {'x'.join(map(str, grid))}")
            for name, version, grid in zip("AB", (result.before, result.after), result.grids, strict=True)
        ),
        Text(f"on {result.board.arch} ({result.board.name}); code is compared, nothing is timed"),
    ]
    if result.identical:
        what = (
            "the same machine code"
            if isinstance(result.tile_ir, Failed)
            else "the same Tile IR and the same machine code"
        )
        return Group(*heading, Text(f"identical: {what}"))
    return Group(*heading, Text(), *_tile_ir(result, show_all), Text(), *_machine_code(result))


# Tile IR ----------------------------------------------------------------------------------------------


def _tile_ir(result: VersionComparison, show_all: bool) -> Iterator[RenderableType]:
    tile_ir = result.tile_ir
    if isinstance(tile_ir, Failed):
        yield Text(f"Tile IR is not compared: {tile_ir.reason}", style="yellow")
        return
    if tile_ir.identical:
        yield Text("Tile IR: identical")
        return
    yield Text(f"Tile IR: {tile_ir.operations_before} → {tile_ir.operations_after} operations", style="bold")
    if tile_ir.hints:
        yield Text("hints of the kernel: " + _traits(tile_ir.hints))
    if tile_ir.lines:
        yield _lines(first(tile_ir.lines, show_all))
        yield from _more(tile_ir.lines, "lines", show_all)
    yield from _listed("Memory accesses", [_access(access) for access in tile_ir.accesses], show_all)
    yield from _listed("Token chains", [str(chain) for chain in tile_ir.chains], show_all)
    if tile_ir.reordered is not None:
        yield Text(f"the operations are the same; from {tile_ir.reordered} on, their order or their operands differ")


def _listed(title: str, lines: Sequence[str], show_all: bool) -> Iterator[RenderableType]:
    if lines:
        yield Text(title, style="bold")
        yield from (Indented(Text(line), 2) for line in first(lines, show_all))
        yield from _more(lines, title.lower(), show_all)


def _more(rows: Sequence[object], what: str, show_all: bool) -> list[Text]:
    left = len(rows) - len(first(rows, show_all))
    return [Text(f"{left} more {what}; --all shows them", style="dim")] if left else []


def _lines(lines: Sequence[LineChange]) -> TerminalTable:
    """Returns a table with the source lines that changed, and under each line its changed operations."""
    table = TerminalTable(Column("A", always=True), Column("B", always=True), Column("source", always=True))
    for line in lines:
        source = line.source_after or line.source_before
        if line.source_before and line.source_after and line.source_before != line.source_after:
            source = f"{line.source_before}\n{line.source_after}"
        table.add((_number(line.before), _number(line.after), source), *_operations(line.operations))
    return table


def _number(place: Place | None) -> Text:
    if place is None or not place.line:
        return Text(NOTHING)
    return Text(f"{place.line}" + (f" › {place.helper_line}" if place.helper_line is not None else ""))


def _operations(changes: Sequence[OperationChange]) -> list[Text]:
    """Describes removed and added operations. If only type or attributes changed, one line describes both."""
    removed = [change for change in changes if change.after < change.before]
    added = [change for change in changes if change.after > change.before]
    lines = []
    for change in removed:
        other = next((o for o in added if o.operation == change.operation and _gain(o) == -_gain(change)), None)
        if other is not None:
            added.remove(other)
            count = f"{_gain(other)} " if _gain(other) > 1 else ""
            lines.append(Text(f"{count}{_described(change)} → {_described(other, brief=True)}", "yellow"))
        else:
            lines.append(Text(f"−{-_gain(change)} {_described(change)}", "red"))
    return lines + [Text(f"+{_gain(change)} {_described(change)}", "green") for change in added]


def _gain(change: OperationChange) -> int:
    return change.after - change.before


def _described(change: OperationChange, brief: bool = False) -> str:
    parts = (change.type, change.details) if brief else (change.operation, change.type, change.details)
    return " ".join(part for part in parts if part)


def _access(change: AccessChange) -> str:
    before, after = change.before, change.after
    if before is not None and after is not None:
        at = f" ({before.place} before)" if before.place != after.place else ""
        return f"{named(after)}{at}: {_traits(change.changed)}"
    only = after or before
    assert only is not None
    how = ", ".join(f"{name} {_value(value)}" for name, value in only.traits.items() if value is not None)
    waits = f"; waits for {', '.join(map(str, only.waits_for))}" if only.waits_for else ""
    return f"{'added' if after else 'removed'}: {named(only)} ({how}){waits}"


def _traits(changes: Iterable[TraitChange]) -> str:
    return "; ".join(f"{change.trait} {_value(change.before)} → {_value(change.after)}" for change in changes)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


# Machine code -----------------------------------------------------------------------------------------


def _machine_code(result: VersionComparison) -> Iterator[RenderableType]:
    a, b = result.code_before, result.code_after
    for name, code in (("A", a), ("B", b)):
        if isinstance(code, Failed):
            yield Text(f"no machine code of {name}: {code.stage}: {code.reason}", style="red")
    if result.same_code:
        yield Text("identical machine code")
    elif isinstance(a, MachineCode) and isinstance(b, MachineCode):
        yield Text("Machine code", style="bold")
        yield _code_table(a, b)
        if unread := a.unread or b.unread:
            yield Text(f"instructions are left out: {unread}", style="yellow")


def _code_table(a: MachineCode, b: MachineCode) -> TerminalTable:
    """Returns a table of `NUMBERS`, and of the copies and instruction classes whose counts differ."""
    table = TerminalTable("", Column("A", always=True), Column("B", always=True), "change")
    for name in NUMBERS:
        table.add((name, *_cells(a.known[name], b.known[name])))
    for title, before, after in (("copies", a.copies, b.copies), ("instructions", a.mix, b.mix)):
        for name in dict.fromkeys([*before, *after]):
            if before.get(name) != after.get(name):
                table.add((f"{title}: {name}", *_cells(before.get(name, 0), after.get(name, 0))))
    return table


def _cells(before: int | str | None, after: int | str | None) -> list[Text]:
    change = "changed" if before != after and None not in (before, after) else ""
    if change and isinstance(before, int) and isinstance(after, int):
        change = f"{after - before:+d}"
    return [*(Text(NOTHING if value is None else str(value)) for value in (before, after)), Text(change)]
