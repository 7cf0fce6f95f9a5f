"""Triton on Tile IR: existing Triton kernels, compiled through CUDA Tile IR."""

from __future__ import annotations

from tilewright.specialists.base import Need
from tilewright.specialists.kernels import KernelSpecialist
from tilewright.specialists.needs import need_of_gpu, need_of_package


class TritonOnTileIr(KernelSpecialist):
    name = "tileir"
    order = 50
    aliases = ("kernel-tileir-specialist",)
    domain = (
        "Triton kernels compiled through Tile IR (the TileIR back end, nvtriton, ENABLE_TILE=1). It never writes a "
        "kernel: where no Triton kernel exists, triton writes it first"
    )
    returns = "whether Tile IR takes the kernel; its verdict; the race of Triton's own compiler against Tile IR"
    names = ("tileir", "tile ir", "cuda tile ir", "nvtriton", "enable tile")
    examples = (
        "Convert Triton kernel to TileIR",
        "set ENABLE_TILE=1 on my kernel k.py",
        "Add TileIR configs to fused_gelu.py for Blackwell",
    )
    language = "triton"
    from_references = False
    only = ("tile_ir_route", "descriptors")
    stated = "Blackwell (sm_100) and newer, of NVIDIA's own back end nvtriton"

    def needs(self) -> tuple[Need, ...]:
        compiler = need_of_package("nvidia-cuda-tileiras", "pip install 'cuda-tile[tileiras]'")
        return (need_of_package("triton", "pip install 'triton>=3.6,<3.10'"), compiler, need_of_gpu())


SPECIALIST = TritonOnTileIr()
