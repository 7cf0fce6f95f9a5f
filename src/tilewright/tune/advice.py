"""What is known about tuning a kernel of this kind: its kind, which knobs matter, and what its space leaves out.

The kind is read from the Tile IR of the shipped configuration, so a kernel that has none (CuTe DSL) has no kind.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.hardware.boards import Board
from tilewright.inspect.kernel_class import PRODUCTS, REDUCTIONS, entry_operations
from tilewright.records import Json, Workload
from tilewright.space import knobs
from tilewright.space.kinds import KINDS, Advice, advise
from tilewright.space.space import Space
from tilewright.space.templates import knob_names
from tilewright.task.task import Task
from tilewright.task.tensors import ITEM_BYTES

WITH_TILES = ("matmul", "persistent matmul", "fmha", "varlen attention", "dual gemm")
"""The kinds whose spaces need several values of each tile size and of num_ctas."""


@dataclass(frozen=True)
class TuningAdvice:
    """``kind``: a name in `KINDS`. ``reason``: which knobs are worth tuning. ``missing``: what the space leaves out."""

    kind: str
    reason: str
    missing: tuple[str, ...]

    def __str__(self) -> str:
        return f"kind of kernel: {self.kind}; {self.reason}"

    def to_json(self) -> dict[str, Json]:
        return {"kind": self.kind, "reason": self.reason, "missing": list(self.missing)}


def advice(task: Task, workload: Workload, board: Board) -> TuningAdvice | None:
    """Returns the advice for a task; None if its kind is not known."""
    kind = kind_of(task, workload, board)
    if kind is None:
        return None
    found = advise(kind)
    return TuningAdvice(kind, found.reason, tuple(missing(task.space, found, board)))


def kind_of(task: Task, workload: Workload, board: Board) -> str | None:
    """Returns the kind of the shipped configuration's kernel: a name in `space.kinds.KINDS`; None if unknown."""
    operations = entry_operations(task, workload, board)
    if operations is None:
        return None
    products = sum(operations[name] for name in PRODUCTS)
    if not products:
        if any(operations[name] for name in REDUCTIONS):
            outputs, inputs = (
                max(array.nbytes for name, array in task.arrays(workload.dims).items() if name in names)
                for names in (task.outputs, task.inputs)
            )
            return "norm" if 2 * outputs >= inputs else "cross entropy"
        return "in place" if task.in_place else "elementwise"
    if any(spec.dtype.startswith("float8") and ITEM_BYTES[spec.dtype] == 1 for spec in task.inputs.values()):
        return "fp8 matmul"
    if products > 1:
        return "fmha" if operations["exp"] or operations["exp2"] else "dual gemm"
    return "persistent matmul" if operations["get_num_tile_blocks"] else "matmul"


def missing(space: Space, found: Advice, board: Board) -> list[str]:
    """Returns a line for each core dimension of the kind of which the space has a single value."""
    if found.kind.name not in WITH_TILES or len(space.every_shipped) > 1:
        return []
    lines = []
    for axis, knob in knob_names(space).items():
        values = space.known_values(knob)
        if axis in ("M", "N", "K") and axis in found.kind.tuned and len(values) == 1:
            lines.append(f"the space has one value of {knob} ({values[0]}); give at least two")
    if knobs.cluster_problem(2, board.sm) is None:
        ctas = space.known_values("num_ctas") if "num_ctas" in space.hints else (None,)
        if len(ctas) == 1:
            lines.append(f"the space has one value of num_ctas ({knobs.spell(ctas[0])}); on {board.arch} try 1 and 2")
    return lines


assert set(WITH_TILES) <= set(KINDS)
