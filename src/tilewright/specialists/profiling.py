"""Profiling: where the time goes, and what limits it."""

from __future__ import annotations

from tilewright.specialists.base import Need, Specialist
from tilewright.specialists.needs import need_of_gpu, need_of_package, need_of_program


class Profiling(Specialist):
    name = "profiling"
    order = 10
    aliases = ("perf-profiling-specialist",)
    domain = (
        "where the time or the memory of a program goes, and how to spend less: profiles, traces, benchmarks, latency, "
        "throughput, utilization, roofline; also techniques that name no kernel language, such as FlashAttention, "
        "fusion, checkpointing, memory pooling, lower precision, batching, data loading, torch.compile"
    )
    returns = (
        "the time of a step, with its spread; its split into compute, communication, copies and idle; the longest "
        "kernels; each finding with its raw line"
    )
    examples = (
        "Speed up train.py",
        "Why is my GPU idle half of the time?",
        "Benchmark train.py and report latency",
        "Enable FlashAttention for self-attention layers",
    )

    def needs(self) -> tuple[Need, ...]:
        ncu = need_of_program("ncu", "only for counters of hot kernels: install NVIDIA Nsight Compute")
        return (need_of_package("torch"), need_of_gpu(), ncu)


SPECIALIST = Profiling()
