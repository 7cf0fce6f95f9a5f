"""Small kernels in CuTe DSL. Imported only where nvidia-cutlass-dsl is installed."""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

THREADS = 128


@cute.kernel
def added(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, SCALE: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    place = block * THREADS + thread
    if place < cute.size(out):
        out[place] = a[place] * SCALE + b[place]


@cute.jit
def add(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, SCALE: cutlass.Constexpr, stream: cuda.CUstream):
    grid = (cute.ceil_div(cute.size(out), THREADS), 1, 1)
    added(a, b, out, SCALE).launch(grid=grid, block=(THREADS, 1, 1), stream=stream)
