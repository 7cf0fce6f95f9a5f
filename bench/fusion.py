"""Fuses the pairs of kernels that were set aside (bench/fusion_set_aside.txt), and says for each what came of it.

    python -m bench.fusion

Needs no GPU: the launches are recorded, but not made. The task of each fused kernel is checked by the interpreter.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda.tile as ct
import torch

from tilewright.errors import TilewrightError
from tilewright.runtime.capture import capture, record
from tilewright.runtime.capture.fuse import fused_task
from tilewright.runtime.capture.pairs import pairs
from tilewright.task.loading import load_task
from tilewright.verify.check import check

Launches = list[tuple[Any, tuple[int, ...], tuple[Any, ...]]]


@ct.kernel
def bias_tanh(x, bias, out, ROWS: ct.Constant[int], TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    place = (ct.bid(0), ct.bid(1))
    shift = ct.load(bias, (place[1],), (TILE,))
    ct.store(out, place, ct.tanh(ct.load(x, place, (ROWS, TILE)) + shift).astype(ct.float16))


@ct.kernel
def layer_norm(x, weight, bias, out, eps: float, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    row, columns = ct.bid(0), x.shape[1]
    sums, squares = ct.zeros((1, TILE), ct.float32), ct.zeros((1, TILE), ct.float32)
    for j in range(ct.cdiv(columns, TILE)):
        part = ct.astype(ct.load(x, index=(row, j), shape=(1, TILE), padding_mode=ct.PaddingMode.ZERO), ct.float32)
        sums += part
        squares += part * part
    mean = ct.sum(sums, 1, keepdims=True) / columns
    inverse = ct.rsqrt(ct.sum(squares, 1, keepdims=True) / columns - mean * mean + eps)
    for j in range(ct.cdiv(columns, TILE)):
        part = ct.astype(ct.load(x, index=(row, j), shape=(1, TILE), padding_mode=ct.PaddingMode.ZERO), ct.float32)
        factor, shift = ct.load(weight, (j,), (TILE,)), ct.load(bias, (j,), (TILE,))
        ct.store(out, (row, j), ((part - mean) * inverse * factor + shift).astype(out.dtype))


@ct.kernel
def clamped(x, residual, out, limit: float, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    row, column = ct.bid(0), ct.bid(1)
    total = ct.load(x, (row, column), (1, TILE)).astype(ct.float32)
    total = total + ct.load(residual, (row, column), (1, TILE)).astype(ct.float32)
    ct.store(out, (row, column), ct.minimum(ct.maximum(total, -limit), limit).astype(out.dtype))


@ct.kernel
def log_softmax(x, out, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    row, tiles = ct.bid(0), ct.num_tiles(x, 1, (1, TILE))
    most, total = ct.full((1, 1), -1e30, ct.float32), ct.zeros((1, 1), ct.float32)
    for j in range(tiles):
        chunk = ct.load(x, (row, j), (1, TILE), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
        new = ct.maximum(most, ct.max(chunk, 1, keepdims=True))
        total = total * ct.exp(most - new) + ct.sum(ct.exp(chunk - new), 1, keepdims=True)
        most = new
    scale = most + ct.log(total)
    for j in range(tiles):
        chunk = ct.load(x, (row, j), (1, TILE), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
        ct.store(out, (row, j), (chunk - scale).astype(out.dtype))


def tanh_before_layer_norm() -> Launches:
    x, between, out = torch.zeros(64, 384), torch.zeros(64, 384, dtype=torch.float16), torch.zeros(64, 384)
    first = bias_tanh, (8, 3), (x, torch.zeros(384), between, 8, 128)
    return [first, (layer_norm, (64,), (between, torch.zeros(384), torch.zeros(384), out, 1e-5, 128))]


def clamp_before_log_softmax() -> Launches:
    x, residual, out = (torch.zeros(48, 1000, dtype=torch.bfloat16) for _ in range(3))
    return [(clamped, (48, 4), (x, residual, residual, 8.0, 256)), (log_softmax, (48,), (residual, out, 256))]


def outcome(launches: Callable[[], Launches], folder: Path) -> str:
    """Returns what came of a pair, in one line."""
    with capture.capturing(folder / "capture.json"):
        for kernel, grid, args in launches():
            ct.launch(0, grid, kernel, args)  # type: ignore[arg-type]
    recorded = record.read(folder / "capture.json")
    found = pairs(recorded).found
    if not found:
        return "no pair"
    try:
        made = fused_task(recorded, found[0].producer, found[0].consumer, folder / "task.py")
    except TilewrightError as error:
        return f"refused: {error}"
    (folder / "task.py").write_text(made.task)
    verdicts = {result.verdict for result in check(load_task(str(folder / "task.py")))}
    return f"{made.name}: {', '.join(sorted(verdicts))}; {made.times}"


def main() -> None:
    ct.launch = lambda *given, **more: None  # type: ignore[assignment]
    for launches in (tanh_before_layer_norm, clamp_before_log_softmax):
        with tempfile.TemporaryDirectory() as folder:
            print(f"{launches.__name__}: {outcome(launches, Path(folder))}", flush=True)


if __name__ == "__main__":
    main()
