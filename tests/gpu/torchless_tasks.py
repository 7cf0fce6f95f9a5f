"""Tasks without a trusted implementation, whose worker needs no torch."""

import cuda.tile as ct

import tilewright as tw


@ct.kernel
def scale(x, y, TILE: ct.Constant[int], COLUMNS: ct.Constant[int], FACTOR: ct.Constant[int]):
    tile = ct.load(x, (ct.bid(0), 0), (TILE, COLUMNS))
    ct.store(y, (ct.bid(0), 0), (tile.astype(ct.float32) * FACTOR).astype(y.dtype))


def task_of(dtype: str, **more: object) -> tw.Task:
    return tw.Task(
        name=f"scaled_{dtype}",
        tensors={"x": tw.Tensor(("M", "N"), dtype), "y": tw.Output(("M", "N"), dtype, **more)},
        reference=lambda x: 2 * x,
        launch=lambda x, y, M, N, config: tw.Launch(
            scale, (-(-M // config.TILE),), (x, y, config.TILE, N, config.FACTOR)
        ),
        flops=lambda M, N: M * N,
        independent=("M",),
        space=tw.Space(constants={"TILE": (2, 4, 8), "FACTOR": (2, 3)}, shipped={"TILE": 4, "FACTOR": 2}),
        workloads={"small": {"M": 256, "N": 64}, "longer": {"M": 272, "N": 64}, "large": {"M": 16384, "N": 1024}},
    )


bf16 = task_of("bfloat16")
fp16 = task_of("float16")
fp32 = task_of("float32")
fp8 = task_of("float8_e4m3fn")
in_place = task_of("float32", in_place_of="x")
