"""What one version changed over another, as text for the ledger: Tile IR and machine code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tilewright.errors import RequestError
from tilewright.hardware.architectures import Board
from tilewright.inspect.compare import Side, compare_tile_ir
from tilewright.optimize.attempting import Variant
from tilewright.records import MachineCode, Workload
from tilewright.tileir.analysis.comparing import Comparison

MOST_OPERATIONS = 12
"""Kinds of operations that are named, those that changed most in number first."""


def what_changed(before: Variant, after: Variant, workload: Workload, board: Board) -> str:
    """Tile IR and machine code of one workload, before and after, a fact a line."""
    a, b = (Side(one.version.name, one.task, one.task.space.shipped, workload) for one in (before, after))
    try:
        comparison, grids = compare_tile_ir(a, b, board)
    except RequestError as error:
        return f"Tile IR not compared: {error}"
    lines = [f"workload {workload}, {board.arch}"]
    if grids[0] != grids[1]:
        lines.append(f"grid: {grids[0]} → {grids[1]}")
    lines += _tile_ir(comparison)
    lines += _machine_code(before.codes[workload.name], after.codes[workload.name])
    return "\n".join(lines)


def _tile_ir(comparison: Comparison) -> Iterator[str]:
    if comparison.identical:
        yield "Tile IR: identical"
        return
    yield f"Tile IR: {comparison.operations_before} → {comparison.operations_after} operations"
    changes: Counter[str] = Counter()
    for line in comparison.lines:
        for one in line.operations:
            changes[one.operation] += one.after - one.before
    named = sorted((item for item in changes.items() if item[1]), key=lambda item: -abs(item[1]))
    if named:
        yield "Tile IR: " + ", ".join(f"{name} {number:+d}" for name, number in named[:MOST_OPERATIONS])
    for hint in comparison.hints:
        yield f"hint {hint.trait}: {hint.before} → {hint.after}"


def _machine_code(a: MachineCode, b: MachineCode) -> Iterator[str]:
    if a.code_hash == b.code_hash:
        yield "machine code: identical"
        return
    for name in ("registers", "stack_bytes", "shared_bytes", "threads", "cluster", "local_loads", "local_stores",
                 "tensor_path", "tensor_instructions", "instructions"):  # fmt: skip
        before, after = getattr(a, name), getattr(b, name)
        if before != after:
            yield f"{name.replace('_', ' ')}: {before} → {after}"
    for kind in dict.fromkeys((*a.copies, *b.copies)):
        if a.copies.get(kind, 0) != b.copies.get(kind, 0):
            yield f"{kind}: {a.copies.get(kind, 0)} → {b.copies.get(kind, 0)}"
