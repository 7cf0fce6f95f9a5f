"""Traces in the form in which torch.profiler writes them, made event by event or drawn at random."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

BASE = 198_093_488_444
"""Microseconds at which made traces begin: such as newer versions of torch write, relative to a base time."""


class MadeTrace:
    """A trace that is being written. Times are µs; fractions of a nanosecond are not written."""

    def __init__(self, rank: int | None = None, base: int = BASE, device: int = 0):
        self.events: list[dict[str, Any]] = []
        self.rank, self.base, self.device = rank, base, device
        self.correlation = 100

    def add(self, category: str, name: str, at: float, us: float, pid: int, tid: int | str, **args: Any) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
        self.events.append({**event, "ts": Microseconds(self.base, at), "dur": Microseconds(0, us), "args": args})

    def call(self, name: str, at: float, us: float = 3.0) -> int:
        """Adds a call of the host; returns its correlation."""
        self.correlation += 1
        self.add("cuda_runtime", name, at, us, 4242, 4242, cbid=211, correlation=self.correlation)
        return self.correlation

    def kernel(
        self, name: str, at: float, us: float, stream: int = 7, correlation: int = 0, graph: int = 0,
        device: int | None = None,
    ) -> None:  # fmt: skip
        device = self.device if device is None else device
        placed = {"device": device, "context": 1, "stream": stream, "correlation": correlation, "graph id": graph}
        shape = {"registers per thread": 32, "shared memory": 0, "blocks per SM": 1.5, "grid": [8, 1, 1]}
        self.add("kernel", name, at, us, device, stream, **placed, **shape)

    def copy(self, name: str, at: float, us: float, stream: int = 7, correlation: int = 0) -> None:
        args = {"device": self.device, "context": 1, "stream": stream, "correlation": correlation, "bytes": 4096}
        self.add("gpu_memcpy", name, at, us, self.device, stream, **args)

    def step(self, number: int, at: float, us: float) -> None:
        self.add("user_annotation", f"ProfilerStep#{number}", at, us, 4242, 4242)

    def launched(self, name: str, at: float, us: float, launched_at: float, stream: int = 7) -> None:
        """Adds a kernel, and the call that launched it."""
        self.kernel(name, at, us, stream, self.call("cudaLaunchKernel", launched_at))

    def head(self) -> dict[str, Any]:
        board = {"id": self.device, "name": "NVIDIA H200", "totalGlobalMem": 150_000_000_000, "numSms": 132}
        head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [board]}
        if self.rank is not None:
            head["distributedInfo"] = {"backend": "nccl", "rank": self.rank, "world_size": 2}
        return {**head, "displayTimeUnit": "ms", "baseTimeNanoseconds": 1_700_000_000_000_000_000}

    def text(self, indent: int | None = 2) -> str:
        """Returns the trace as torch writes it: an event takes several lines; with None everything is in one."""
        whole = {**self.head(), "traceEvents": self.events, "traceName": "trace.json"}
        return re.sub(r'"<(\d+\.\d{3})>"', r"\1", json.dumps(whole, indent=indent, default=str))

    def write(self, path: Path, indent: int | None = 2) -> Path:
        data = self.text(indent).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path


class Microseconds:
    """A time that is written with three decimals. A float has not enough digits for the time since 1970."""

    def __init__(self, base: int, us: float):
        self.ns = base * 1000 + round(us * 1000)

    def __str__(self) -> str:
        return f"<{self.ns // 1000}.{self.ns % 1000:03d}>"


def eager_training(seed: int = 0, steps: int = 4) -> MadeTrace:
    """An eager training program that is bound by the host: many short kernels, a wait each step, pageable copies."""
    draw, trace, host, gpu = random.Random(seed), MadeTrace(), 0.0, 0.0
    for step in range(steps):
        began = host
        copied = trace.call("cudaMemcpyAsync", host, 40.0)
        trace.copy("Memcpy HtoD (Pageable -> Device)", max(gpu, host + 5), 30.0, correlation=copied)
        gpu = max(gpu, host + 5) + 30.0
        host += 45.0
        for number in range(40):
            name = "ampere_sgemm_128x64_tn" if number % 8 == 0 else "void at::native::vectorized_elementwise_kernel<4>"
            took = draw.uniform(60, 90) if number % 8 == 0 else draw.uniform(2, 6)
            called = trace.call("cudaLaunchKernel", host, 4.0)
            gpu = max(gpu, host + 6.0) + 1.0
            trace.kernel(name, gpu, took, correlation=called)
            gpu, host = gpu + took, host + draw.uniform(14, 18)
        trace.call("cudaStreamSynchronize", host, max(gpu - host, 1.0) + 2.0)
        host = max(gpu, host) + 30.0
        trace.step(step, began, host - began)
    return trace


def graph_replay(seed: int = 0, steps: int = 4) -> MadeTrace:
    """A program that replays a CUDA graph of 50 kernels."""
    draw, trace, host, gpu = random.Random(seed), MadeTrace(), 0.0, 0.0
    for step in range(steps):
        began, called = host, trace.call("cudaGraphLaunch", host, 20.0)
        gpu = max(gpu, host + 12.0)
        for number in range(50):
            gpu += 0.5 + (2.0 if number % 10 == 0 else 0.0)
            took = draw.uniform(5, 60)
            trace.kernel(f"fused_{number % 5}", gpu, took, correlation=called, graph=3)
            gpu += took
        host += 100.0
        trace.step(step, began, host - began)
    return trace


def data_parallel(seed: int = 0, rank: int = 0, steps: int = 4) -> MadeTrace:
    """One rank of a data-parallel program, which reduces gradients on a second stream."""
    draw, trace, host, gpu, wire = random.Random(seed + rank), MadeTrace(rank, device=rank), 0.0, 0.0, 0.0
    for step in range(steps):
        began = host
        for number in range(20):
            called = trace.call("cudaLaunchKernel", host, 3.0)
            took = draw.uniform(30, 120)
            gpu = max(gpu, host + 5)
            trace.kernel("cutlass_80_tensorop_bf16_gemm", gpu, took, correlation=called)
            gpu, host = gpu + took + 0.7, host + 8.0
            if number % 5 == 4:
                reduced = draw.uniform(150, 700)
                wire = max(wire, gpu)
                called = trace.call("cudaLaunchKernelExC", host, 3.0)
                trace.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", wire, reduced, 20, called)
                wire, host = wire + reduced, host + 4.0
        gpu = max(gpu, wire)
        trace.step(step, began, host - began)
    return trace
