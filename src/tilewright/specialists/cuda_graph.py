"""CUDA graphs: capture and replay of a model's launches. This specialist gets questions, but cannot answer yet."""

from __future__ import annotations

from tilewright.specialists.base import Need, Specialist
from tilewright.specialists.needs import need_of_gpu, need_of_package


class CudaGraph(Specialist):
    name = "cuda-graph"
    order = 20
    aliases = ("perf-torch-cuda-graph-specialist",)
    domain = (
        "CUDA graphs: whether a program can be captured, capturing and replaying it, why a capture fails, and the cost "
        "of launching many small kernels (launch overhead, launch-bound)"
    )
    returns = "the reasons against capture, by line; equal outputs of replay and eager; the step time before and after"
    names = (
        "cuda graph", "cudagraph*", "make graphed callables", "graph capture", "graph replay", "stream capture",
        "capture and replay", "launch overhead", "launch bound", "launch latency", "launch cost", "kernel launch",
        "cudalaunchkernel", "mode reduce overhead", "reduce overhead mode", "graphed", "stream is capturing",
        "capture the graph", "tiny kernel", "small kernel", "launch gap", "graphable",
        "graph captured", "captured graph", "capturable", "capture fails", "prevents capture", "be captured",
        "breaks capture",
    )  # fmt: skip
    near = ("capture", "captured", "capturing", "replay", "replaying", "replayed")
    examples = (
        "Apply CUDA Graph to my model",
        "Analyze train.py for CUDA Graph compatibility",
        "Get rid of the launch overhead in my decode loop",
    )

    def needs(self) -> tuple[Need, ...]:
        built = Need("the capture of a step in Tilewright", False, "not built yet; use torch.cuda.graph by hand")
        return (need_of_package("torch"), need_of_gpu(), built)


SPECIALIST = CudaGraph()
