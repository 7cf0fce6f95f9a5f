"""Ranges, broadcasts, and operations that rearrange tiles, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import triton
import triton.language as tl
from tests.languages.tileir_from_triton.kit import launch

RNG = np.random.default_rng(2)


@triton.jit
def rearrange(x, z, OP: tl.constexpr, A: tl.constexpr, B: tl.constexpr):
    rows, columns = tl.arange(0, A), tl.arange(0, B)
    v = tl.load(x + rows[:, None] * B + columns[None, :])
    if OP == "trans":
        tl.store(z + columns[:, None] * A + rows[None, :], tl.trans(v))
    elif OP == "permute":
        c = tl.permute(tl.reshape(v, (A, B // 4, 4)), (2, 0, 1))
        at = tl.arange(0, 4)[:, None, None] * (A * B // 4) + rows[None, :, None] * (B // 4)
        tl.store(z + at + tl.arange(0, B // 4)[None, None, :], c)
    elif OP == "reshape":
        tl.store(z + tl.arange(0, A * B), tl.reshape(v, (A * B,)))
    elif OP == "join":
        c = tl.join(v, v + 1)
        at = rows[:, None, None] * (2 * B) + columns[None, :, None] * 2 + tl.arange(0, 2)[None, None, :]
        tl.store(z + at, c)
    elif OP == "split":
        even, odd = tl.split(tl.reshape(v, (A, B // 2, 2)))
        at = rows[:, None] * (B // 2) + tl.arange(0, B // 2)[None, :]
        tl.store(z + at, even - odd)
    elif OP == "interleave":
        c = tl.interleave(v, -v)
        tl.store(z + rows[:, None] * (2 * B) + tl.arange(0, 2 * B)[None, :], c)
    elif OP == "cat":
        flat = tl.reshape(v, (A * B,))
        tl.store(z + tl.arange(0, 2 * A * B), tl.cat(flat, -flat, can_reorder=True))
    elif OP == "flip":
        tl.store(z + rows[:, None] * B + columns[None, :], tl.flip(v, 1))
    elif OP == "range":
        at = tl.arange(16, 16 + 16)
        tl.store(z + at - 16, at.to(tl.float32))
    elif OP == "sort":
        tl.store(z + rows[:, None] * B + columns[None, :], tl.sort(v, 1))


EXPECTED = {
    "trans": lambda v: v.T, "reshape": lambda v: v.reshape(-1), "join": lambda v: np.stack([v, v + 1], -1),
    "permute": lambda v: v.reshape(v.shape[0], -1, 4).transpose(2, 0, 1),
    "split": lambda v: v.reshape(v.shape[0], -1, 2)[..., 0] - v.reshape(v.shape[0], -1, 2)[..., 1],
    "interleave": lambda v: np.stack([v, -v], -1), "cat": lambda v: np.concatenate([v.reshape(-1), -v.reshape(-1)]),
    "flip": lambda v: v[:, ::-1], "range": lambda v: np.arange(16, 32), "sort": lambda v: np.sort(v, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_rearranging(name: str) -> None:
    v = RNG.standard_normal((8, 16)).astype(np.float32)
    expected = EXPECTED[name](v).astype(np.float32).reshape(-1)
    out = np.zeros(expected.size, np.float32)
    launch(rearrange, (1,), {"x": v, "z": out, "OP": name, "A": 8, "B": 16})
    np.testing.assert_array_equal(out, expected)


@triton.jit
def grid(z, N: tl.constexpr):
    x, y, w = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    number = (w * tl.num_programs(1) + y) * tl.num_programs(0) + x
    tl.store(z + number, x + 10 * y + 100 * w + 1000 * tl.num_programs(2))


def test_places_in_the_grid() -> None:
    out = np.zeros(2 * 3 * 4, np.int32)
    launch(grid, (4, 3, 2), {"z": out, "N": 1})
    w, y, x = np.meshgrid(range(2), range(3), range(4), indexing="ij")
    np.testing.assert_array_equal(out, (x + 10 * y + 100 * w + 2000).reshape(-1))
