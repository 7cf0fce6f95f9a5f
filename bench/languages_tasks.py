"""The tasks of `languages.py`: operations with an implementation in cuTile and others in Triton.

Softmax, norms and SwiGLU are kernels that `tilewright new --write` writes, in both languages. RoPE and the matmul are
the examples' in cuTile, and Triton kernels of the same form. Each Triton implementation goes by one compiler: Triton's
own (``triton_ptx``), or Tile IR (``triton_tileir``).
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import triton
import triton.language as tl

sys.path.append(str(Path(__file__).parent))

import tileir_matmul_sweep as sweep

import tilewright as tw
from tilewright.specialists.writing.writing import source_of, write_task
from tilewright.task.loading import load_task

EXAMPLES = Path(__file__).parent.parent / "examples"
ROUTES = ("ptx", "tileir")
Dims: TypeAlias = Mapping[str, Any]


@triton.jit
def rope_rows(
    x, cosine, sine, rotated, heads, positions, HALF: tl.constexpr, TILE_H: tl.constexpr, TILE_S: tl.constexpr
):  # fmt: skip
    """One program rotates TILE_H heads at TILE_S positions of one sequence."""
    position = tl.program_id(0) * TILE_S + tl.arange(0, TILE_S)[None, :, None]
    head = tl.program_id(1) * TILE_H + tl.arange(0, TILE_H)[:, None, None]
    column = tl.arange(0, HALF)[None, None, :]
    inside = (position < positions) & (head < heads)
    angle = position * HALF + column
    cos = tl.load(cosine + angle, mask=position < positions, other=0.0)
    sin = tl.load(sine + angle, mask=position < positions, other=0.0)
    row = (tl.program_id(2).to(tl.int64) * heads + head) * positions + position
    at = row * (2 * HALF) + column
    first = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x + at + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(rotated + at, first * cos - second * sin, mask=inside)
    tl.store(rotated + at + HALF, second * cos + first * sin, mask=inside)


def launch_rope(x, cosine, sine, rotated, B, H, S, D, config):
    grid = (triton.cdiv(S, config.TILE_S), triton.cdiv(H, config.TILE_H), B)
    return tw.Launch(rope_rows, grid, (x, cosine, sine, rotated, H, S, D // 2, config.TILE_H, config.TILE_S))


def by_route(launch: Callable[..., tw.Launch], space: tw.Space, dims: Dims) -> dict[str, tw.Implementation]:
    """Splits the configurations of a Triton kernel by their compiler."""
    implementations = {}
    for route in ROUTES:
        points = [dict(each) for each in space.configurations(90, dims) if each["route"] == route]
        own = tw.Space(constants=space.constants, hints=space.hints, shipped=points[0], only=points)
        implementations[f"triton_{route}"] = tw.Implementation(launch=launch, space=own)
    return implementations


def several(name: str, cutile: tw.Task, of_triton: Mapping[str, tw.Implementation], dims: Dims) -> tw.Task:
    return tw.Task(
        name=name, tensors=cutile.tensors, reference=cutile.reference, flops=cutile.flops, serves=cutile.serves,
        independent=cutile.independent, workloads={"large": dims},
        implementations={"cutile": tw.Implementation(launch=cutile.launch, space=cutile.space), **of_triton},
    )  # fmt: skip


@functools.cache
def folder() -> Path:
    """Where the written kernels lie until this process ends."""
    kept = tempfile.TemporaryDirectory(prefix="languages-")
    folder.kept = kept  # type: ignore[attr-defined]  # removed with the process
    return Path(kept.name)


def written(operation: str) -> tw.Task:
    tasks = {}
    for language in ("cutile", "triton"):
        file = folder() / f"{operation}_{language}.py"
        file.write_text(write_task(source_of(operation.replace("_", " ")), language, file.name).text)
        tasks[language] = load_task(str(file))
    dims = tasks["cutile"].workloads["large"]
    return several(operation, tasks["cutile"], by_route(tasks["triton"].launch, tasks["triton"].space, dims), dims)


def rope() -> tw.Task:
    space = tw.Space(
        constants={"TILE_H": (1, 2, 4, 8), "TILE_S": (4, 16)},
        hints={"route": ROUTES, "num_warps": (None, 4, 8), "occupancy": (None, 8)},
        shipped={"TILE_H": 1, "TILE_S": 16, "route": "ptx", "num_warps": 4, "occupancy": None},
        where=[lambda route, num_warps, occupancy: occupancy is None if route == "ptx" else num_warps is None],
    )
    dims = {"B": 4, "H": 32, "S": 4096, "D": 128}
    return several("rope", load_task(str(EXAMPLES / "rope.py")), by_route(launch_rope, space, dims), dims)


def matmul() -> tw.Task:
    swept = load_task(str(sweep.TASK))
    tile_ir = sweep.forms(
        swept, sweep.LARGE[:3], FORM=("host", "descriptors"), route=("tileir",), num_warps=(None,), num_stages=(6, 8),
        num_worker_warps=(8,), BLOCKS_PER_SM=(None, 1),
    )  # fmt: skip
    implementations = {}
    for name, configurations in (("triton_ptx", sweep.by_ptx(swept)), ("triton_tileir", tile_ir)):
        points = [dict(each) for each in configurations]
        own = tw.Space(constants=swept.space.constants, hints=swept.space.hints, shipped=points[0], only=points)
        implementations[name] = tw.Implementation(launch=swept.launch, space=own)
    return several("matmul", load_task(str(EXAMPLES / "matmul.py")), implementations, {"M": 4096, "N": 4096, "K": 4096})


softmax, rms_norm, layer_norm, swiglu = map(written, ("softmax", "rms_norm", "layer_norm", "swiglu"))
rope, matmul = rope(), matmul()
