"""The parts of a task's call by which a config file finds its row (`config_file`): the same at tuning and at a call."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from tilewright.hardware.architectures import Board
from tilewright.languages import language_of
from tilewright.records import Json, Value
from tilewright.runtime.dispatch.calls import flags_of
from tilewright.runtime.key import digest
from tilewright.source.digest import has_source, source_of
from tilewright.task.task import Task
from tilewright.task.tensors import ArraySpec


def parts_of(task: Task, dims: Mapping[str, Value], arrays: Mapping[str, ArraySpec], board: Board) -> dict[str, Json]:
    """Returns the parts of a call. ``board``: by the name of its model, which a prediction without a GPU knows, too."""
    return {
        "kernel": task.name,
        "source": _source(task),
        "board": f"{board.name} {board.arch}",
        "toolkit": _toolkit(task, dims, arrays, board),
        "space": _space(task),
        "arrays": {name: _array_part(array) for name, array in arrays.items()},
        "flags": {name: dims[name] for name in flags_of(task) if name in dims},
    }


def _array_part(array: ArraySpec) -> dict[str, Json]:
    return {
        "dtype": array.dtype, "shape": list(array.shape), "strides": list(array.strides),
        "alignment": array.as_compiled().address_offset,
    }  # fmt: skip


def _source(task: Task) -> str:
    """Returns the digest of the launch functions, with the kernels and helpers that they use."""
    launches = [each.launch for each in task.implementations.values()] or [task.launch]
    return source_of(*filter(has_source, launches))


def _space(task: Task) -> str:
    space = task.space
    functions = source_of(*filter(has_source, (predicate.function for predicate in space.where)))
    listed = repr((space.constants, space.hints, space.every_shipped, space.include, space.only))
    return digest({"space": listed, "where": functions})


def _toolkit(task: Task, dims: Mapping[str, Value], arrays: Mapping[str, ArraySpec], board: Board) -> str:
    """Returns the toolkits of the languages of all implementations. A language that is missing here has none."""
    found = set()
    for shipped in task.space.every_shipped:
        with suppress(Exception):  # building the configuration reports it
            found.add(language_of(task.launched(shipped, dims, arrays, board).kernel).toolkit())
    return "; ".join(sorted(filter(None, found)))
