"""What `compare` found as tables for a person. Pure, as `tables`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tilewright.inspect.compare import Code, VersionComparison
from tilewright.records import Failed
from tilewright.tileir.analysis.comparing import AccessChange, LineChange, OperationChange, Place, TraitChange, named

NOTHING = "–"
NUMBERS = (
    "registers", "stack_bytes", "shared_bytes", "local_loads", "local_stores", "tensor_path",
    "tensor_instructions", "threads", "cluster", "instructions",
)  # fmt: skip


def compared(result: VersionComparison) -> RenderableType:
    """What changed, or one line where nothing did."""
    heading = [
        *(
            Text.assemble((f"{name} ", "bold"), f"{version}, grid {'x'.join(map(str, grid))}")
            for name, version, grid in zip("AB", (result.before, result.after), result.grids, strict=True)
        ),
        Text(f"on {result.board.arch} ({result.board.name}); code is compared, nothing is timed"),
    ]
    if result.identical:
        return Group(*heading, Text("identical: the same Tile IR and the same machine code"))
    return Group(*heading, Text(), *_tile_ir(result), Text(), *_machine_code(result))


# Tile IR ----------------------------------------------------------------------------------------------


def _tile_ir(result: VersionComparison) -> Iterator[RenderableType]:
    found = result.tile_ir
    if found.identical:
        yield Text("Tile IR: identical")
        return
    yield Text(f"Tile IR: {found.operations_before} → {found.operations_after} operations", style="bold")
    if found.hints:
        yield Text("hints of the kernel: " + _traits(found.hints))
    if found.lines:
        yield _lines(found.lines)
    if found.accesses:
        yield Text("Memory accesses", style="bold")
        yield from (Text(f"  {_access(one)}") for one in found.accesses)
    if found.chains:
        yield Text("Token chains", style="bold")
        yield from (Text(f"  {one}") for one in found.chains)
    if found.reordered is not None:
        yield Text(f"the same operations, from {found.reordered} on in another order or on other operands")


def _lines(lines: Sequence[LineChange]) -> Table:
    table = _table("A", "B", "source", "operations")
    for one in lines:
        source = one.source_after or one.source_before
        if one.source_before and one.source_after and one.source_before != one.source_after:
            source = f"{one.source_before}\n{one.source_after}"
        table.add_row(_number(one.before), _number(one.after), Text(source), _operations(one.operations))
    return table


def _number(place: Place | None) -> Text:
    if place is None or not place.line:
        return Text(NOTHING)
    return Text(f"{place.line}" + (f" › {place.helper_line}" if place.helper_line is not None else ""))


def _operations(changes: Sequence[OperationChange]) -> Text:
    """Removed, added, and in one line what changed nothing but its type or its attributes."""
    removed = [one for one in changes if one.after < one.before]
    added = [one for one in changes if one.after > one.before]
    text = Text()
    for one in removed:
        other = next((o for o in added if o.operation == one.operation and _gain(o) == -_gain(one)), None)
        if other is not None:
            added.remove(other)
            count = f"{_gain(other)} " if _gain(other) > 1 else ""
            text.append(f"{count}{_described(one)} → {_described(other, brief=True)}\n", "yellow")
        else:
            text.append(f"−{-_gain(one)} {_described(one)}\n", "red")
    for one in added:
        text.append(f"+{_gain(one)} {_described(one)}\n", "green")
    text.right_crop(1)
    return text


def _gain(one: OperationChange) -> int:
    return one.after - one.before


def _described(one: OperationChange, brief: bool = False) -> str:
    parts = (one.type, one.details) if brief else (one.operation, one.type, one.details)
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
    return "; ".join(f"{one.trait} {_value(one.before)} → {_value(one.after)}" for one in changes)


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
    elif isinstance(a, Code) and isinstance(b, Code):
        yield Text("Machine code", style="bold")
        yield _code_table(a, b)


def _code_table(a: Code, b: Code) -> Table:
    """The numbers always; copies and classes of instructions where they differ."""
    table = _table("", "A", "B", "change")
    for name in NUMBERS:
        table.add_row(name, *_cells(getattr(a.code, name), getattr(b.code, name)))
    for title, before, after in (
        ("copies", a.code.copies, b.code.copies),
        ("instructions", a.instruction_mix, b.instruction_mix),
    ):
        for name in _names(before, after):
            if before.get(name) != after.get(name):
                table.add_row(f"{title}: {name}", *_cells(before.get(name, 0), after.get(name, 0)))
    return table


def _names(before: Mapping[str, int], after: Mapping[str, int]) -> Iterable[str]:
    return dict.fromkeys([*before, *after])


def _cells(before: int | str, after: int | str) -> list[Text]:
    change = ""
    if isinstance(before, int) and isinstance(after, int) and before != after:
        change = f"{after - before:+d}"
    elif before != after:
        change = "changed"
    return [Text(str(before)), Text(str(after)), Text(change)]


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left", no_wrap=column in ("A", "B"))
    return table
