"""Chooses between the backends: the worker imports torch only for a task that needs it."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from math import prod

from tilewright.task.task import Task
from tilewright.task.tensors import Dims
from tilewright.worker.process.backends import Backend

HOST_ELEMENTS = 1 << 26
"""The most elements of a workload's tensors that are compared on the host, which compares 0.1 billion per second."""


def needs_torch(task: Task, dims: Dims) -> bool:
    """Returns whether a workload is verified with torch.

    This is so if the task has a trusted implementation, or if the workload is large and torch is installed.
    """
    if task.trusted is not None:
        return True
    elements = sum(prod(array.shape) for array in task.arrays(dims).values())
    return elements > HOST_ELEMENTS and find_spec("torch") is not None


def chosen(task: Task, dims: Dims) -> Backend:
    """Returns the backend for a workload. Imports torch only if `needs_torch`."""
    return _torch_backend() if needs_torch(task, dims) else _host_backend()


@lru_cache(maxsize=1)
def _torch_backend() -> Backend:
    from tilewright.worker.process.torch_backend import TorchBackend

    return TorchBackend("cuda")


@lru_cache(maxsize=1)
def _host_backend() -> Backend:
    from tilewright.worker.process.host_backend import HostBackend

    return HostBackend()
