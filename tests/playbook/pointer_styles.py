"""Twelve kernels that load blocks through pointers, each in another style of writing.

`SET_ASIDE` was chosen by name before any was written. The first version of the entry `descriptors` that saw these four
rewrote all accesses of two, only the store of `batched_matmul`, and nothing of `helper_offsets`. Afterwards the entry
learnt to read helper functions, and loops that count down.
"""

from __future__ import annotations

SET_ASIDE = ("batched_matmul", "helper_offsets", "int64_offsets", "recomputed_pointers")

HEAD = """
import numpy as np
import triton
import triton.language as tl
import tilewright as tw

"""


def _task(kernel: str, tensors: str, reference: str, launch: str, constants: str, workload: str) -> str:
    """A task file. ``launch``: grid and arguments, with the dimensions, the tensors and ``config`` as names."""
    names = [part.split(":")[0].strip(' "') for part in tensors.split("tw.")[:-1]]
    names = [name.rpartition(",")[2].strip(' "') for name in names]
    inputs = [name for name in names if name != "out"]
    dims = [part.split(":")[0].strip(' {}"') for part in workload.split(",")]
    values = ", ".join(f'"{name}": ({value},)' for name, value in eval(f"dict({constants})").items())
    shipped = ", ".join(f'"{name}": {value}' for name, value in eval(f"dict({constants})").items())
    return f"""{HEAD}{kernel}

def launch({", ".join([*names, *dims])}, config):
    {launch}


task = tw.Task(
    name="styled",
    tensors={{{tensors}}},
    reference=lambda {", ".join(inputs)}: {reference},
    launch=launch,
    flops=lambda {", ".join(dims)}: {" * ".join(dims)},
    serves=lambda {", ".join(dims)}: {" and ".join(f"{dim} % 8 == 0" for dim in dims)},
    space=tw.Space(
        constants={{{values}}},
        hints={{"route": ("ptx",), "num_warps": (4,)}},
        shipped={{{shipped}, "route": "ptx", "num_warps": 4}},
    ),
    workloads={{"small": {workload}}},
)
"""


MATMUL_TENSORS = (
    '"a": tw.Tensor(("M", "K"), "float16"), "b": tw.Tensor(("K", "N"), "float16"), '
    '"out": tw.Output(("M", "N"), "float16")'
)
MATMUL_DIMS = '{"M": 72, "N": 80, "K": 96}'
MATMUL_BLOCKS = "BLOCK_M=32, BLOCK_N=32, BLOCK_K=32"

MATMUL_TUTORIAL = _task(
    """
@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_SIZE_M)
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    num_pid_in_group = GROUP_SIZE_M * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP_SIZE_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    tl.assume(pid_m >= 0)
    tl.assume(pid_n >= 0)
    offs_am = (pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)) % M
    offs_bn = (pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)) % N
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_SIZE_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_SIZE_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_SIZE_K, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
        a_ptrs += BLOCK_SIZE_K * stride_ak
        b_ptrs += BLOCK_SIZE_K * stride_bk
    if ACTIVATION == "leaky_relu":
        accumulator = leaky_relu(accumulator)
    c = accumulator.to(tl.float16)
    offs_cm = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    offs_cn = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    c_mask = (offs_cm[:, None] < M) & (offs_cn[None, :] < N)
    tl.store(c_ptrs, c, mask=c_mask)
""",
    MATMUL_TENSORS,
    "np.where(a @ b >= 0, a @ b, 0.01 * (a @ b))",
    "grid = (triton.cdiv(M, config.BLOCK_M) * triton.cdiv(N, config.BLOCK_N),)\n"
    "    return tw.Launch(matmul_kernel, grid, (a, b, out, M, N, K, K, 1, N, 1, N, 1, config.BLOCK_M, config.BLOCK_N,\n"
    '                                           config.BLOCK_K, 4, "leaky_relu"))',
    MATMUL_BLOCKS,
    MATMUL_DIMS,
)

