"""`tilewright tuned verify` on the GPU: real launches, made again from what was stored of them."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.made_winners import winner

from tilewright.runtime.key import board_of, digest, toolkit
from tilewright.runtime.search.trials import label
from tilewright.runtime.store.winners import Winner, Winners
from tilewright.source.needed import digest_of_needed

torch = pytest.importorskip("torch")

NAME = "kernels_verified_on_gpu"
SIZE = 1 << 22
FAST, MIDDLE, SLOW = 2048, 32, 16
KERNELS = """
    import cuda.tile as ct

    @ct.kernel
    def times(x, y, TILE: ct.Constant[int], FACTOR: ct.Constant[int]):
        block = ct.bid(0)
        ct.store(y, (block,), ct.load(x, (block,), (TILE,)) * FACTOR)

    @ct.kernel
    def add_to(x, y, TILE: ct.Constant[int], FACTOR: ct.Constant[int]):
        block = ct.bid(0)
        ct.store(y, (block,), ct.load(y, (block,), (TILE,)) + ct.load(x, (block,), (TILE,)) * FACTOR)
"""


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The user's module, and a store of its own."""
    (tmp_path / f"{NAME}.py").write_text(textwrap.dedent(KERNELS))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "tuned"))
    yield importlib.import_module(NAME)
    sys.modules.pop(NAME, None)


def stored(kernel: Any, best: tuple[int, int], name: str, shipped: tuple[int, int], **parts: Any) -> Winner:
    """An entry whose winner and shipped configuration are (TILE, FACTOR)."""
    from tilewright.runtime.capture.described import described

    x, y = torch.zeros(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")

    def launch(config: tuple[int, int]) -> dict[str, Any]:
        launched = described(kernel, (SIZE // config[0], 1, 1), (x, y, *config))
        return replace(launched, text=digest_of_needed(Path(launched.file), launched.qualname)).to_json()

    launches = {"winner": launch(best), "runner_up": launch((MIDDLE, 2)), "shipped": launch(shipped)}
    tiles = {"config": {"TILE": best[0]}, "runner_up": {"TILE": MIDDLE}, "shipped": {"TILE": shipped[0]}}
    outcomes = tuple({"label": label(tile), "status": "timed", "us": 10.0} for tile in tiles.values())
    known = {"board": board_of(0), "toolkit": toolkit(), "arrays": {}, "name": name} | parts
    made = winner(digest(known), kernel=kernel._pyfunc.__name__, label=f"TILE={best[0]}", launches=launches)
    return Winners(strict=True).put(replace(made, parts=known, outcomes=outcomes, **tiles))


def verified(folder: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """In a process of its own, as CI would; by the name of the entry."""
    command = "import sys; from tilewright.cli import main as cli; sys.exit(cli.main(['tuned', 'verify', '--json']))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    done = subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    names = {one.key: str(one.parts["name"]) for one in Winners(strict=True).all()}
    return done.returncode, {names[one["key"]]: one for one in json.loads(done.stdout)}


def test_what_holds_by_how_it_is_launched_and_in_place(kernels: Any, tmp_path: Path) -> None:
    stored(kernels.times, (FAST, 2), "eager", (SLOW, 2))
    stored(kernels.times, (FAST, 2), "graph", (SLOW, 2), launch_mode="graph")
    stored(kernels.times, (FAST, 2), "warm", (SLOW, 2), flush_l2=False)
    stored(kernels.add_to, (FAST, 2), "in place", (SLOW, 2))
    stored(kernels.times, (FAST, 2), "elsewhere", (SLOW, 2), board="NVIDIA B200 sm_100")
    code, found = verified(tmp_path)
    assert code == 0, {key: (one["verdict"], one["reason"]) for key, one in found.items()}
    for key in ("eager", "graph", "warm", "in place"):
        assert found[key]["verdict"] == "holds", found[key]
        shipped = next(one for one in found[key]["against"] if one["name"] == "shipped")
        assert shipped["ratio"]["low"] > 1.5 and shipped["ratio"]["n"] >= 24
    assert found["elsewhere"]["verdict"] == "cannot" and "another GPU" in found["elsewhere"]["reason"]


def test_what_drifted_and_what_is_wrong(kernels: Any, tmp_path: Path) -> None:
    """A winner that is slow now, and one that computes something else, however fast."""
    stored(kernels.times, (SLOW, 2), "slow", (FAST, 2))
    stored(kernels.times, (FAST, 3), "wrong", (SLOW, 2))
    code, found = verified(tmp_path)
    assert code == 1
    assert found["slow"]["verdict"] == "drifted" and "tilewright tuned prune --key" in found["slow"]["reason"]
    assert found["wrong"]["verdict"] == "wrong" and "'y'[" in found["wrong"]["reason"]


def test_a_changed_source_is_not_raced(kernels: Any, tmp_path: Path) -> None:
    stored(kernels.times, (FAST, 2), "changed", (SLOW, 2))
    file = tmp_path / f"{NAME}.py"
    file.write_text(file.read_text().replace("* FACTOR)", "* (FACTOR + 0))"))
    code, found = verified(tmp_path)
    assert code == 3 and "has changed" in found["changed"]["reason"]
