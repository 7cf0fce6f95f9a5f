"""Stand-ins for arrays on a GPU, and tables for a `Dispatcher` on an H200 that is not here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilewright as tw
from tilewright.hardware.architectures import board
from tilewright.records import Configuration, Json, Workload
from tilewright.runtime.dispatch.dispatcher import Dispatcher
from tilewright.runtime.dispatch.parts import parts_of
from tilewright.runtime.environment import Environment
from tilewright.runtime.store.config_file import FORMAT, VERSION, MatchRule
from tilewright.task.tensors import row_major

H200 = board("H200")


@dataclass(eq=False)
class OnGpu:
    """An array on GPU 0, as torch would describe it."""

    shape: tuple[int, ...]
    dtype: str = "torch.bfloat16"
    address: int = 1 << 20
    strides: tuple[int, ...] | None = None
    device: int = 0

    def stride(self) -> tuple[int, ...]:
        return self.strides or row_major(self.shape)

    def data_ptr(self) -> int:
        return self.address

    def get_device(self) -> int:
        return self.device


def table(task: tw.Task, configs: dict[str, dict[str, Any]], **row: Any) -> dict[str, Json]:
    """A config file with a row for each of these workloads."""
    rows = []
    for name, config in configs.items():
        workload: Workload = task.workload(name)
        parts = parts_of(task, workload.dims, task.arrays(workload.dims), H200)
        rows.append({"parts": parts, "config": config, "us": 1.0, "label": name, **row})
    made: dict[str, Any] = {
        "format": FORMAT, "version": VERSION, "kernel": task.name, "module": "", "rule": MatchRule().to_json(),
        "common": {}, "rows": rows,
    }  # fmt: skip
    return made


def dispatcher(task: tw.Task, configs: dict[str, dict[str, Any]] | dict[str, Json], **row: Any) -> Dispatcher:
    made = configs if "format" in configs else table(task, configs, **row)  # type: ignore[arg-type]
    return Dispatcher(task, made, _environment=Environment(hardware=lambda device: H200))  # type: ignore[arg-type]


def shipped(task: tw.Task, implementation: str) -> Configuration:
    return next(each for each in task.space.every_shipped if each["implementation"] == implementation)
