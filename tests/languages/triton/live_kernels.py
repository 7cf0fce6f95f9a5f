"""Kernels that touch their arrays in different ways."""

import triton
import triton.language as tl


@triton.jit
def copied(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def counted(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at)
    tl.store(x + at, values * 2)
    tl.atomic_add(y, tl.sum(values, 0))


@triton.jit
def summed(x, y, n, BLOCK: tl.constexpr):
    at, total = x + tl.arange(0, BLOCK), tl.zeros([BLOCK], tl.float32)
    for _ in range(0, n, BLOCK):
        total += tl.load(at)
        at += BLOCK
    tl.store(y + tl.arange(0, BLOCK), total)


@triton.jit
def chosen(x, y, z, first, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(0) > first:
        values = tl.load(x + at)
    else:
        values = tl.load(y + at)
    tl.store(z + at, values)


@triton.jit
def moved(source, target):
    target.store([tl.program_id(0) * 16, 0], source.load([tl.program_id(0) * 16, 0]) * 2)


@triton.jit
def assembly(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.inline_asm_elementwise(
        "ld.global.f32 $0, [$1];", "=r,l", [x + at], dtype=tl.float32, is_pure=False, pack=1
    )
    tl.atomic_add(y + at, values)


@triton.jit
def indirect(x, y, z, BLOCK: tl.constexpr):
    """``x`` holds addresses of other arrays."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(x).to(tl.pointer_type(tl.float32))
    tl.store(z + at, tl.load(source + at) + tl.load(y + at))
