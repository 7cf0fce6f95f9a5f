"""CuTe DSL: kernels in the Python language of CUTLASS 4. CuTe DSL is neither Triton nor Tile IR."""

from __future__ import annotations

from tilewright.specialists.base import Need, Specialist
from tilewright.specialists.delegation import Delegation
from tilewright.specialists.kernels import KernelSpecialist
from tilewright.specialists.needs import need_of_gpu, need_of_package
from tilewright.specialists.proposal import NoProposal, ProgramProposal


class CuTeDslKernels(KernelSpecialist):
    name = "cute-dsl"
    order = 60
    aliases = ("kernel-cute-specialist", "cute")
    domain = (
        "kernels in CuTe DSL, the Python language of CUTLASS 4: write element-wise kernels and products of matrices, "
        "tune, repair. Without a GPU, kernels are compiled and predicted, but not checked"
    )
    returns = "the kernel as a patch; its verdict against a float64 reference; the race against the code before it"
    names = ("cute dsl", "cutedsl", "cutlass", "=CuTe", "cutlass cute", "cute jit", "cute kernel")
    near = ("cute",)
    examples = (
        "Generate CuTe DSL kernel for the GEMM operation",
        "do not use Triton, write it in CuTe DSL",
        "why does my CUTLASS Python kernel spill?",
    )
    language = "cutedsl"
    stated = "Ampere and newer (sm_80); products of matrices Blackwell (sm_100) and newer"

    def needs(self) -> tuple[Need, ...]:
        fix = "pip install 'tilewright[cutedsl]', under NVIDIA's own licence"
        return (need_of_package("nvidia-cutlass-dsl", fix), need_of_gpu())

    def propose(self, delegation: Delegation) -> tuple[ProgramProposal, ...] | NoProposal:
        return Specialist.propose(self, delegation)  # changes of a program launch through the language's own launcher


SPECIALIST = CuTeDslKernels()
