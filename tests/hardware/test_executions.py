"""How often the loops of a code run, from the work that its launch must do."""

from __future__ import annotations

import pytest

from tilewright.hardware.architectures import board
from tilewright.hardware.executions import Executions, Work, shape_of, tile_elements
from tilewright.records import CodeLoop, MachineCode

PRODUCT = Work(flops=2 * 2048**3, bytes=3 * 4 * 2048**2, dtype="tfloat32", written=4 * 2048**2)


@pytest.mark.parametrize("spilled", [{}, {"local load": 630, "local store": 529}])
def test_a_product_on_the_cuda_cores_is_one_however_much_it_spills(spilled: dict[str, int]) -> None:
    """The H200 took 15.3 ms for a code whose loop has 1,056 float32 instructions and 1,159 of spills: 0.47 ms were
    predicted, since the loop counted once."""
    loop = CodeLoop(None, {"shared load": 48, "float32": 1056, **spilled}, {"LDS.128": 48}, 0.0)
    code = MachineCode(
        symbol="matmul", sm=90, registers=40, stack_bytes=1536, shared_bytes=45112, threads=384, cluster=1,
        local_loads=0, local_stores=0, tensor_path="none", tensor_instructions=0, instructions=2662,
        copies={"UTMALDG.2D": 5, "LDS.128": 48}, code_hash="", mix=dict(loop.mix), loops=(loop,),
    )  # fmt: skip
    grid = (16, 32)
    executed = Executions(code, shape_of(code, grid, board("H200")), PRODUCT)
    blocks, fma_of_a_warp = 16 * 32, 2 * 32 * 1056
    assert executed.runs[1] == pytest.approx(PRODUCT.flops / (blocks * executed.warps * fma_of_a_warp))
    assert executed.runs[1] > 10


@pytest.mark.parametrize(
    ("copies", "threads", "elements"),
    [
        ({"STSM.128": 16, "UTMALDG.2D": 3, "UTMASTG.2D": 2}, 256, 128 * 128),
        ({"STSM.128": 16, "UTMALDG.2D": 3, "UTMASTG.2D": 4}, 256, 128 * 128),  # each box in two halves
        ({"STSM.128": 16, "UTMALDG.2D": 3, "UTMASTG.2D": 4}, 384, 256 * 128),
        ({"STSM.128": 16, "UTMALDG.2D": 3, "UTMASTG.2D": 6}, 256, 64 * 128),  # two copies, one of them in halves
        ({"LDS.32": 33, "STS.32": 42, "STS.64": 3, "STSM.128": 16, "UTMALDG.2D": 6, "UTMASTG.2D": 1}, 256, 128 * 128),
    ],
)
def test_the_tile_that_a_cta_writes(copies: dict[str, int], threads: int, elements: int) -> None:
    """Codes of products whose tiles are known (an H200, 2026-11-23). The last one makes its descriptors itself."""
    loops = (
        CodeLoop(None, {"tensor": 8}, {}, 524288.0),
        CodeLoop(None, {"asynchronous copy": 3}, {"UTMALDG.2D": copies["UTMALDG.2D"]}, 0.0),
    )
    code = MachineCode(
        symbol="matmul", sm=90, registers=168, stack_bytes=0, shared_bytes=196760, threads=threads, cluster=1,
        local_loads=0, local_stores=0, tensor_path="HGMMA", tensor_instructions=8, instructions=900, copies=copies,
        code_hash="", mix={"tensor": 8}, tensor_flops=524288.0, loops=loops,
    )  # fmt: skip
    assert tile_elements(code, shape_of(code, (1024,), board("H200"))) == elements
