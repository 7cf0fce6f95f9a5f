"""Loop-invariant hoisting, where cuda-tile does not do it itself (K4)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tests.playbook.kit import verdict
from tests.playbook.plain import HEAD, applied

from tilewright.playbook.entries.hoisting import ENTRY
from tilewright.testing.entries import EntryContract, codes_of, loaded

SCALED = (
    HEAD
    + """
@ct.kernel
def scaled(x, weight, y, TILE_N: ct.Constant[int]):
    row = ct.bid(0)
    # the tiles of a row
    for n in range(ct.cdiv(x.shape[1], TILE_N)):
        values = ct.load(x, (row, n), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO)
        if n % 2 == 1:
            # odd tiles are scaled
            scale = ct.load(weight, (0,), (1,)).astype(ct.float32)  # the same for all
            values = values * scale
        ct.store(y, (row, n), values)


def reference(x, weight):
    return np.where(np.arange(x.shape[1]) // 16 % 2 == 1, x * weight, x)


def launch(x, weight, y, M, N, config):
    return tw.Launch(scaled, (M,), (x, weight, y, config.TILE_N))


task = tw.Task(
    name="scaled",
    tensors={
        "x": tw.Tensor(("M", "N"), "float32"),
        "weight": tw.Tensor((1,), "float16"),
        "y": tw.Output(("M", "N"), "float32"),
    },
    reference=reference,
    launch=launch,
    flops=lambda M, N: M * N,
    independent=("M",),
    space=tw.Space(constants={"TILE_N": (16,)}, shipped={"TILE_N": 16}),
    workloads={"rows": {"M": 512, "N": 100}},
)
"""
)
DIRECT = SCALED.replace("        if n % 2 == 1:\n", "").replace("            ", "        ")
WRITTEN = SCALED.replace("ct.load(weight, (0,), (1,))", "ct.load(y, (row, 0), (1, 1))")
CHANGING = SCALED.replace("ct.load(weight, (0,), (1,))", "ct.load(weight, (n * 0,), (1,))")
UNCHECKED = SCALED.replace("ct.load(weight, (0,), (1,))", "ct.gather(weight, (row * 0,), check_bounds=False)")
PARAMETER = (
    SCALED.replace("y, TILE_N:", "y, scale, TILE_N:")
    .replace("weight, y, config", "weight, y, 3, config")
    .replace("ct.load(weight, (0,), (1,)).astype(ct.float32)", "min(x.shape[1], 7)")
)


class TestHoisting(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"under an if": SCALED}
    elsewhere: ClassVar = {
        "directly in the loop": DIRECT,
        "of an array that is written": WRITTEN,
        "that changes": CHANGING,
        "of a parameter": PARAMETER,
        "guarded by the branch alone": UNCHECKED,
    }


def test_the_load_stands_before_the_loop(tmp_path: Path) -> None:
    new = applied(ENTRY, SCALED, tmp_path, "before the loop")
    assert """\
    row = ct.bid(0)
    # odd tiles are scaled
    scale = ct.load(weight, (0,), (1,)).astype(ct.float32)  # the same for all
    # the tiles of a row
    for n in range(ct.cdiv(x.shape[1], TILE_N)):
""" in new  # fmt: skip
    task = loaded(new, tmp_path)
    assert verdict(task).verdict.startswith("correct")
    assert codes_of(task)["rows"].code_hash != codes_of(loaded(SCALED, tmp_path))["rows"].code_hash


def test_what_stands_in_the_loop_itself_is_moved_by_the_compiler(tmp_path: Path) -> None:
    """Why it is no site: the machine code is the same with the load before the loop."""
    line = next(one for one in DIRECT.splitlines(keepends=True) if "scale = " in one)
    by_hand = DIRECT.replace(line, "").replace("    # the tiles", line[4:] + "    # the tiles")
    hashes = {codes_of(loaded(text, tmp_path))["rows"].code_hash for text in (DIRECT, by_hand)}
    assert len(hashes) == 1
