"""The winner of a search as it is stored: its configuration, its outcomes, its launches, the machine."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tilewright.records import Failed, Json, Value
from tilewright.runtime.store.winners import Winner

if TYPE_CHECKING:
    from tilewright.runtime.search.searching import SearchResult
    from tilewright.runtime.search.trials import Trial


def winner_of(
    result: SearchResult,
    *,
    key: str,
    kernel: str,
    parts: Mapping[str, Json],
    labels: Sequence[str],
    config: Callable[[int], Mapping[str, Value] | None],
    launches: Mapping[str, Json] | None,
    origin: str,
) -> Winner:
    """``config``: index → the configuration, None if it has no named fields. The shipped one has index 0."""
    return Winner(
        key=key,
        kernel=kernel,
        parts=parts,
        config=config(result.best),
        index=result.best,
        label=labels[result.best],
        shipped=config(0),
        runner_up=None if result.runner_up is None else config(result.runner_up),
        outcomes=tuple(
            {
                "label": label, "status": outcome.status, "reason": outcome.reason, "us": outcome.us,
                "error_margin_us": outcome.error_margin_us, "samples": outcome.samples, "stage": outcome.stage,
                "error": f"{outcome.error.__module__}:{outcome.error.__qualname__}" if outcome.error else None,
            }
            for label, outcome in zip(labels, result.outcomes, strict=True)
        ),
        launches=launches,
        origin=origin,
        machine={
            "board": parts["board"], "toolkit": parts["toolkit"], "host": platform.node(),
            "seconds": dict(result.seconds),
        },
        created="",
    )  # fmt: skip


def launches_of(trials: Sequence[Trial | Failed], result: SearchResult) -> dict[str, Json]:
    """The launches that `tilewright tuned verify` races again, as data. Raises if one cannot be described."""
    from tilewright.runtime.capture.described import described

    places = {"winner": result.best, "runner_up": result.runner_up, "shipped": 0}
    chosen = {name: trials[place] for name, place in places.items() if place is not None}
    return {
        name: described(trial.kernel, trial.grid, trial.arguments()).to_json()
        for name, trial in chosen.items()
        if not isinstance(trial, Failed)
    }