SOFTMAX_ROWS = _task(
    """
@triton.jit
def softmax_kernel(
    output_ptr, input_ptr, input_row_stride, output_row_stride, n_rows, n_cols, BLOCK_SIZE: tl.constexpr,
    num_stages: tl.constexpr,
):
    row_start = tl.program_id(0)
    row_step = tl.num_programs(0)
    for row_idx in tl.range(row_start, n_rows, row_step, num_stages=num_stages):
        row_start_ptr = input_ptr + row_idx * input_row_stride
        col_offsets = tl.arange(0, BLOCK_SIZE)
        input_ptrs = row_start_ptr + col_offsets
        mask = col_offsets < n_cols
        row = tl.load(input_ptrs, mask=mask, other=-float("inf"))
        row_minus_max = row - tl.max(row, axis=0)
        numerator = tl.exp(row_minus_max)
        denominator = tl.sum(numerator, axis=0)
        softmax_output = numerator / denominator
        output_row_start_ptr = output_ptr + row_idx * output_row_stride
        output_ptrs = output_row_start_ptr + col_offsets
        tl.store(output_ptrs, softmax_output, mask=mask)
""",
    '"x": tw.Tensor(("M", "N"), "float32"), "out": tw.Output(("M", "N"), "float32")',
    "np.exp(x - x.max(1, keepdims=True)) / np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)",
    "return tw.Launch(softmax_kernel, (4,), (out, x, N, N, M, N, config.BLOCK, 2))",
    "BLOCK=128",
    '{"M": 16, "N": 104}',
)

LAYER_NORM = _task(
    """
@triton.jit
def _layer_norm_fwd_fused(X, Y, W, B, stride, N, eps, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    Y += row * stride
    X += row * stride
    mean = 0
    _mean = tl.zeros([BLOCK_SIZE], dtype=tl.float32)
    for off in range(0, N, BLOCK_SIZE):
        cols = off + tl.arange(0, BLOCK_SIZE)
        a = tl.load(X + cols, mask=cols < N, other=0.).to(tl.float32)
        _mean += a
    mean = tl.sum(_mean, axis=0) / N
    _var = tl.zeros([BLOCK_SIZE], dtype=tl.float32)
    for off in range(0, N, BLOCK_SIZE):
        cols = off + tl.arange(0, BLOCK_SIZE)
        x = tl.load(X + cols, mask=cols < N, other=0.).to(tl.float32)
        x = tl.where(cols < N, x - mean, 0.)
        _var += x * x
    var = tl.sum(_var, axis=0) / N
    rstd = 1 / tl.sqrt(var + eps)
    for off in range(0, N, BLOCK_SIZE):
        cols = off + tl.arange(0, BLOCK_SIZE)
        mask = cols < N
        w = tl.load(W + cols, mask=mask)
        b = tl.load(B + cols, mask=mask)
        x = tl.load(X + cols, mask=mask, other=0.).to(tl.float32)
        x_hat = (x - mean) * rstd
        y = x_hat * w + b
        tl.store(Y + cols, y, mask=mask)
""",
    '"x": tw.Tensor(("M", "N"), "float16"), "w": tw.Tensor(("N",), "float16"), "b": tw.Tensor(("N",), "float16"), '
    '"out": tw.Output(("M", "N"), "float16")',
    "(x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * w + b",
    "return tw.Launch(_layer_norm_fwd_fused, (M,), (x, out, w, b, N, N, 1e-5, config.BLOCK))",
    "BLOCK=64",
    '{"M": 8, "N": 144}',
)

