"""A whole run of `optimize` with a GPU that is made up: an executor in this process with a simulated clock.

The code is really compiled and interpreted. The true time of a launch depends on its grid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from tests.optimize.kit import SCALE, Lines, repository

from tilewright.compile.compile import compile_all
from tilewright.executors.base import Executor, ignore
from tilewright.hardware.gpu import Gpu
from tilewright.ledger.ledger import Ledger
from tilewright.optimize import attempting, loop, options, setup
from tilewright.optimize.optimized import Optimized
from tilewright.playbook.base import EntryDescription, Site
from tilewright.playbook.entries import occupancy
from tilewright.race import protocol
from tilewright.records import Checked, Value
from tilewright.source.syntax import Source
from tilewright.testing.simulated import SimulatedClock
from tilewright.worker import messages as said
from tilewright.worker.outcome import Outcome

H200 = Gpu("NVIDIA H200", "sm_90", 132, 141 << 30, 50 << 20, "13.0")
SIZES = (32, 64, 128, 256, 512, 1024, 2048)
TILED = SCALE.replace('{"TILE": (256,)}', f'{{"TILE": (16, {", ".join(map(str, SIZES))})}}').replace(
    '{"TILE": 256}', '{"TILE": 16}'
).replace('{"N": 4096}', '{"N": 1 << 18}')  # fmt: skip


@dataclass(frozen=True)
class Tiles(Lines):
    """An entry that writes a tile size, and is tried with the hints of another entry."""

    hinted: str = "occupancy"

    @property
    def about(self) -> EntryDescription:
        return replace(super().about, together=(self.hinted,))

    def apply(self, source: Source, site: Site, value: Value) -> str:
        return source.text.replace('shipped={"TILE": 16}', f'shipped={{"TILE": {value}}}')


@dataclass
class Simulated(Executor):
    """Runs steps on true times by grid. ``said``: what happened, in order; the test adds what is compiled."""

    said: list[str] = field(default_factory=list)
    raced: list[list[int]] = field(default_factory=list)
    name = "simulated"

    def open(self, task: str, files: Mapping[str, str] | None = None) -> None:
        self.said.append("open")

    def run(
        self, step: Any, *, silence: float | None = None, on_progress: Callable[..., None] = ignore
    ) -> Outcome[Any]:
        return Outcome("PASSED", self._answer(step))

    def _answer(self, step: Any) -> Any:
        if isinstance(step, said.PrepareInputs):
            return said.InputsReady((), new=True)
        if isinstance(step, said.CheckOutputs):
            self.said.append(f"check {tile(step.source)}")
            return said.OutputsChecked(Checked("correct", ""))
        sources = (*step.sources, *(() if isinstance(step, said.RaceField) else (step.sources[step.copied],)))
        clock, rng = SimulatedClock([self.us(source) for source in sources], seed=1), np.random.default_rng(0)
        if isinstance(step, said.RaceField):
            self.raced.append([tile(source) for source in sources])
            race = protocol.race(len(sources), clock, step.policy, cost=step.costs, shipped=step.shipped, rng=rng)
            return said.FieldRaced(race, {"nvml": "none"}, None)
        rounds = protocol.interleaved(clock, protocol.Rounds(len(sources)), step.budget, rng)
        each = (len(rounds.rows) // step.captures,) * step.captures
        return said.RoundsTimed(rounds.samples_us, each, (), {"nvml": "none"}, None)

    def us(self, source: Any) -> float:
        """Returns the true time: small tiles are faster, which is the opposite of the prediction. The shipped size is
        the slowest."""
        return 40.0 if tile(source) == 16 else 10.0 + tile(source) ** 0.5 / 2

    def close(self, wait: bool = True) -> None:
        self.said.append("close")


def tile(source: Any) -> int:
    return (1 << 18) // int(source.grid[0])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Optimized, Simulated]:
    folder, executor = tmp_path_factory.mktemp("measured"), Simulated()

    def compiling(tasks: Any, units: Sequence[Any], **more: Any) -> Any:
        executor.said.append(f"compile {len(units)}")
        return compile_all(tasks, units, **more)

    entry = Tiles("S", values=SIZES)
    with pytest.MonkeyPatch.context() as patch, Ledger(folder / "ledger.db") as ledger:
        patch.setattr(loop, "detect", lambda: H200)
        patch.setattr(attempting, "compile_all", compiling)
        for module in (options, setup):
            patch.setattr(module, "catalogue", lambda: (entry, occupancy.ENTRY))
        file = repository(folder / "ops", TILED)
        result = loop.optimize(str(file), only=("S",), iterations=1, ledger=ledger, seed=1, session=executor)
    return result, executor


def test_the_worker_opens_the_task_before_the_first_compiler_starts(run: tuple[Optimized, Simulated]) -> None:
    """Issue 16, 8."""
    assert run[1].said[:2] == ["open", "compile 1"] and run[1].said.count("open") == 1


def test_what_leads_the_first_heats_is_built_upon(run: tuple[Optimized, Simulated]) -> None:
    """The hints are added to the fastest of two heats only; a later heat finds a faster size, which is kept."""
    result, executor = run
    [kept] = [each for each in result.iterations[1:] if each.status == "keep"]
    leader = min(size for heat in executor.raced[:2] for size in heat[1:])
    hinted = [attempt.value for attempt in kept.attempts if "occupancy=" in attempt.value]
    assert hinted and all(value.startswith(f"{leader}, ") for value in hinted)
    assert kept.value == str(min(SIZES)) and kept.correctness == "PASS"


def test_a_race_begins_with_three_and_what_is_raced_is_verified(run: tuple[Optimized, Simulated]) -> None:
    _, executor = run
    first, second, *_ = executor.raced
    assert (len(first), len(second)) == (1 + 3, 1 + 1 + 3), "the incumbent; later also the leader"
    checked = {int(line.split()[1]) for line in executor.said if line.startswith("check")}
    raced = {size for heat in executor.raced for size in heat}
    assert checked == raced == {16, *SIZES}
