"""What the tests of several entries share, beside the kit in `tilewright.testing.entries`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tilewright.hardware.architectures import Board
from tilewright.playbook.base import Site
from tilewright.records import Checked
from tilewright.task.task import Task
from tilewright.testing.entries import H200, loaded
from tilewright.tileir.run.interpreter import run
from tilewright.tileir.run.launching import Launcher
from tilewright.tileir.run.memory import Memory
from tilewright.verify.check import InterpreterChecker
from tilewright.verify.images import storage


def verdict(task: Task, on: Board = H200) -> Checked:
    """What the interpreter says of the shipped configuration on the first workload that is not correct."""
    checker = InterpreterChecker(task, on, seed=7)
    try:
        said = [checker.of(workload, task.space.shipped) for workload in task.selected(None)]
    finally:
        checker.close()
    return next((one for one in said if not one.verdict.startswith("correct")), said[0])


def product_loops(task: Task) -> int:
    """Counts the loops with products in the Tile IR of the shipped configuration on the only workload."""
    [workload] = task.selected(None)
    runnable = Launcher(task, H200).runnable(task.space.shipped, workload.dims, task.arrays(workload.dims))
    loops = [op for op in runnable.module.entry().walk() if op.name in ("for", "loop")]
    return sum(any(inner.name == "mmaf" for inner in op.walk()) for op in loops)


def run_of(
    text: str,
    folder: Path,
    output: str = "out",
    given: Mapping[str, np.ndarray] | None = None,
    gaps: Mapping[str, int] | None = None,
) -> tuple[bytes, float]:
    """The output of a task on its only workload, bit by bit, and the FLOP of its products. ``given``: arrays that are
    not random. ``gaps``: strides of flat arrays that are not 1."""
    task = loaded(text, folder)
    [workload] = task.selected(None)
    arrays, rng = task.arrays(workload.dims), np.random.default_rng(7)
    data = {name: rng.normal(0, 1, spec.shape).astype(storage(spec.dtype)) for name, spec in arrays.items()}
    data |= {name: array.astype(data[name].dtype).reshape(data[name].shape) for name, array in (given or {}).items()}
    around = {name: data[name].repeat(stride) for name, stride in (gaps or {}).items()}
    for name, whole in around.items():
        stride = len(whole) // len(data[name])
        arrays[name], data[name] = replace(arrays[name], strides_=(stride,)), whole[::stride]
    runnable = Launcher(task, H200).runnable(task.space.shipped, workload.dims, arrays)
    memory = Memory()
    addresses = {name: memory.allocate(name, array, within=around.get(name)).address for name, array in data.items()}
    done = run(runnable.module, runnable.bound(addresses, memory), runnable.launch.grid, memory)
    assert not done.findings, done.findings
    return data[output].tobytes(), done.counts.tensor_flop


def only(sites: Sequence[Site], what: str = "") -> Site:
    """The one site whose words contain ``what``."""
    found = [site for site in sites if what in site.what]
    assert len(found) == 1, f"{what!r}: {[str(site) for site in sites]}"
    return found[0]


def changed_lines(old: str, new: str) -> tuple[list[str], list[str]]:
    """The lines that only the old text has, and those that only the new one has, without their indentation."""
    before, after = Counter(_lines(old)), Counter(_lines(new))
    return list((before - after).elements()), list((after - before).elements())


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