BATCHED_MATMUL = _task(
    """
@triton.jit
def bmm(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb,
    stride_cm, stride_cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    batch = tl.program_id(2)
    a_ptr += batch * stride_ab
    b_ptr += batch * stride_bb
    c_ptr += batch * stride_cb
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    A = a_ptr + rm[:, None] * stride_am + rk[None, :] * stride_ak
    B = b_ptr + rk[:, None] * stride_bk + rn[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(K, 0, -BLOCK_K):
        a = tl.load(A, mask=(rm[:, None] < M) & (rk[None, :] < k), other=0.0)
        b = tl.load(B, mask=(rk[:, None] < k) & (rn[None, :] < N), other=0.0)
        acc += tl.dot(a, b)
        A += BLOCK_K * stride_ak
        B += BLOCK_K * stride_bk
    C = c_ptr + rm[:, None] * stride_cm + rn[None, :] * stride_cn
    tl.store(C, acc.to(c_ptr.dtype.element_ty), mask=(rm < M)[:, None] & (rn < N)[None, :])
""",
    '"a": tw.Tensor(("B", "M", "K"), "float16"), "b": tw.Tensor(("B", "K", "N"), "float16"), '
    '"out": tw.Output(("B", "M", "N"), "float16")',
    "a @ b",
    "grid = (triton.cdiv(M, config.BLOCK_M), triton.cdiv(N, config.BLOCK_N), B)\n"
    "    strides = (M * K, K, 1, K * N, N, 1, M * N, N, 1)\n"
    "    return tw.Launch(bmm, grid, (a, b, out, M, N, K, *strides, config.BLOCK_M, config.BLOCK_N, config.BLOCK_K))",
    MATMUL_BLOCKS,
    '{"B": 8, "M": 40, "N": 48, "K": 72}',
)

TRANSPOSED_OPERAND = _task(
    """
@triton.jit
def linear(x_ptr, w_ptr, y_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + offs_m[:, None] * K + offs_k[None, :]
    w_ptrs = w_ptr + offs_n[None, :] * K + offs_k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_ptrs + k, mask=(offs_m[:, None] < M) & (offs_k[None, :] + k < K), other=0.0)
        w = tl.load(w_ptrs + k, mask=(offs_n[None, :] < N) & (offs_k[:, None] + k < K), other=0.0)
        acc += tl.dot(x, w)
    tl.store(y_ptr + offs_m[:, None] * N + offs_n[None, :], acc.to(tl.float16),
             mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))
""",
    '"a": tw.Tensor(("M", "K"), "float16"), "b": tw.Tensor(("N", "K"), "float16"), '
    '"out": tw.Output(("M", "N"), "float16")',
    "a @ b.T",
    "grid = (triton.cdiv(M, config.BLOCK_M), triton.cdiv(N, config.BLOCK_N))\n"
    "    return tw.Launch(linear, grid, (a, b, out, M, N, K, config.BLOCK_M, config.BLOCK_N, config.BLOCK_K))",
    MATMUL_BLOCKS,
    MATMUL_DIMS,
)

HELPER_OFFSETS = _task(
    """
@triton.jit
def block_offsets(pid, BLOCK: tl.constexpr):
    return pid * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def tile_ptrs(base, rows, cols, stride_row, stride_col):
    return base + rows[:, None] * stride_row + cols[None, :] * stride_col


@triton.jit
def scaled_add(x_ptr, y_ptr, out_ptr, M, N, stride_m, stride_n, alpha, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = block_offsets(tl.program_id(0), BLOCK_M)
    cols = block_offsets(tl.program_id(1), BLOCK_N)
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    x = tl.load(tile_ptrs(x_ptr, rows, cols, stride_m, stride_n), mask=inside, other=0.0)
    y = tl.load(tile_ptrs(y_ptr, rows, cols, stride_m, stride_n), mask=inside, other=0.0)
    tl.store(tile_ptrs(out_ptr, rows, cols, stride_m, stride_n), x + alpha * y, mask=inside)
""",
    '"x": tw.Tensor(("M", "N"), "float32"), "y": tw.Tensor(("M", "N"), "float32"), '
    '"out": tw.Output(("M", "N"), "float32")',
    "x + 2.0 * y",
    "grid = (triton.cdiv(M, config.BLOCK_M), triton.cdiv(N, config.BLOCK_N))\n"
    "    return tw.Launch(scaled_add, grid, (x, y, out, M, N, N, 1, 2.0, config.BLOCK_M, config.BLOCK_N))",
    "BLOCK_M=16, BLOCK_N=32",
    '{"M": 40, "N": 72}',
)

