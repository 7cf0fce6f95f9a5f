"""A TileGym operation as a task: its kernel, launched as TileGym's own wrapper launches it (`wrappers`).

``shipped`` of the space is what TileGym launches on an H200. `shipped.json` holds what its searches took there
(written by `shipped.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from wrappers import HOPPER, Operation, Recorded

import tilewright as tw
from tilewright.hardware.architectures import Board, default_board
from tilewright.task.task import call_by_name
from tilewright.task.tensors import Dims

RECORD = Path(__file__).with_name("shipped.json")
HINTS = ("num_ctas", "occupancy", "num_worker_warps")


@cache
def _record() -> dict[str, Any]:
    return json.loads(RECORD.read_text())["operations"] if RECORD.exists() else {}


def recorded(operation: str, workloads: Mapping[str, Any]) -> dict[str, Any] | None:
    """What TileGym's search took, for the first of these workloads that has a record."""
    known = _record().get(operation, {})
    return next((known[name] for name in workloads if known.get(name, {}).get("pick")), None)


def tasks(
    name: str,
    *,
    module: ModuleType,
    call: Callable[..., Any],
    arrays: Sequence[str | tuple[str, ...]],
    tensors: Mapping[str, Any],
    workloads: Mapping[str, Mapping[str, Any]],
    constants: Mapping[str, Sequence[Any]] | None = None,
    hints: Mapping[str, Sequence[int | None]] | None = None,
    where: Sequence[Callable[..., bool]] = (),
    kernel: str | None = None,
    listed: str | None = None,
    named: Mapping[str, str] | None = None,
    grid: Callable[..., tuple[int, ...]] | None = None,
    **rest: Any,
) -> dict[str, tw.Task]:
    """The tasks of one operation: one for all workloads, or one a group where TileGym launches other configurations.

    Each group's ``space`` ships what TileGym launches for its first workload on an H200; a test holds that it
    is the same for the others. ``grid`` gives the grid for constants that no list of the module holds, from
    dimensions, ``config`` and ``hardware``. Bind the result with ``globals().update``.
    """
    known = _record().get(name, {})
    groups: dict[str, dict[str, Any]] = {}
    for workload, dims in workloads.items():
        groups.setdefault(json.dumps(known.get(workload, {}).get("pick")), {})[workload] = dims
    made = {}
    for group in groups.values():
        called = name if not made else f"{name}_{next(iter(group))}"
        operation = Operation(
            module, call, arrays, kernel=kernel, listed=listed, named=named, recorded=recorded(name, group)
        )
        task = tw.Task(name=called, tensors=tensors, workloads=group, space=NOTHING, launch=tw.Launch, **rest)
        launcher = Launcher(operation, task, tuple(constants or ()), grid)
        made[called] = replace(task, launch=launcher.launch, space=launcher.space(constants, hints, where))
    return made


NOTHING = tw.Space(shipped={})


def operation_of(task: tw.Task) -> Operation:
    """The operation that a task of this folder launches."""
    launcher = getattr(task.launch, "__self__", None)
    assert isinstance(launcher, Launcher), f"{task.name} is no task of as_launched"
    return launcher.operation


class Launcher:
    """The launches of one task. ``task``: for its tensors and workloads alone. ``constants``: names of its knobs."""

    def __init__(
        self,
        operation: Operation,
        task: tw.Task,
        constants: tuple[str, ...],
        grid: Callable[..., tuple[int, ...]] | None,
    ) -> None:
        self.operation, self.task, self.constants, self.grid = operation, task, constants, grid
        self.first = next(iter(task.workloads.values()))
        self.shipped = tw.Configuration.of(self._knobs(self._as_it_is(self.first, default_board(HOPPER))))

    def space(
        self,
        constants: Mapping[str, Sequence[Any]] | None,
        hints: Mapping[str, Sequence[int | None]] | None,
        where: Sequence[Callable[..., bool]],
    ) -> tw.Space:
        """The knobs to try, the configuration that is launched today, and those that the module lists."""
        hopper = default_board(HOPPER)
        listed = [self._with(self.first, hopper, one) for one in self.operation.candidates()]
        return tw.Space(
            constants=constants or {},
            hints={hint: (hints or {}).get(hint, (self.shipped[hint],)) for hint in HINTS},
            shipped=self.shipped,
            include=[self._knobs(one) for one in listed],
            where=where,
        )

    def launch(self, *, config: tw.Configuration, hardware: Board, **given: Any) -> tw.Launch:
        """As the wrapper launches it: as it is for what is shipped, else as it would with ``config``."""
        dims = {name: given[name] for name in self.first}
        own = self._as_it_is(dims, hardware)
        if config == self.shipped or dict(config) == self._knobs(own):
            return own.on(given)
        if self.grid is None:
            return self._with(dims, hardware, config).on(given)
        offered = {**dims, "config": config, "hardware": hardware}
        blocks = call_by_name(self.grid, offered, f"grid of task '{self.task.name}'")
        return own.changed(blocks, {knob: config[knob] for knob in self.constants}).on(given)

    def _as_it_is(self, dims: Dims, board: Board) -> Recorded:
        return self.operation.launched(dims, self.task.arrays(dims), board)

    def _with(self, dims: Dims, board: Board, wanted: Mapping[str, Any]) -> Recorded:
        return self.operation.launched(dims, self.task.arrays(dims), board, wanted)

    def _knobs(self, one: Recorded) -> dict[str, Any]:
        return {**{knob: one.constants[knob] for knob in self.constants}, **{hint: one.hints[hint] for hint in HINTS}}
