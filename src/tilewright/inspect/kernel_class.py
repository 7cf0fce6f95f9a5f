"""Finds the class of a Triton kernel from its Tile IR, and the hints to try for this class.

The classes and their hints come from NVIDIA's instructions for optimizing Triton kernels on Tile IR. ``num_warps`` has
no effect in Tile IR, so ``num_worker_warps`` is used instead.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.hardware.architectures import Board
from tilewright.records import Configuration, Failed, Value, Workload
from tilewright.task.task import Task
from tilewright.tileir.run.launching import Launcher

PRODUCTS = {"mmaf", "mmaf_scaled", "mmai"}
REDUCTIONS = {"reduce", "scan"}


@dataclass(frozen=True)
class KernelClass:
    """A class of kernels. ``fewest`` and ``most``: limits for the number of configurations of hints to try."""

    name: str
    about: str
    hints: Mapping[str, tuple[Value, ...]]
    fewest: int
    most: int

    @property
    def configurations(self) -> tuple[dict[str, Value], ...]:
        """The configurations to try: all combinations of the hints' values."""
        return tuple(dict(zip(self.hints, values, strict=True)) for values in itertools.product(*self.hints.values()))


CLASSES = {
    each.name: each
    for each in (
        KernelClass("dot", "a product of matrices: loads by tensor descriptors, clusters of two CTAs, large tiles",
                    {"occupancy": (1, 2, 4), "num_ctas": (2, 1), "num_stages": (4, 6)}, 8, 12),
        KernelClass("norm", "a reduction whose result is used on each element",
                    {"occupancy": (2, 4), "num_worker_warps": (None, 4, 8)}, 6, 10),
        KernelClass("elementwise", "neither product nor reduction",
                    {"occupancy": (1, 2, 4, 16), "num_stages": (2, 3, 4)}, 10, 15),
        KernelClass("reduction", "a reduction whose result is smaller than its input",
                    {"occupancy": (2, 4), "num_worker_warps": (None, 4, 8)}, 6, 10),
    )
}  # fmt: skip


def class_of(task: Task, workload: Workload, board: Board) -> KernelClass | None:
    """Returns the class of the shipped configuration's kernel. Returns None if the kernel cannot be translated to Tile
    IR."""
    operations = entry_operations(task, workload, board)
    if operations is None:
        return None
    arrays, names = task.arrays(workload.dims), operations.keys()
    if names & PRODUCTS:
        return CLASSES["dot"]
    if not names & REDUCTIONS:
        return CLASSES["elementwise"]
    elements = {name: array.nbytes for name, array in arrays.items()}
    largest = max(elements[name] for name in task.inputs)
    return CLASSES["norm" if 2 * max(elements[name] for name in task.outputs) >= largest else "reduction"]


def entry_operations(task: Task, workload: Workload, board: Board) -> Counter[str] | None:
    """Counts the operations in the Tile IR of the shipped configuration, by name; None if there is no Tile IR."""
    runnable = Launcher(task, board).runnable(task.space.shipped, workload.dims, task.arrays(workload.dims))
    if isinstance(runnable, Failed):
        return None
    return Counter(op.name for op in runnable.module.entry().walk())


def classification(language: str, task: Task, workload: Workload, board: Board) -> dict[str, Value]:
    """Returns the ledger's entry: the kernel's class, the hints to try for this class, and the shipped configuration.

    The entry is empty for a kernel that is not written in Triton.
    """
    if language != "triton":
        return {}
    found = class_of(task, workload, board)
    if found is None:
        return {"class": None, "shipped": str(task.space.shipped)}
    return {
        "class": found.name, "about": found.about, "configurations": len(found.configurations),
        "fewest": found.fewest, "most": found.most,
        "hints": "; ".join(f"{name} {', '.join(map(_text, values))}" for name, values in found.hints.items()),
        "shipped": str(task.space.shipped),
    }  # fmt: skip


def _text(value: Value) -> str:
    return str(Configuration.of({"": value})).removeprefix("=")
