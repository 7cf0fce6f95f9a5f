"""Numbers and table cells for the Markdown and the page of a report, each with its ledger ids."""

from __future__ import annotations

import math

from tilewright.ledger.records import Iteration, Metrics
from tilewright.report.evidence import Speedup, WorkloadChange, speedup_of, time_id
from tilewright.report.sourced import Sourced, citing, key

NOTHING = "–"


def number(value: float | None) -> str:
    """Formats a number with four significant digits. Numbers from 1000 on are rounded to integers."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = 3 - (math.floor(math.log10(abs(value))) if value else 0)
    return f"{value:.{min(max(digits, 0), 6)}f}"


def between(interval: tuple[float, float] | None) -> str:
    """Formats an interval. Returns `NOTHING` without an interval, or for an infinite interval of too few samples."""
    if interval is None or not all(map(math.isfinite, interval)):
        return NOTHING
    return f"{number(interval[0])} to {number(interval[1])}"


def faster(speedup: Speedup | None) -> Sourced:
    """Formats a speed-up, such as ``1.53× (1.50 to 1.56)``. Unknown bounds are left out."""
    if speedup is None:
        return Sourced(NOTHING)
    bounds = "" if speedup.low is None or speedup.high is None else f" ({speedup.low:.2f} to {speedup.high:.2f})"
    return Sourced(f"{speedup.centre:.2f}×{bounds}", *speedup.ids)


def light(metrics: Metrics, at: str, bound_at: str) -> Sourced:
    """Formats the speed as a share of the speed of light. ``at``, ``bound_at``: the ledger ids of time and bound."""
    share = metrics.bound.share(metrics.us) if metrics.bound and metrics.us else None
    if share is None:
        return Sourced(NOTHING)
    return Sourced(f"{share:.1%}", f"{bound_at}/speed_of_light_us", time_id(metrics, at))


def time_us(metrics: Metrics, at: str) -> Sourced:
    """Formats a time in µs."""
    return Sourced(number(metrics.us), time_id(metrics, at)) if metrics.us is not None else Sourced(NOTHING)


def interval_us(metrics: Metrics, at: str) -> Sourced:
    """Formats the 95 % interval of a measured time, in µs."""
    return _within(metrics.measured.interval_us if metrics.measured else None, f"{at}/measured/interval_us")


def _within(interval: tuple[float, float] | None, at: str) -> Sourced:
    text = between(interval)
    return Sourced(text) if text == NOTHING else Sourced(text, f"{at}/0", f"{at}/1")


def place(iteration: Iteration) -> Sourced:
    """Returns ``site = value`` of the change. A part that is already in the change's name is left out."""
    parts = (part for part in (iteration.site, iteration.value) if part and part not in iteration.optimization)
    return Sourced(" = ".join(parts), f"iteration/{iteration.n}/site", f"iteration/{iteration.n}/value")


def outcome_cells(iteration: Iteration) -> tuple[list[str], list[list[str]]]:
    """Returns the table of an iteration's outcomes: header, and one row per workload. Predicted times have no
    ratios."""
    measured = any(outcome.ratio or outcome.against_baseline for outcome in iteration.outcomes)
    rows: list[list[str]] = []
    for n, outcome in enumerate(iteration.outcomes):
        named = {"ratio": outcome.ratio, "against_baseline": outcome.against_baseline}
        at = f"iteration/{iteration.n}/outcomes/{n}"
        ratios = [faster(speedup_of(ratio, f"{at}/{name}")) for name, ratio in named.items()]
        checked = outcome.checked.reason if outcome.checked else NOTHING
        rows.append([outcome.workload, outcome.verdict, *(ratios if measured else []), checked])
    over = ["over the incumbent", "over the baseline"]
    return ["workload", "verdict", *(over if measured else []), "checked"], rows


def both_lights(change: WorkloadChange) -> Sourced:
    """Formats both shares of the speed of light."""
    before, after = (light(*side, bound) for side, bound in zip(change.sides, change.bound_at, strict=True))
    return citing(f"{before} → {after}", before, after)


def mix_row(change: WorkloadChange, kind: str) -> list[str]:
    """Returns the row of a class of instructions: its name, and its counts before and after."""
    return [kind, *(_instructions(*side, kind) for side in change.sides)]


def _instructions(metrics: Metrics, at: str, kind: str) -> Sourced:
    """Formats a count. If the version does not have the class, the id of the whole mix is cited."""
    return Sourced(metrics.mix.get(kind, 0), f"{at}/mix/{key(kind)}" if kind in metrics.mix else f"{at}/mix")


def attempts(iteration: Iteration) -> tuple[list[str], list[list[str]]]:
    """Returns header and rows of the table of the values that were tried."""
    at = f"iteration/{iteration.n}/attempts"
    rows = [[Sourced(a.value, f"{at}/{n}/value"), a.status, a.reason] for n, a in enumerate(iteration.attempts)]
    return ["tried", "status", "reason"], rows


def ordinal(iteration: Iteration) -> Sourced:
    """Formats the number of an iteration."""
    return Sourced(iteration.n, f"iteration/{iteration.n}/n")


def time_ms(iteration: Iteration, measured: bool) -> Sourced:
    """Formats the time of one iteration in ms. A crashed iteration has no time."""
    name = "latency_ms" if measured else "predicted_ms"
    text = number(None if iteration.status == "crash" else getattr(iteration, name))
    return Sourced(text) if text == NOTHING else Sourced(text, f"iteration/{iteration.n}/{name}")


def interval_ms(iteration: Iteration) -> Sourced:
    """Formats the 95 % interval of an iteration's time."""
    return _within(iteration.interval_ms, f"iteration/{iteration.n}/interval_ms")


def gain(iteration: Iteration) -> Sourced:
    """Formats the incumbent's time / the iteration's time."""
    if not iteration.n or iteration.gain is None:
        return Sourced(NOTHING)
    ratios = (n for n, outcome in enumerate(iteration.outcomes) if outcome.ratio is not None)
    return faster(
        Speedup(iteration.gain, ids=tuple(f"iteration/{iteration.n}/outcomes/{n}/ratio/centre" for n in ratios))
    )
