"""The examiners of several workloads side by side, as far as memory allows.

The optimisation loop visits every workload in every iteration. Drawing inputs and computing the float64 references
again each time would cost more than the timing. The examiner that was asked for longest ago is dropped first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch

from tilewright.task.task import Task
from tilewright.task.tensors import Dims, Output
from tilewright.verify.images import POISONS
from tilewright.worker.process.examiner import DeviceExaminer

SHARE = 0.5
"""Of the memory that is free, or taken by examiners: the rest is for what launches and compares."""
COPIES_OF_OUTPUTS = 4
"""Whole outputs that an examiner may hold beside the buffers: of the trusted implementation, or the first correct
candidate's, for two draws; and as much while they are made."""


class Prepared:
    """``free``: bytes that could be allocated now. By default those of the device; a CPU is not counted."""

    def __init__(self, task: Task, device: str, free: Callable[[], int] | None = None) -> None:
        self.task, self.device = task, device
        self._free = free or (free_on_gpu if device == "cuda" else lambda: 1 << 62)
        self._held: OrderedDict[tuple[str, int], DeviceExaminer] = OrderedDict()
        self._passing: int | None = None

    def get(self, workload: str, seed: int, *, passing: bool = False) -> tuple[DeviceExaminer, bool]:
        """The examiner, and whether it was made just now.

        passing: a seed that will not come back, as that of a confirmation; its examiners go when the next such
        seed comes, and have one draw of inputs: what is confirmed went through two before.
        """
        if passing and seed != self._passing:
            for key in [key for key in self._held if key[1] == self._passing]:
                del self._held[key]
            self._passing = seed
        if (workload, seed) in self._held:
            self._held.move_to_end((workload, seed))
            return self._held[workload, seed], False
        dims = self.task.workload(workload).dims
        self._make_room(bytes_needed(self.task, dims))
        draws = 1 if passing else len(POISONS)
        try:
            made = DeviceExaminer(self.task, dims, self.device, seed, draws)
        except torch.cuda.OutOfMemoryError:
            self._held.clear()
            torch.cuda.empty_cache()
            made = DeviceExaminer(self.task, dims, self.device, seed, draws)
        self._held[workload, seed] = made
        return made, True

    def _make_room(self, needed: int) -> None:
        held = sum(bytes_needed(self.task, examiner.dims) for examiner in self._held.values())
        room = SHARE * (self._free() + held)
        while self._held and held + needed > room:
            _, gone = self._held.popitem(last=False)
            held -= bytes_needed(self.task, gone.dims)


def bytes_needed(task: Task, dims: Dims) -> int:
    """Device memory of an examiner, without the guard zones."""
    return sum(
        array.nbytes * (1 + COPIES_OF_OUTPUTS * isinstance(task.tensors[name], Output))
        for name, array in task.arrays(dims).items()
    )


def free_on_gpu() -> int:
    """What the driver has, and what torch keeps for itself without using it."""
    free, _ = torch.cuda.mem_get_info()
    return int(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())
