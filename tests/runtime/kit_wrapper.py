"""A made-up world for the wrapper: torch tensors of the CPU, launches that are remembered, a search that is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import cuda.tile as ct

import tilewright
from tilewright.hardware.architectures import board
from tilewright.records import Failed
from tilewright.runtime.environment import Environment
from tilewright.runtime.search.searching import SearchResult, TrialOutcome
from tilewright.runtime.search.trials import Trial
from tilewright.runtime.store.winners import Winners
from tilewright.runtime.wrapper.background import in_background
from tilewright.runtime.wrapper.wrapper import tuned

BOARD = "NVIDIA H200 sm_90"


def background_is_idle(seconds: float) -> bool:
    """Waits until all jobs in the background are done; whether that is so in time."""
    done = threading.Event()
    in_background("the end of the test", done.set)
    return done.wait(seconds)


@ct.kernel
def scale(x, y, factor, TILE: ct.Constant[int], COLUMNS: ct.Constant[int]):
    tile = ct.load(x, (ct.bid(0), 0), (TILE, COLUMNS))
    ct.store(y, (ct.bid(0), 0), tile * factor)


SPACE = tilewright.Space(
    constants={"TILE": (1, 2, 4)}, hints={"occupancy": (None, 2)}, shipped={"TILE": 2, "occupancy": None}
)
DECLARED: dict[str, Any] = {
    "space": SPACE,
    "grid": lambda call, config: (-(-call.x.shape[0] // config.TILE), 1, 1),
    "arguments": {"COLUMNS": lambda call, config: call.x.shape[1]},
    "outputs": ("y",),
}


@dataclass
class World:
    """What happened, and what the next search finds."""

    fastest: Callable[[Sequence[Trial | Failed]], int] = lambda trials: len(trials) - 1
    launches: list[tuple[Any, ...]] = field(default_factory=list)
    searches: list[Sequence[Trial | Failed]] = field(default_factory=list)
    capturing: bool = False
    streams: list[Any] = field(default_factory=list)
    arguments: list[tuple[Any, ...]] = field(default_factory=list)

    def launch(self, stream: Any, grid: Any, kernel: Any, arguments: tuple[Any, ...]) -> None:
        self.launches.append((grid, kernel, arguments))

    def search(self, trials: Sequence[Trial | Failed], *, stream: Any, shipped: int, launch_mode: str) -> SearchResult:
        assert shipped == 0
        trials = [one.placed() if isinstance(one, Trial) else one for one in trials]  # as a search does
        self.searches.append(trials)
        self.streams.append(stream)
        self.arguments.append(next(one.arguments() for one in trials if isinstance(one, Trial)))
        best = self.fastest(trials)
        labels = (getattr(one, "label", "failed") for one in trials)
        outcomes = tuple(TrialOutcome(label, "timed", "", 1.0, 0.1, 5) for label in labels)
        return SearchResult(best, 0 if best else None, outcomes, {})

    def environment(self, **others: Any) -> Environment:
        return Environment(
            launch=self.launch,
            search=self.search,
            winners=others.pop("winners", Winners()),
            board=others.pop("board", lambda device: BOARD),
            hardware=lambda device: board("H200"),
            capturing=lambda stream: self.capturing,
            **others,
        )

    def tuned(self, kernel: Any = scale, environment: Environment | None = None, **changes: Any) -> Any:
        return tuned(kernel, **{**DECLARED, **changes}, _environment=environment or self.environment())

    @property
    def tiles(self) -> list[Any]:
        """The constant TILE of each launch so far."""
        return [arguments[3] for _, _, arguments in self.launches]
