"""Small kernels in CuTe DSL. Imported only where nvidia-cutlass-dsl is installed."""

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


@cute.jit
def add_twice(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, SCALE: cutlass.Constexpr, stream: cuda.CUstream):
    added(a, b, out, SCALE).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream)
    added(a, b, out, SCALE).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream)


@cute.jit
def add_in_a_loop(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, SCALE: cutlass.Constexpr, stream: cuda.CUstream):
    for _ in range(2):
        added(a, b, out, SCALE).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream)


@cute.jit
def no_stream(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, SCALE: cutlass.Constexpr):
    added(a, b, out, SCALE).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@cute.kernel
def misspelt(a: cute.Tensor):
    a[0] = misspelled  # noqa: F821


@cute.jit
def wrong(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, SCALE: cutlass.Constexpr, stream: cuda.CUstream):
    misspelt(a).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream)


@cute.kernel
def filled(out: cute.Tensor, value: cutlass.Float32):
    out[cute.arch.thread_idx()[0]] = value


@cute.jit
def fill(out: cute.Tensor, value: cutlass.Float32, stream: cuda.CUstream):
    filled(out, value).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream)
