"""Kernels that read or write beyond an array without bound checks, in shapes that are served but are no workload."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.playbook.kit import run_of

from tilewright.playbook.entries.check_bounds import ENTRY
from tilewright.source.syntax import Source
from tilewright.testing.entries import facts_of, loaded

TASK = '''\
"""A task."""

import cuda.tile as ct
import tilewright as tw

OTHER = BLOCK = 64


@ct.kernel
def gathered(x, y, number, TILE: ct.Constant[int]):
    places = ct.bid(0) * TILE + ct.arange(TILE, dtype=ct.int32)
{body}


def launch(x, out, M, N, config):
{launch}


task = tw.Task(
    name="gathered",
    tensors={{"x": tw.Tensor(("{x}",), "float32"), "out": tw.Output(("N",), "float32")}},
    reference=lambda x, M, N: x,
    launch=launch,
    flops=lambda: 1,
    space=tw.Space(constants={{"TILE": (64,)}}, shipped={{"TILE": 64}}),
    workloads={{"only": {{"M": 512, "N": 512}}}},
)
'''
COPY = "ct.scatter(y, places, ct.gather(x, places))"
READ = "ct.scatter(y, places, ct.gather(x, {}))"
LAUNCH = "return tw.Launch(gathered, (-(-N // config.TILE),), (x, out, 0, config.TILE))"


@dataclass(frozen=True)
class Attack:
    body: str
    launch: str = LAUNCH
    served: str = '{"M": 256, "N": 512}'
    x: str = "M"

    @property
    def text(self) -> str:
        body, launch = ("\n".join(f"    {line}" for line in text.splitlines()) for text in (self.body, self.launch))
        return TASK.format(body=body, launch=launch, x=self.x)


SAME = '{"M": 512, "N": 512}'
HALF = '{"M": 512, "N": 256}'
ATTACKS = {
    "counts the tiles of another array": Attack(COPY),
    "counts the tiles of another array, as tiles": Attack(
        "tile = ct.load(x, (ct.bid(0),), (TILE,), padding_mode=ct.PaddingMode.ZERO)\nct.store(y, (ct.bid(0),), tile)"
    ),
    "a grid of a fixed size": Attack(COPY, LAUNCH.replace("-(-N // config.TILE)", "8"), HALF, "N"),
    "a negative number": Attack(
        READ.format("places + number"), LAUNCH.replace("0, config", "N - 512, config"), HALF, "N"
    ),
    "a negative number in a variable": Attack(
        READ.format("places + number"),
        "shift = N - 512\n" + LAUNCH.replace("0, config", "shift, config"), HALF, "N",
    ),
    "a local variable named as a dimension": Attack(
        COPY, "N = 64\n" + LAUNCH.replace("-N", "-x.shape[0]"), '{"M": 500, "N": 500}', "N"
    ),
    "a variable of the grid that changes": Attack(
        READ.format("places + 0"),
        "rows = N\ngrid = (-(-rows // config.TILE) + (N < 300),)\nrows = 64\n"
        + LAUNCH.replace("(-(-N // config.TILE),)", "grid"),
        HALF, "N",
    ),
    "a variable of the arguments that changes": Attack(
        READ.format("places + number"),
        "n = 0 if N > 300 else 64\nargs = (x, out, n, config.TILE)\nn = 0\n" + LAUNCH.split(", (x")[0] + ", args)",
        HALF, "N",
    ),
    "a variable of the grid that is annotated": Attack(
        COPY, "grid = (N // 128,)\ngrid: tuple = (-(-N // config.TILE),)\n"
        + LAUNCH.replace("(-(-N // config.TILE),)", "grid"), '{"M": 500, "N": 500}', "N",
    ),
    "a tile that the kernel makes larger": Attack(
        "TILE = TILE * 2\nct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)))",
        LAUNCH.replace("config.TILE),)", "(2 * config.TILE)),)"), '{"M": 448, "N": 448}', "N",
    ),
    "a grid by a condition": Attack(COPY, LAUNCH.replace("-(-N // config.TILE)", "8 if N > 300 else 20"), HALF, "N"),
    "a shorter view under the name of the array": Attack(
        "part = x.slice(axis=0, start=0, stop=number)\nx = part\n" + COPY,
        LAUNCH.replace("0, config", "N // 2, config"), SAME, "N",
    ),
    "an index of 8 bits": Attack(READ.format("ct.astype(ct.astype(places, ct.int8), ct.int32)"), served=SAME, x="N"),
    "a range of 8 bits": Attack(READ.format("ct.astype(ct.arange(TILE, dtype=ct.int8) * 4, ct.int32)"), served=SAME),
    "a repeated number of 8 bits": Attack(
        READ.format("ct.astype(ct.full((TILE,), number, dtype=ct.int8), ct.int32)"),
        LAUNCH.replace("0, config", "200, config"), SAME,
    ),
    "an index that was rounded": Attack(
        READ.format("ct.astype(ct.astype(places, ct.float16), ct.int32)"), served='{"M": 4096, "N": 4096}'
    ),
    "a function that reads the index later": Attack(
        "i = ct.arange(TILE, dtype=ct.int32)\ndef read():\n    return ct.gather(x, i + 0)\n"
        "i = places + 3\nct.scatter(y, places, read())", served=SAME,
    ),
    "a function of the language in the grid": Attack(
        READ.format("places + number"), LAUNCH.replace("-(-N // config.TILE)", "max(1, -(-N // config.TILE))"), HALF
    ),
    "a constant of the file": Attack(
        COPY.replace("places", "(ct.bid(0) * number + ct.arange(TILE, dtype=ct.int32) + 0)"),
        LAUNCH.replace("config.TILE),)", "BLOCK),)").replace("0, config", "BLOCK, config"), HALF,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_the_result_stays_and_no_access_goes_beyond_its_array(name: str, tmp_path: Path) -> None:
    """Also in a shape that is no workload. Refusing the change is right, too."""
    attack = ATTACKS[name]
    source = Source("task.py", attack.text)
    for site in ENTRY.sites(source, facts_of(loaded(attack.text, tmp_path))):
        changed = ENTRY.apply(source, site, site.values[0])
        for dims in (SAME, attack.served):
            before, after = (text.replace(SAME, dims) for text in (attack.text, changed))
            assert run_of(before, tmp_path)[0] == run_of(after, tmp_path)[0]


def test_a_launch_by_the_same_count_keeps_its_gain(tmp_path: Path) -> None:
    """The attack is offered where the array is long enough, and asks for that."""
    source = Source("task.py", ATTACKS["counts the tiles of another array"].text)
    [site] = ENTRY.sites(source, facts_of(loaded(source.text, tmp_path)))
    assert "ragged = N % config.TILE != 0 or (-(-N // config.TILE) - 1) * config.TILE + (config.TILE - 1) >= M" in (
        ENTRY.apply(source, site, site.values[0]).replace("(\n        ", "").replace("\n        or", " or")
    )
