"""Classifies activities of the GPU (computation, communication, copy) and calls of the host.

Kernels are recognised by their names. The names of communication kernels come from NCCL, NVSHMEM, and the all-reduce
kernels in vLLM, SGLang, TensorRT-LLM and torch's symmetric memory.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["compute", "communication", "copy"]

KINDS: tuple[Kind, ...] = ("compute", "communication", "copy")

CATEGORIES = {
    "kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "copy", "memcpy": "copy", "memset": "copy",
    "cuda_runtime": "call", "cuda_driver": "call", "runtime": "call",
    "user_annotation": "annotation", "cuda_profiler_range": "counters",
}  # fmt: skip
"""Maps the category of an event, in lower case, to its use in Tilewright. Traces before torch 1.12 have the categories
Kernel, Memcpy, Memset and Runtime."""

COMMUNICATION = re.compile(
    r"nccl|nvshmem|cross_device_reduce|(one|two)_?shot_?all_?reduce|multimem_(all|one_shot)|all_?reduce_?fusion"
    r"|userbuffers|custom_all_?reduce",
    re.IGNORECASE,
)
GRAPH_LAUNCH = re.compile(r"c(uda|u)GraphLaunch")
LAUNCH = re.compile(r"c(uda|u)(Launch|GraphLaunch)")
WAIT = re.compile(r"c(uda|u)(Device|Stream|Event|Ctx)Synchronize|cudaMemcpy$|cuMemcpy[DH]to[DH]_v2$")
"""Calls in which the host waits for the GPU."""
PAGEABLE = re.compile(r"\bPageable\b")
SINGLE_PRECISION = re.compile(r"sgemm|simt_s|_s\d+gemm_f32|gemm_f32f32_f32f32_f32(?!.*tf32)", re.IGNORECASE)
"""Names that cuBLAS and CUTLASS give to float32 matrix products on the CUDA cores."""
STEP = re.compile(r"ProfilerStep#(\d+)")


@cache
def kind_of(category: str, name: str) -> Kind:
    """Returns the kind of an activity on the GPU, from its category (`CATEGORIES`) and its name."""
    if category == "copy":
        return "copy"
    return "communication" if COMMUNICATION.search(name) else "compute"
