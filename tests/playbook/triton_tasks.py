"""Triton tasks for the tests of entries: the tutorial's matmul, and a kernel around a few lines."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

HEAD = """
import triton
import triton.language as tl
import tilewright as tw

"""

MATMUL = (
    HEAD
    + '''
@triton.jit
def matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):
    """Blocks in bands of GROUP rows."""
    pid = tl.program_id(axis=0)
    num_pid_m, num_pid_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    num_pid_in_group = GROUP * num_pid_n
    first_pid_m = pid // num_pid_in_group * GROUP
    group_size_m = min(num_pid_m - first_pid_m, GROUP)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    # the first blocks
    offs_am = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    offs_bn = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        # the next blocks
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_K, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    c = accumulator.to(tl.bfloat16)
    offs_cm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_cn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    c_mask = (offs_cm[:, None] < M) & (offs_cn[None, :] < N)
    tl.store(c_ptrs, c, mask=c_mask)


def launch(a, b, c, M, N, K, config):
    grid = (triton.cdiv(M, config.BLOCK_M) * triton.cdiv(N, config.BLOCK_N),)
    sizes = (config.BLOCK_M, config.BLOCK_N, config.BLOCK_K, config.GROUP)
    return tw.Launch(matmul, grid, (a, b, c, M, N, K, K, 1, N, 1, N, 1, *sizes))


task = tw.Task(
    name="matmul",
    tensors={
        "a": tw.Tensor(("M", "K"), "bfloat16"), "b": tw.Tensor(("K", "N"), "bfloat16"),
        "c": tw.Output(("M", "N"), "bfloat16"),
    },
    reference=lambda a, b: a @ b,
    launch=launch,
    flops=lambda M, N, K: 2 * M * N * K,
    serves=lambda N, K: N % 8 == 0 and K % 8 == 0,
    space=tw.Space(
        constants={"BLOCK_M": (32, 64), "BLOCK_N": (32, 64), "BLOCK_K": (32, 64), "GROUP": (2,)},
        hints={"route": ("tileir",), "occupancy": (None, 2)},
        shipped={"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "GROUP": 2, "route": "tileir", "occupancy": None},
    ),
    workloads={"small": {"M": 100, "N": 72, "K": 80}},
)
'''
)

ON_PTX = MATMUL.replace(
    'hints={"route": ("tileir",),', 'hints={"route": ("ptx", "tileir"), "num_warps": (4, 8),'
).replace('"route": "tileir", "occupancy"', '"route": "ptx", "num_warps": 4, "occupancy"')


def kernel(body: str, parameters: str = "x, y, rows, n, stride, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr") -> str:
    """A file with one kernel, called ``copy``."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"{HEAD}\n@triton.jit\ndef copy({parameters}):\n{lines}\n"


EXAMPLE = (Path(__file__).parents[2] / "examples" / "triton" / "softmax.py").read_text()
SOFTMAX = EXAMPLE.replace('"M": 1024, "N": 3000', '"M": 6, "N": 100').replace(
    '"M": 16384, "N": 4096', '"M": 8, "N": 64'
)


def imported(text: str, folder: Path) -> Any:
    """The module of a text. Triton reads kernels from files."""
    path = folder / "changed.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("changed_by_an_entry", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def right(case: Any) -> None:
    """Compares the outputs of a case with float64."""
    for out, expected in case.expected.items():
        array = case.arguments[out]
        bound = 2 * float(ml_dtypes.finfo(array.dtype).eps) if array.dtype == ml_dtypes.bfloat16 else 1e-5
        np.testing.assert_allclose(array.astype(float), expected, rtol=bound, atol=bound * abs(expected).max())
