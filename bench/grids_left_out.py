"""For how many launches of TileGym's kernels the grid is found if `tilewright.tuned` is not given it.

    python bench/grids_left_out.py OUT.json [--set-aside]

Needs TileGym 1.5.1 on the path (`pip install --no-deps tilegym==1.5.1`) and torch, and no GPU: TileGym's own functions
run on tensors of the CPU, forward and backward, and their launches are kept and not made. Each grid is then found
without the launch's own, and compared with it. ``same``: equal. ``part``: a part of it that stores all elements.
``refused``: an error that asks for the grid. ``wrong``: anything else. ``--set-aside`` takes the kernels that are named
in ``grids_set_aside.txt``; nothing was changed for them.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import cuda.tile as ct
import torch
from captured_kinds import without_a_gpu
from common import made_here, write

from tilewright.errors import GridNotFound
from tilewright.runtime.search.cutile_trials import CuTileTrial
from tilewright.runtime.wrapper.left_out_grid import found_grid

OPS, SUITES = "tilegym.ops.cutile", "tilegym.suites"
SET_ASIDE = Path(__file__).with_name("grids_set_aside.txt")


def ones(*shape: int, dtype: torch.dtype = torch.bfloat16, grad: bool = True) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, requires_grad=grad)


def numbers(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def called(module: str, function: str, *args: Any, **options: Any) -> None:
    """Calls a function of TileGym, and its backward pass, as far as it runs without a result of the forward pass."""
    result = getattr(import_module(module), function)(*args, **options)
    for each in result if isinstance(result, tuple) else (result,):
        if isinstance(each, torch.Tensor) and each.requires_grad:
            with suppress(NotImplementedError):
                each.backward(torch.ones_like(each), retain_graph=True)


CALLS: dict[str, Callable[[str], None]] = {
    f"{OPS}.rms_norm": lambda m: called(m, "rms_norm", ones(1000, 1024), (1024,), ones(1024), 1e-5),
    f"{OPS}.softmax": lambda m: called(m, "softmax", ones(1000, 1000)),
    f"{OPS}.matmul": lambda m: called(m, "matmul", ones(1000, 512), ones(512, 700)),
    f"{OPS}.silu_and_mul": lambda m: called(m, "silu_and_mul", ones(500, 2048)),
    f"{OPS}.transpose": lambda m: called(m, "transpose", ones(1000, 700, grad=False)),
    f"{OPS}.bmm": lambda m: called(m, "bmm", ones(4, 300, 256), ones(4, 256, 500)),
    f"{SUITES}.liger.cutile.swiglu": lambda m: called(m, "swiglu", ones(300, 1100), ones(300, 1100)),
    f"{SUITES}.liger.cutile.layer_norm": lambda m: called(
        m, "layer_norm", ones(1000, 768), ones(768), ones(768), 1e-5
    ),
    f"{SUITES}.liger.cutile.softmax": lambda m: called(m, "softmax", ones(1000, 1000)),
    f"{SUITES}.liger.cutile.kl_div": lambda m: [
        called(m, "kl_div", ones(500, 3000, dtype=torch.float32), ones(500, 3000, dtype=torch.float32), reduction=how)
        for how in ("none", "batchmean")
    ] and None,
    f"{SUITES}.liger.cutile.dyt": lambda m: called(m, "dyt", ones(500, 1100), ones(1), ones(1100), ones(1100)),
    f"{SUITES}.liger.cutile.rope": lambda m: called(
        m, "rope", ones(2, 8, 100, 64), ones(2, 4, 100, 64), ones(1, 100, 64, grad=False), ones(1, 100, 64, grad=False)
    ),
    f"{SUITES}.unsloth.cutile.rms_layernorm": lambda m: called(m, "rms_layernorm", ones(4, 100, 1000), ones(1000)),
    f"{SUITES}.unsloth.cutile.geglu": lambda m: [
        called(m, f"geglu_{kind}_forward", ones(2, 100, 1000), ones(2, 100, 1000)) for kind in ("exact", "approx")
    ] and None,
    f"{SUITES}.unsloth.cutile.cross_entropy_loss": lambda m: called(
        m, "cross_entropy_loss", ones(2, 50, 1000), numbers(2, 50)
    ),
    f"{SUITES}.flashinfer.cutile.gemm.gemm_alpha_beta": lambda m: called(
        m, "gemm_alpha_beta", ones(500, 256, grad=False), ones(700, 256, grad=False), ones(500, 700, grad=False)
    ),
}  # fmt: skip
"""A call for each module. Those that are not set aside were used while the search for grids was written."""


def launches_of(module: str) -> tuple[list[tuple[Sequence[int], Any, tuple[Any, ...]]], str]:
    """Returns the launches of a module's call, and the error that ended the call."""
    launches: list[Any] = []
    with without_a_gpu(), mock.patch.object(ct, "launch", lambda _, *launch: launches.append(launch)):
        try:
            CALLS[module](module)
        except Exception as error:
            return launches, f"{type(error).__name__}: {error}"
    return launches, ""


def judged(grid: Sequence[int], kernel: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    own = [*grid, 1, 1][:3]
    row: dict[str, Any] = {"kernel": kernel._pyfunc.__name__, "grid": own}
    started = time.perf_counter()
    try:
        found = found_grid("kernel", CuTileTrial(None, "", kernel, (1,), lambda: args, {}), (), "sm_90")
        within = all(one <= most for one, most in zip(found, own, strict=True))
        row |= {"found": list(found), "verdict": "same" if [*found] == own else "part" if within else "wrong"}
    except GridNotFound as error:
        row |= {"verdict": "refused", "why": str(error)}
    return row | {"seconds": round(time.perf_counter() - started, 2)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", nargs="?")
    parser.add_argument("--set-aside", action="store_true")
    chosen = parser.parse_args()
    aside = [line for line in SET_ASIDE.read_text().split("\n") if line and not line.startswith("#")]
    rows = []
    for module in aside if chosen.set_aside else [name for name in CALLS if name not in aside]:
        launches, error = launches_of(module)
        if error or not launches:
            print(f"{module}: ended with {error or 'no launch'}")
            rows.append({"module": module, "error": error or "no launch"})
        for launch in launches:
            rows.append({"module": module, **judged(*launch)})
            print(rows[-1])
    counts = dict(Counter(row["verdict"] for row in rows if "verdict" in row))
    print(counts)
    write(chosen.out, {**made_here(), "counts": counts, "rows": rows})


if __name__ == "__main__":
    main()
