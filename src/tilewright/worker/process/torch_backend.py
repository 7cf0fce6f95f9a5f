"""Checks and races with torch: memory, random numbers and comparisons on its device. See `backends.Backend`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from tilewright.launching.cuda import DeviceBytes
from tilewright.race.event_timer import torch_flush
from tilewright.task.tensors import Distribution
from tilewright.verify.arrays import Tensors
from tilewright.verify.images import memory_of_machine
from tilewright.verify.tolerance import draw
from tilewright.worker.process.backends import Runner

CHUNK = 1 << 24  # words of eight bytes that are summed at a time, to limit the memory for a checksum
TENSORS = Tensors(torch)


class TorchBackend:
    """The operations with torch. ``device``: torch's name of the device. On ``cpu``, nothing can be timed."""

    arrays = TENSORS
    out_of_memory = torch.cuda.OutOfMemoryError

    def __init__(self, device: str) -> None:
        self.device = device

    def full(self, nbytes: int, byte: int) -> torch.Tensor:
        return torch.full((nbytes,), byte, dtype=torch.uint8, device=self.device)

    def tensor(self, memory: torch.Tensor, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        return memory.view(getattr(torch, dtype)).view(shape)

    def torch_tensors(self, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return tensors

    def free(self) -> int:
        if self.device == "cpu":
            return 1 << 62
        free, _ = torch.cuda.mem_get_info()
        return int(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())

    def total(self) -> int:
        return memory_of_machine() if self.device == "cpu" else int(torch.cuda.mem_get_info()[1])

    def release(self) -> None:
        torch.cuda.empty_cache()

    def draw(self, tensors: Sequence[tuple[torch.Tensor, Distribution]], seed: int) -> None:
        generator = torch.Generator(self.device).manual_seed(seed)
        for tensor, how in tensors:
            _fill(tensor, how, generator)

    def is_filled(self, memory: torch.Tensor, byte: int) -> bool:
        return bool((memory == byte).all())

    def checksum(self, memory: torch.Tensor) -> int:
        words, odd = memory[: memory.numel() // 8 * 8].view(torch.int64), memory[memory.numel() // 8 * 8 :]
        device = memory.device
        total = int((odd.to(torch.int64) * torch.arange(1, odd.numel() + 1, device=device)).sum())
        for start in range(0, words.numel(), CHUNK):
            part = words[start : start + CHUNK]
            mixed = part ^ (torch.arange(start + 1, start + 1 + part.numel(), device=device) * 0x9E3779B97F4A7C1)
            for shift in (29, 32):  # wrapping products, as in splitmix64
                mixed = (mixed ^ (mixed >> shift)) * 0x3F58476D1CE4E5B9
            total += int(mixed.sum())
        return total % (1 << 64)

    def fetched(self, tensor: torch.Tensor) -> Any:
        return tensor

    def kept(self, array: Any) -> Any:
        return array.clone()

    def cut(self, array: Any, axes: Mapping[int, Sequence[int]], whole: bool) -> Any:
        for axis, indices in axes.items():
            array = array.index_select(axis, torch.tensor(indices, device=array.device))
        return array.to(torch.int64) if whole else array

    def run(self, runner: Runner) -> None:
        if self.device == "cpu":
            runner(None)
        else:
            self.synchronize()
            runner(self.current())
            self.synchronize()

    def stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()

    def on(self, stream: torch.cuda.Stream) -> AbstractContextManager[object]:
        made: AbstractContextManager[object] = torch.cuda.stream(stream)
        return made

    def current(self) -> int:
        return int(torch.cuda.current_stream().cuda_stream)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def wait(self, stream: torch.cuda.Stream) -> None:
        stream.synchronize()

    def event(self, external: bool = False) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True, external=external)

    def l2_flush(self) -> Callable[[], object]:
        return torch_flush(torch)

    def captured(self, stream: torch.cuda.Stream, work: Callable[[], object]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            work()
        return graph


def _fill(tensor: torch.Tensor, how: Distribution, generator: torch.Generator) -> None:
    if how.steps is not None or how.like:
        rng = np.random.default_rng(generator.initial_seed())
        tensor.copy_(torch.from_numpy(draw(how, tuple(tensor.shape), rng)).to(tensor.device))
        return
    wide = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device)
    if how.kind == "normal":
        wide.normal_(how.a, how.b, generator=generator)
    elif how.kind == "uniform":
        wide.uniform_(how.a, how.b, generator=generator)
    else:
        wide.random_(int(how.a), int(how.b), generator=generator)
    tensor.copy_(wide.to(tensor.dtype))


def view_of(memory: DeviceBytes, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Returns a torch tensor that shares ``memory``, which was allocated through the CUDA driver. Nothing is copied."""
    if not memory.numel():
        return torch.empty(shape, dtype=getattr(torch, dtype), device="cuda")
    return torch.as_tensor(memory, device="cuda").view(getattr(torch, dtype)).view(shape)
