"""The task files of this folder, and the tasks in each."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent

OPERATIONS = (
    "fmha", "gemma_attention", "attention_sink", "attention_varlen", "mla", "swa_attention",
    "matmul", "bmm", "group_gemm", "linear_gluact",
    "rms_norm", "layer_norm", "layer_norm_legacy", "persistent_layer_norm", "softmax", "swiglu", "silu_and_mul",
    "transpose",
)  # fmt: skip
"""Files, each with one public operation of TileGym."""

EAGER = ("group_gemm",)
"""Its kernel takes lists of arrays, which cuda-tile 1.7 does not capture into a CUDA graph."""


def workloads_of(operation: str) -> dict[str, tuple[str, ...]]:
    """The tasks of an operation, as ``FILE:TASK`` → names of its workloads.

    A file holds several where TileGym launches different configurations for its workloads.
    """
    from tilewright.task.task import Task

    path = HERE / f"{operation}.py"
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    found = runpy.run_path(str(path))
    return {f"{path}:{task.name}": tuple(task.workloads) for task in found.values() if isinstance(task, Task)}