INT64_OFFSETS = _task(
    """
@triton.jit
def gelu_rows(x_ptr, y_ptr, n_rows, n_cols, stride, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    pid = tl.program_id(0).to(tl.int64)
    rows = pid * BLOCK_M + tl.arange(0, BLOCK_M).to(tl.int64)
    for start in range(0, n_cols, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = (rows < n_rows)[:, None] & (cols < n_cols)[None, :]
        offsets = rows[:, None] * stride + cols[None, :]
        x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
        y = x * tl.sigmoid(1.702 * x)
        tl.store(y_ptr + offsets, y, mask=mask)
""",
    '"x": tw.Tensor(("M", "N"), "float32"), "out": tw.Output(("M", "N"), "float32")',
    "x / (1 + np.exp(-1.702 * x))",
    "return tw.Launch(gelu_rows, (triton.cdiv(M, config.BLOCK_M),), (x, out, M, N, N, config.BLOCK_M, config.BLOCK_N))",
    "BLOCK_M=16, BLOCK_N=32",
    '{"M": 40, "N": 72}',
)

MASKS_BY_CDIV = _task(
    """
@triton.jit
def gemm(A, B, C, M, N, K, lda, ldb, ldc, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    tiles_n = tl.cdiv(N, BLOCK_N)
    pid = tl.program_id(0)
    m = (pid // tiles_n) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (pid % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    m_mask, n_mask = m < M, n < N
    pa = A + m[:, None] * lda + k[None, :]
    pb = B + k[:, None] * ldb + n[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for i in range(tl.cdiv(K, BLOCK_K)):
        k_mask = k < K - i * BLOCK_K
        a = tl.load(pa, m_mask[:, None] & k_mask[None, :], 0.0)
        acc = tl.dot(a, tl.load(pb, k_mask[:, None] & n_mask[None, :], 0.0), acc)
        pa += BLOCK_K
        pb += BLOCK_K * ldb
    tl.store(C + m[:, None] * ldc + n[None, :], acc.to(tl.float16), m_mask[:, None] & n_mask[None, :])
""",
    MATMUL_TENSORS,
    "a @ b",
    "grid = (triton.cdiv(M, config.BLOCK_M) * triton.cdiv(N, config.BLOCK_N),)\n"
    "    return tw.Launch(gemm, grid, (a, b, out, M, N, K, K, N, N, config.BLOCK_M, config.BLOCK_N, config.BLOCK_K))",
    MATMUL_BLOCKS,
    MATMUL_DIMS,
)

STRIDES_AS_ARGUMENTS = _task(
    """
@triton.jit
def add_bias(x_ptr, bias_ptr, y_ptr, M, N, x_stride_m, x_stride_n, y_stride_m, y_stride_n,
             BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    pid = tl.program_id(0)
    num_n = (N + BLOCK_N - 1) // BLOCK_N
    pid_m = pid // num_n
    pid_n = pid - pid_m * num_n
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    ok = (rm < M) & (rn < N)
    x = tl.load(x_ptr + rm * x_stride_m + rn * x_stride_n, mask=ok)
    bias = tl.load(bias_ptr + rn, mask=rn < N)
    tl.store(y_ptr + rm * y_stride_m + rn * y_stride_n, x + bias, mask=ok)
""",
    '"x": tw.Tensor(("M", "N"), "float32"), "b": tw.Tensor(("N",), "float32"), "out": tw.Output(("M", "N"), "float32")',
    "x + b",
    "grid = (triton.cdiv(M, config.BLOCK_M) * triton.cdiv(N, config.BLOCK_N),)\n"
    "    return tw.Launch(add_bias, grid, (x, b, out, M, N, N, 1, N, 1, config.BLOCK_M, config.BLOCK_N))",
    "BLOCK_M=16, BLOCK_N=32",
    '{"M": 40, "N": 72}',
)

