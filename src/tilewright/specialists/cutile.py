"""cuTile: kernels in cuTile Python, which CUDA Tile IR compiles."""

from __future__ import annotations

from tilewright.specialists.base import Need
from tilewright.specialists.kernels import KernelSpecialist
from tilewright.specialists.needs import need_of_gpu, need_of_package


class CuTileKernels(KernelSpecialist):
    name = "cutile"
    order = 30
    aliases = ("kernel-cutile-specialist",)
    domain = (
        "kernels in cuTile Python (cuda.tile, TileGym), also the Tile IR of such a kernel: write, port, tune, repair"
    )
    returns = "the kernel as a patch; its verdict against a float64 reference; the race against the code before it"
    names = (
        "cutile", "cu tile", "cuda tile", "ct kernel", "ct launch", "ct load", "ct mma", "tilegym", "tileiras",
        "cutile python",
    )  # fmt: skip
    examples = (
        "my cuTile kernel is slow",
        "tune ops/cutile/softmax.py",
        "look at the Tile IR of my cuTile kernel",
        "port this CUDA kernel to cuTile",
    )
    language = "cutile"

    def needs(self) -> tuple[Need, ...]:
        compiler = need_of_package("nvidia-cuda-tileiras", "pip install 'cuda-tile[tileiras]'")
        return (need_of_package("cuda-tile"), compiler, need_of_gpu())


SPECIALIST = CuTileKernels()
