"""CuTe DSL: kernels in the Python language of CUTLASS 4. CuTe DSL is neither Triton nor Tile IR."""

from __future__ import annotations

from tilewright.specialists.base import Need, Specialist
from tilewright.specialists.needs import need_of_gpu, need_of_package


class CuTeDslKernels(Specialist):
    name = "cute-dsl"
    order = 60
    aliases = ("kernel-cute-specialist", "cute")
    domain = "kernels in CuTe DSL, the Python language of CUTLASS 4: write, port, tune, repair"
    returns = "the kernel as a patch; its verdict against a float64 reference; the race against the code before it"
    names = ("cute dsl", "cutedsl", "cutlass", "=CuTe", "cutlass cute", "cute jit", "cute kernel")
    near = ("cute",)
    examples = (
        "Generate CuTe DSL kernel for the GEMM operation",
        "do not use Triton, write it in CuTe DSL",
        "why does my CUTLASS Python kernel spill?",
    )
    writes_kernels = True
    stated = "Ampere and newer (sm_80); products of matrices Blackwell (sm_100) and newer"

    def needs(self) -> tuple[Need, ...]:
        built = Need("a language 'cutedsl' in Tilewright", False, "not built yet: give a kernel as a proposed change")
        return (need_of_package("nvidia-cutlass-dsl"), need_of_gpu(), built)


SPECIALIST = CuTeDslKernels()