PROGRAM_ID_1 = _task(
    """
@triton.jit
def swiglu(gate_up_ptr, out_ptr, N, stride_in, stride_out, BLOCK: tl.constexpr):
    row, col_block = tl.program_id(0), tl.program_id(1)
    cols = col_block * BLOCK + tl.arange(0, BLOCK)
    keep = cols < N
    gate = tl.load(gate_up_ptr + row * stride_in + cols, mask=keep, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * stride_in + N + cols, mask=keep, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * stride_out + cols, gate * tl.sigmoid(gate) * up, mask=keep)
""",
    '"x": tw.Tensor(("M", "W"), "float16"), "out": tw.Output(("M", "N"), "float16")',
    "x[:, :x.shape[1] // 2] / (1 + np.exp(-x[:, :x.shape[1] // 2])) * x[:, x.shape[1] // 2:]",
    "return tw.Launch(swiglu, (M, triton.cdiv(N, config.BLOCK)), (x, out, N, W, N, config.BLOCK))",
    "BLOCK=64",
    '{"M": 8, "N": 104, "W": 208}',
).replace("W % 8 == 0", "W == 2 * N")

POINTER_INCREMENTS = _task(
    """
@triton.jit
def column_sum(x_ptr, out_ptr, M, N, stride_m, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.arange(0, BLOCK_M)
    ptrs = x_ptr + rows[:, None] * stride_m + cols[None, :]
    total = tl.zeros([BLOCK_N], dtype=tl.float32)
    left = M
    while left > 0:
        x = tl.load(ptrs, mask=(rows[:, None] < left) & (cols[None, :] < N), other=0.0)
        total += tl.sum(x, axis=0)
        ptrs += BLOCK_M * stride_m
        left -= BLOCK_M
    tl.store(out_ptr + cols, total, mask=cols < N)
""",
    '"x": tw.Tensor(("M", "N"), "float32"), "out": tw.Output(("N",), "float32")',
    "x.sum(0)",
    "grid = (triton.cdiv(N, config.BLOCK_N),)\n"
    "    return tw.Launch(column_sum, grid, (x, out, M, N, N, config.BLOCK_M, config.BLOCK_N))",
    "BLOCK_M=16, BLOCK_N=32",
    '{"M": 40, "N": 72}',
)

RECOMPUTED_POINTERS = _task(
    """
@triton.jit
def mm(x_ptr, w_ptr, y_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    pid_n = tl.program_id(0)
    pid_m = tl.program_id(1)
    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start_k in tl.range(0, K, BLOCK_K):
        offs_k = start_k + tl.arange(0, BLOCK_K)
        x_tile = x_ptr + (offs_m[:, None] * K + offs_k[None, :])
        w_tile = w_ptr + (offs_k[:, None] * N + offs_n[None, :])
        x = tl.load(x_tile, mask=(offs_m[:, None] < M) & (offs_k[None, :] < K), other=0)
        w = tl.load(w_tile, mask=(offs_k[:, None] < K) & (offs_n[None, :] < N), other=0)
        acc = tl.dot(x, w, acc=acc)
    y_tile = y_ptr + (offs_m[:, None] * N + offs_n[None, :])
    tl.store(y_tile, acc.to(y_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))
""",
    MATMUL_TENSORS,
    "a @ b",
    "grid = (triton.cdiv(N, config.BLOCK_N), triton.cdiv(M, config.BLOCK_M))\n"
    "    return tw.Launch(mm, grid, (a, b, out, M, N, K, config.BLOCK_M, config.BLOCK_N, config.BLOCK_K))",
    MATMUL_BLOCKS,
    MATMUL_DIMS,
)

STYLES = {
    "matmul_tutorial": MATMUL_TUTORIAL, "softmax_rows": SOFTMAX_ROWS, "layer_norm": LAYER_NORM,
    "batched_matmul": BATCHED_MATMUL, "transposed_operand": TRANSPOSED_OPERAND, "helper_offsets": HELPER_OFFSETS,
    "int64_offsets": INT64_OFFSETS, "masks_by_cdiv": MASKS_BY_CDIV, "strides_as_arguments": STRIDES_AS_ARGUMENTS,
    "program_id_1": PROGRAM_ID_1, "pointer_increments": POINTER_INCREMENTS, "recomputed_pointers": RECOMPUTED_POINTERS,
}  # fmt: skip
