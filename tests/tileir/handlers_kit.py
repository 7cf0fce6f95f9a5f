"""Operations and a context for tests of single handlers, without an interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from tilewright.tileir.read.tree import Op, PointerType, Region, TileType
from tilewright.tileir.run import arithmetic, integers, tiles  # noqa: F401  (register operations)
from tilewright.tileir.run.registry import IN_CONTEXT, PURE, Array


def tile(element: str | PointerType, *shape: int) -> TileType:
    return TileType(shape, element)


def operation(
    name: str, result: Any = None, types: dict[str, Any] | None = None, *regions: Region, **attributes: Any
) -> Op:
    """``types``: the operand's type by its name, or a list for a variadic one."""
    kinds = {key: tuple(one) if isinstance(one, list) else (one,) for key, one in (types or {}).items()}
    names = {key: tuple(f"%{key}{i}" for i in range(len(value))) for key, value in kinds.items()}
    results = () if result is None else tuple(result) if isinstance(result, list) else (result,)
    return Op(name, tuple(f"%r{i}" for i in range(len(results))), results, names, kinds, attributes, regions)


class FakeContext:
    def __init__(self, lanes: int = 1, grid: tuple[int, int, int] = (1, 1, 1), dry: bool = False) -> None:
        self.blocks = np.arange(lanes, dtype=np.int64)
        self.grid, self.lanes, self.dry, self.poison = grid, lanes, dry, 0xFF
        self.findings: list[tuple[str, str, int | None]] = []
        self.prints: list[tuple[str, int]] = []
        self.regions = 0
        self.world = SimpleNamespace(strides={}, checks_assumptions=True)

    def finding(self, op: Op, kind: str, message: str, lane: int | None = None, element: Any = None) -> None:
        self.findings.append((kind, message, lane))

    def print(self, op: Op, text: str, lane: int = 0) -> None:
        self.prints.append((text, lane))

    def run_region(self, region: Region, arguments: Sequence[Array]) -> tuple[Array, ...]:
        self.regions += 1
        values = dict(zip((name for name, _ in region.arguments), arguments, strict=True))
        for op in region.body[:-1]:
            given = {key: values[names[0]] for key, names in op.operands.items()}
            values[op.results[0]] = PURE[op.name](op, **given)
        return tuple(values[name] for name in region.body[-1].operands["operands"])


def run(op: Op, context: FakeContext | None = None, **values: Any) -> Any:
    if op.name in PURE:
        return PURE[op.name](op, **values)
    return IN_CONTEXT[op.name](context or FakeContext(), op, **values)


def body(
    element: str, *steps: tuple[str, str, tuple[tuple[str, str], ...], dict[str, Any]], ends: str = "%r"
) -> Region:
    """A region of two scalars ``%a`` (combined so far) and ``%b``; a step is result, operation, operands and
    attributes."""
    scalar = tile(element)
    ops = tuple(
        Op(name, (result,), (scalar,), {k: (v,) for k, v in given}, {k: (scalar,) for k, _ in given}, attributes)
        for result, name, given, attributes in steps
    )
    end = Op("yield", (), (), {"operands": (ends,)}, {"operands": (scalar,)})
    return Region((("%a", scalar), ("%b", scalar)), (*ops, end))


BINARY = (("lhs", "%a"), ("rhs", "%b"))
