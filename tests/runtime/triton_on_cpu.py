"""A driver for Triton that runs Python functions on CPU tensors, and a device for the search that times nothing real.

All else is Triton's own: its autotuner, its binder, its compiler for sm_90, its caches and its launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from tilewright.hardware.architectures import board
from tilewright.race.rules import Policy
from tilewright.runtime.search.device import Shot
from tilewright.runtime.search.trials import Trial

Does = Callable[[dict[str, Any]], None]
SHARED_BYTES = 232448


class CpuDriver:
    """``does``: maps the name of a kernel to a function of its arguments by name."""

    def __init__(self, does: dict[str, Does]) -> None:
        self.does, self.launches, self.benched = does, list[dict[str, Any]](), 0
        self.target = GPUTarget("cuda", 90, 32)
        self.utils = SimpleNamespace(
            load_binary=lambda name, kernel, shared, device: (object(), 0, 32, 0, 1024),
            unload_module=lambda module: None,
            get_device_properties=lambda device: {"max_shared_mem": SHARED_BYTES},
        )

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self.target

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        names = source.fn.arg_names

        def launch(x: int, y: int, z: int, stream: int, function: Any, *more: Any) -> None:
            given = dict(zip(names, more[len(more) - len(names) :], strict=True))
            given |= {"grid": (x, y, z), "num_warps": metadata.num_warps}
            now = driver.active  # a kernel stays loaded when a test ends, and the next test has another driver
            now.launches.append(given)
            now.does[source.fn.__name__](given)

        return launch

    def get_benchmarker(self) -> Callable[..., list[float]]:
        def bench(call: Callable[[], None], quantiles: Any) -> list[float]:
            self.benched += 1
            call()
            return [1.0 / self.benched] * 3  # Triton's own search takes the last

        return bench


@contextmanager
def on_cpu(does: dict[str, Does]) -> Iterator[CpuDriver]:
    made, before = CpuDriver(does), driver._active
    driver.set_active(made)
    try:
        yield made
    finally:
        driver._active = before


class CpuDevice:
    """The device of a search. ``us``: the time of a configuration, by what its label contains; else 10 µs."""

    arch, board = "sm_90", board("H200")

    def __init__(self, us: dict[str, float]) -> None:
        self.us, self.raced, self.policy = us, list[str](), Policy()

    @contextmanager
    def active(self) -> Iterator[None]:
        yield

    def run(self, trial: Trial, args: tuple[Any, ...]) -> None:
        trial.launch(args)

    @contextmanager
    def clock(self, shots: Sequence[Shot], policy: Policy) -> Iterator[tuple[Any, Policy]]:
        self.policy, self.raced = policy, [shot.trial.label for shot in shots]
        rng = np.random.default_rng(0)

        def one_round(order: Sequence[int]) -> list[float]:
            for index in order:
                shots[index].refresh()
                shots[index].trial.launch(shots[index].args)
            return [self.time(shots[index].trial.label) * rng.normal(1.0, 0.001) for index in order]

        yield SimpleNamespace(round=one_round), policy

    def time(self, label: str) -> float:
        return next((us for part, us in self.us.items() if part in label), 10.0)
