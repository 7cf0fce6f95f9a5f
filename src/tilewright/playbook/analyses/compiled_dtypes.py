"""Finds the dtypes of the incumbent's tiles in its Tile IR, which its text may not show.

SCALE = 1 / np.log(2)      is a number of float64, so tile * SCALE is float64, too
"""

from __future__ import annotations

from tilewright.playbook.base import KernelFacts
from tilewright.records import Failed
from tilewright.tileir.read.tree import TileType
from tilewright.tileir.run.launching import Launcher


def may_be_computed_in(facts: KernelFacts, element: str) -> bool:
    """Returns whether a tile of the incumbent has an element type, such as ``f64``, on any workload. True if that is
    not known."""
    task = facts.task
    for workload in facts.workloads:
        dims = workload.dims
        runnable = Launcher(task, facts.board).runnable(task.space.shipped, dims, task.arrays(dims))
        if isinstance(runnable, Failed):
            return True
        types = (each for op in runnable.module.entry().walk() for each in op.result_types)
        if any(isinstance(each, TileType) and each.element == element for each in types):
            return True
    return False
