"""Each message with a first thing to try is provoked by a small kernel, with the installed cuda-tile."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import cuda.tile as ct
import pytest
from tests.optimize.kit import SCALE

import tilewright as tw
from tilewright.languages.cutile.cutile import CuTile
from tilewright.languages.cutile.first_fixes import FIRST_FIXES, with_first_fix
from tilewright.records import Configuration, Failed
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec

X, Y = ArraySpec("x", (128, 128), "float32"), ArraySpec("y", (128, 128), "float32")
HALF = ArraySpec("x", (128, 128), "float16")
TILE = "ct.load(x, (0, 0), (64, 64))"
INDEX = "i = ct.arange(64, dtype=ct.int32)\n    "
TOO_LARGE = "make the tile smaller: loop over parts of it"
PROVOKED: dict[str, tuple[str, tuple[object, ...]]] = {
    "counts tiles": ("ct.load(x, (0,), (64, 64))", (X, Y)),
    "shape= is the shape of the tile": ("ct.load(x, (0, 0), (64,))", (X, Y)),
    "next power of two": ("ct.load(x, (0, 0), (96, 64))", (X, Y)),
    "convert a tile with .astype(ct.float16)": (f"{TILE}.cast(ct.float16)", (X, Y)),
    "dummy array": (TILE, (X, None)),
    "no argument may be a string": (TILE, (X, "text")),
    "padding_value= is for gather": ("ct.load(x, (0, 0), (64, 64), padding_value=0.0)", (X, Y)),
    "give the mask as mask=": (f"{INDEX}ct.scatter(y, (i, i), ct.gather(x, (i, i)), i < 3)", (X, Y)),
    "operands of mma to one dtype": (
        f"ct.mma({TILE}, ct.load(y, (0, 0), (64, 64)), ct.zeros((64, 64), ct.float32))", (HALF, Y),
    ),
    "mma multiplies (M, K) by (K, N)": (
        "a = ct.load(x, (0, 0), (64, 32))\n    ct.mma(a, a, ct.zeros((64, 64), ct.float32))", (HALF, Y),
    ),
    "before the branch": (f"if ct.bid(0) > 3:\n        t = {TILE}\n    ct.store(y, (0, 0), t)", (X, Y)),
    "same shape and dtype on both paths": (
        f"t = {TILE}\n    if ct.bid(0) > 3:\n        t = ct.zeros((32, 64), ct.float32)\n    ct.store(y, (0, 0), t)",
        (X, Y),
    ),
    "a tile's shape is constant": ("ct.zeros((ct.bid(0), 64), ct.float32)", (X, Y)),
    "an index of load or store is a scalar": (f"t = {TILE}.astype(ct.int32)\n    ct.load(x, (t, 0), (64, 64))", (X, Y)),
    "an index is an integer": ("ct.load(x, (1.5, 0), (64, 64))", (X, Y)),
    "no such name": (f"ct.exp3({TILE})", (X, Y)),
    "extents must be equal or 1": (f"{TILE} + ct.load(x, (0, 0), (32, 64))", (X, Y)),
    "into an output array": (f"return {TILE}", (X, Y)),
    "name every axis": (f"ct.permute({TILE}, (0,))", (X, Y)),
    "number of elements must stay": (f"ct.reshape({TILE}, (64, 32))", (X, Y)),
    "an if needs a scalar": (f"t = {TILE}\n    if t > 0:\n        ct.store(y, (0, 0), t)", (X, Y)),
    "make a new tile": (f"t = {TILE}\n    t[0, 0] = 1", (X, Y)),
    "convert the update": (
        f"{INDEX}ct.atomic_add(x, (i, i), ct.zeros((64,), ct.float16))", (ArraySpec("x", (128, 128), "bfloat16"), Y),
    ),
    "one argument for each parameter": (TILE, (X,)),
    "no try, with, import": ("try:\n        pass\n    except Exception:\n        pass", (X, Y)),
}  # fmt: skip
"""A part of each fix, and the body and the arguments of a kernel that needs it."""


@pytest.mark.parametrize("part", PROVOKED)
def test_a_message_comes_with_the_first_thing_to_try(tmp_path: Path, part: str) -> None:
    body, args = PROVOKED[part]
    file = tmp_path / f"wrong_{list(PROVOKED).index(part)}.py"
    file.write_text(f"import cuda.tile as ct\n\n\n@ct.kernel\ndef wrong(x, y):\n    {body}\n")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    failed = CuTile().lower(Launch(module.wrong, (1,), args), {}, Configuration(()), "sm_90")
    assert isinstance(failed, Failed) and failed.stage == "front end"
    assert "; first try: " in failed.reason and part in failed.reason.partition("; first try: ")[2]
    assert "\n" not in failed.reason


def test_a_message_of_tileiras_comes_with_the_first_thing_to_try(tmp_path: Path) -> None:
    file = tmp_path / "ops.py"
    small = SCALE.replace('("N",)', '("N", "N")').replace("(i,), ", "(i, 0), ").replace("(TILE,)", "(TILE, TILE)")
    file.write_text(small.replace("(256,)", "(16, 8192)").replace('{"TILE": 256}', '{"TILE": 16}'))
    (row,) = tw.inspect(str(file), "sm_90", config="TILE=8192")
    assert row.candidate.reason.endswith(f"elements; first try: {TOO_LARGE}"), row.candidate.reason


def test_every_row_is_provoked() -> None:
    assert len(FIRST_FIXES) >= 21
    for row in FIRST_FIXES:
        assert row.fix == TOO_LARGE or [part for part in PROVOKED if part in row.fix], row.fix


def test_the_names_in_the_fixes_exist() -> None:
    for name in ("permute", "where", "expand_dims", "gather", "scatter", "store", "Constant", "PaddingMode", "int32"):
        assert hasattr(ct, name)
    assert hasattr(ct.PaddingMode, "ZERO")
    assert with_first_fix("something else") == "something else"
