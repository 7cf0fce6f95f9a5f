"""The digest of all code on which a run's results depend.

An interrupted run is continued only if the digest has not changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from tilewright.compile.compile import Unit, lower
from tilewright.hardware.architectures import Board
from tilewright.records import Failed, Workload
from tilewright.source.digest import has_source, source_of
from tilewright.task.loading import editable_files
from tilewright.task.task import Task


def code_of(task: Task, workloads: Sequence[Workload], board: Board) -> str:
    """Returns the SHA-256 of the task's functions, editable files and space, and of its shipped launches.

    The functions include their helpers and constants, from any module. Each workload has one launch, which consists of
    kernel, grid, arrays and bytecode.
    """
    space = task.space
    parts = [repr((space.constants, space.hints, space.every_shipped, space.include, space.only))]
    parts += [hashlib.sha256(path.read_bytes()).hexdigest() for path in editable_files(task)]
    functions = list(_functions(task))
    for workload, shipped in product(workloads, space.every_shipped):
        lowered = lower(task, Unit(workload, shipped, board))
        parts.append(repr((workload.name, sorted(workload.dims.items()), task.arrays(workload.dims))))
        if isinstance(lowered, Failed):  # the run reports this failure
            parts.append(lowered.reason)
            continue
        _, code, launch = lowered
        functions.append(launch.kernel)
        parts.append(repr((launch.grid, *code.identity)))
    parts.append(source_of(*filter(has_source, functions)))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _functions(task: Task) -> Iterator[Any]:
    yield from (each.launch for each in task.implementations.values())
    yield from (task.launch, task.reference, task.trusted, task.flops, task.bytes_moved, task.serves)
    yield from (predicate.function for predicate in task.space.where)
    if task.backward is not None:
        yield from _functions(task.backward)
