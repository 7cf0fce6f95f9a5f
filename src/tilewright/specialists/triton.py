"""Triton: kernels in Triton, compiled by Triton's own compiler."""

from __future__ import annotations

from tilewright.specialists.base import Need
from tilewright.specialists.kernels import KernelSpecialist
from tilewright.specialists.needs import need_of_gpu, need_of_package


class TritonKernels(KernelSpecialist):
    name = "triton"
    order = 40
    aliases = ("kernel-triton-specialist",)
    domain = (
        "kernels in Triton (@triton.jit): write, port, tune, repair. It also writes a new kernel for which the "
        "question names no language"
    )
    returns = "the kernel as a patch; its verdict against a float64 reference; the race against the code before it"
    names = ("triton", "tl dot", "tl load", "tl store", "tl constexpr", "openai triton")
    examples = (
        "Write a Triton kernel for fused SiLU-mul",
        "rewrite my CuTe kernel in Triton",
        "num_warps of my Triton GEMM",
        "Triton fusion",
    )
    language = "triton"
    stated = "Ampere and newer (sm_80)"

    def needs(self) -> tuple[Need, ...]:
        return (need_of_package("triton", "pip install 'triton>=3.6,<3.10'"), need_of_gpu())


SPECIALIST = TritonKernels()
