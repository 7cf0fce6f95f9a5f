"""An edited version of a Triton kernel: its front end runs in the version's own process, its compiler elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.candidate.client import Candidates
from tilewright.compile.compile import Unit, compile_all, launch_of
from tilewright.hardware.architectures import default_board
from tilewright.languages import language_of
from tilewright.languages.base import Lowered
from tilewright.languages.described import DescribedKernel
from tilewright.records import Built
from tilewright.task.loading import load_task

pytest.importorskip("triton")

EXAMPLE = Path(__file__).parents[3] / "examples" / "triton" / "softmax.py"


@pytest.mark.parametrize("route", ["ptx", "tileir"])
def test_a_version_is_described_lowered_and_compiled(route: str, tmp_path: Path) -> None:
    file, copy = tmp_path / "softmax.py", tmp_path / "copy.py"
    file.write_text(EXAMPLE.read_text())
    copy.write_text(EXAMPLE.read_text().replace("tl.exp(", "tl.exp2(1.4426950408889634 * "))
    with Candidates([file]) as candidates:
        task = candidates.task(load_task(str(file)), str(file), {str(file): str(copy)})
        config = task.space.shipped.replace(route=route)
        unit = Unit(task.workload("odd"), config, default_board("sm_90"))
        launch, hints = launch_of(task, unit)
        language = language_of(launch.kernel)
        assert isinstance(launch.kernel, DescribedKernel) and language.name == "triton"
        assert [getattr(arg, "name", arg) for arg in language.arguments(launch)] == ["out", "x", 3000, 3000]
        interpreted = language.tile_ir_of(launch, hints, config, "sm_90")
        assert isinstance(interpreted, Lowered) and interpreted.is_tile_ir
        assert bool(language.stand_in(hints)) == (route == "ptx")
        (compiled,) = compile_all(task, [unit])
        assert isinstance(compiled.built, Built), compiled.built
        assert (compiled.built.facts.threads is None) == (route == "tileir")
