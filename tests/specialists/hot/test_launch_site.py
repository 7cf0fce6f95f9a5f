"""A tuned configuration is written where the user's file launches the kernel."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tilewright.records import Value
from tilewright.specialists.hot.launch_site import NotWritable, with_configuration

CUTILE = """import cuda.tile as ct

TILE, OTHER = 256, 3
BLOCK = 256


@ct.kernel{hints}
def scale(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)))


def run(stream, x, y):
    ct.launch(stream, (len(x) // BLOCK,), scale, (x, y, {tile}))
"""
TRITON = """import triton
import triton.language as tl

SIZE = 256


@triton.jit
def add(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), 1.0)


def run(x):
    n = x.numel()
    add[{grid}](x, n, {given})
"""
REPLACED = "\nfast = scale.replace_hints(occupancy=2)\n"
FOLLOWS = 'lambda meta: (triton.cdiv(n, meta["BLOCK"]),)'


def changed(tmp_path: Path, text: str, kernel: str, language: str, **changes: Value) -> list[str]:
    """The lines that change; the others must stay."""
    path = tmp_path / "ops.py"
    path.write_text(text)
    new = with_configuration(path, kernel, language, changes)
    ast.parse(new)
    pairs = zip(text.splitlines(), new.splitlines(), strict=True)
    return [after.strip() for before, after in pairs if before != after]


def test_cutile(tmp_path: Path) -> None:
    plain, hinted = (CUTILE.format(hints=hints, tile="BLOCK") for hints in ("", "(num_ctas=1)"))
    assert changed(tmp_path, plain, "scale", "cutile", TILE=512) == ["BLOCK = 512"]
    assert changed(tmp_path, plain, "scale", "cutile", occupancy=4, num_ctas=None) == ["@ct.kernel(occupancy=4)"]
    assert changed(tmp_path, plain, "scale", "cutile", occupancy=4, num_ctas=2) == [
        "@ct.kernel(occupancy=4, num_ctas=2)"
    ]
    assert changed(tmp_path, hinted, "scale", "cutile", occupancy=4) == ["@ct.kernel(num_ctas=1, occupancy=4)"]
    assert changed(tmp_path, hinted, "scale", "cutile", num_ctas=2, TILE=64) == ["BLOCK = 64", "@ct.kernel(num_ctas=2)"]


def test_triton(tmp_path: Path) -> None:
    named = TRITON.format(grid="(n // SIZE,)", given="SIZE")
    assert changed(tmp_path, named, "add", "triton", BLOCK=512) == ["SIZE = 512"]
    follows = TRITON.format(grid=FOLLOWS, given="BLOCK=256, num_warps=4")
    wanted = [f"add[{FOLLOWS}](x, n, BLOCK=1024, num_warps=8)"]
    assert changed(tmp_path, follows, "add", "triton", BLOCK=1024, num_warps=8) == wanted
    assert changed(tmp_path, named, "add", "triton", num_stages=3) == ["add[(n // SIZE,)](x, n, SIZE, num_stages=3)"]


@pytest.mark.parametrize(
    ("text", "kernel", "language", "change"),
    [
        (CUTILE.format(hints="", tile="256"), "scale", "cutile", {"TILE": 512}),
        (CUTILE.format(hints="", tile="len(x)"), "scale", "cutile", {"TILE": 512}),
        (CUTILE.format(hints="", tile="TILE") + REPLACED, "scale", "cutile", {"occupancy": 4}),
        (TRITON.format(grid="(n // 256,)", given="BLOCK=256"), "add", "triton", {"BLOCK": 512}),
        (TRITON.format(grid="(n,)", given="SIZE") + "\n\nadd[(1,)](1, 2, 3)\n", "add", "triton", {"BLOCK": 512}),
        (TRITON.format(grid="(n,)", given="**{'BLOCK': 256}"), "add", "triton", {"BLOCK": 512}),
        (TRITON.format(grid="(n,)", given="SIZE, num_warps=4"), "add", "triton", {"num_warps": None}),
    ],
)  # fmt: skip
def test_what_the_text_does_not_show_is_not_written(
    text: str, kernel: str, language: str, change: dict[str, Value], tmp_path: Path
) -> None:
    with pytest.raises(NotWritable):
        changed(tmp_path, text, kernel, language, **change)
