"""Real kernels, compiled for real, and a machine that runs Python functions in their place: no GPU is needed.

A `CpuMachine` is told what each kernel does to torch tensors on the CPU and how long each configuration takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cuda.tile as ct
import numpy as np
import pytest

from tilewright.hardware.architectures import board
from tilewright.race.rules import Policy
from tilewright.runtime.search.cutile_trials import trials
from tilewright.runtime.search.device import Shot
from tilewright.runtime.search.searching import SearchResult, search
from tilewright.runtime.search.trials import Trial

torch = pytest.importorskip("torch")

ROWS = 64


@ct.kernel
def scale(x, y, TILE: ct.Constant[int], UNUSED: ct.Constant[int]):  # type: ignore[no-untyped-def]
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) * 2)


@ct.kernel
def double_in_place(x, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    ct.store(x, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) * 2)


@ct.kernel
def doubled(sources, targets, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    for one in range(len(sources)):
        source = sources[one]
        target = targets[one]
        for row in range(ct.bid(0), ct.cdiv(source.shape[0], TILE), ct.num_blocks(0)):
            values = ct.load(source, (row, 0), (TILE, 16), padding_mode=ct.PaddingMode.ZERO)
            ct.store(target, (row, 0), values + values)


@ct.kernel
def product(a, b, c, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int]):  # type: ignore[no-untyped-def]
    total = ct.zeros((TILE_M, TILE_N), ct.float32)
    for k in range(ct.cdiv(a.shape[1], 64)):
        total = ct.mma(ct.load(a, (ct.bid(0), k), (TILE_M, 64)), ct.load(b, (k, ct.bid(1)), (64, TILE_N)), total)
    ct.store(c, (ct.bid(0), ct.bid(1)), total.astype(c.dtype))


Does = Callable[[Trial, tuple[Any, ...]], None]


class CpuMachine:
    """``does``: what a launch does to its arguments. ``us``: label → time; 10 µs where it is not named."""

    arch, board = "sm_90", board("H200")

    def __init__(self, does: Does, us: dict[str, float] | None = None) -> None:
        self.does, self.us = does, us or {}
        self.ran: list[str] = []
        self.raced: list[str] = []
        self.policy: Policy | None = None
        self.inside = False

    @contextmanager
    def active(self) -> Iterator[None]:
        self.inside = True
        yield
        self.inside = False

    def run(self, trial: Trial, args: tuple[Any, ...]) -> None:
        assert self.inside
        self.ran.append(trial.label)
        self.does(trial, args)

    @contextmanager
    def clock(self, shots: Sequence[Shot], policy: Policy) -> Iterator[tuple[Any, Policy]]:
        self.policy, self.raced = policy, [shot.trial.label for shot in shots]
        yield _Clock(self, shots), policy


class _Clock:
    def __init__(self, machine: CpuMachine, shots: Sequence[Shot]) -> None:
        self.machine, self.shots, self.rng = machine, shots, np.random.default_rng(0)

    def round(self, order: Sequence[int]) -> list[float]:
        times = []
        for index in order:
            shot = self.shots[index]
            shot.refresh()
            self.machine.does(shot.trial, shot.args)
            times.append(self.machine.us.get(shot.trial.label, 10.0) * self.rng.normal(1.0, 0.001))
        return times


def doubles(trial: Trial, args: tuple[Any, ...]) -> None:
    """What `scale` does."""
    args[1].copy_(args[0] * 2)


def doubles_in_place(trial: Trial, args: tuple[Any, ...]) -> None:
    args[0].mul_(2)


def vectors() -> tuple[Any, Any]:
    return torch.randn(1024, generator=torch.Generator().manual_seed(0)), torch.full((1024,), 7.0)


def space(*tiles: int, **more: Any) -> list[dict[str, Any]]:
    return [{"TILE": tile, **more} for tile in tiles]


def found(
    configs: Sequence[Any], machine: CpuMachine, args_fn: Callable[[Any], Any], kernel: Any = scale,
    hints_fn: Any = None, grid_fn: Any = lambda config: 1024 // config["TILE"], **more: Any,
) -> SearchResult:  # fmt: skip
    """A search of `scale` or another kernel on the CPU."""
    made = trials(configs, grid_fn, kernel, args_fn, hints_fn)
    return search(made, stream=None, device=machine, **more)
