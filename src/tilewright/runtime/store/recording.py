"""What a search leaves in the store beside its pick, whoever asked for it: outcomes, launches, the machine."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilewright.records import Failed

if TYPE_CHECKING:
    from tilewright.runtime.search.searching import SearchResult, TrialOutcome
    from tilewright.runtime.search.trials import Trial


def outcomes_as_json(labels: Sequence[str], outcomes: Sequence[TrialOutcome]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "label": label, "status": one.status, "reason": one.reason, "us": one.us,
            "error_margin_us": one.error_margin_us, "samples": one.samples, "stage": one.stage,
            "error": f"{one.error.__module__}:{one.error.__qualname__}" if one.error else None,
        }
        for label, one in zip(labels, outcomes, strict=True)
    )  # fmt: skip


def launches_of(trials: Sequence[Trial | Failed], found: SearchResult) -> dict[str, Any]:
    """The launches that `tilewright tuned verify` races again, as data. Raises where one has no description."""
    from tilewright.runtime.capture.described import described

    places = {"winner": found.best, "runner_up": found.runner_up, "shipped": 0}
    chosen = {name: trials[place] for name, place in places.items() if place is not None}
    return {
        name: described(one.kernel, one.grid, one.arguments()).to_json()
        for name, one in chosen.items()
        if not isinstance(one, Failed)
    }


def machine_of(board: str, toolkit: str, found: SearchResult) -> Mapping[str, Any]:
    return {"board": board, "toolkit": toolkit, "host": platform.node(), "seconds": dict(found.seconds)}
