"""The sentences, numbers and table cells that the Markdown and the HTML page of a report share."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilewright.hardware import prediction_error
from tilewright.ledger.codec import Encodable
from tilewright.ledger.records import Iteration, Metrics, RunRecord, TuneRun, left_to_confirm
from tilewright.report.evidence import OptimizeEvidence, Speedup, TuneEvidence, settings, speedup_of

NOTHING = "–"


def number(value: float | None) -> str:
    """Formats a number with four significant digits. Numbers from 1000 on are rounded to whole ones."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = 3 - (math.floor(math.log10(abs(value))) if value else 0)
    return f"{value:.{min(max(digits, 0), 6)}f}"


def between(interval: tuple[float, float] | None) -> str:
    """Formats an interval; `NOTHING` if there is none, or if it is infinite because the samples were too few."""
    if interval is None or not all(map(math.isfinite, interval)):
        return NOTHING
    return f"{number(interval[0])} to {number(interval[1])}"


def faster(speedup: Speedup | float | None) -> str:
    """Formats a speed-up, such as ``1.53× (1.50 to 1.56)``. The bounds are left out if they are not known."""
    if speedup is None:
        return NOTHING
    if isinstance(speedup, float):
        return f"{speedup:.2f}×"
    bounds = "" if speedup.low is None or speedup.high is None else f" ({speedup.low:.2f} to {speedup.high:.2f})"
    return f"{speedup.centre:.2f}×{bounds}"


def light(metrics: Metrics) -> str:
    """Formats the speed as a share of the speed of light."""
    share = metrics.bound.speed_of_light_us / metrics.us if metrics.bound and metrics.us else None
    return NOTHING if share is None else f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def interval_us(metrics: Metrics) -> str:
    """Formats the 95 % interval of a measured time, in µs."""
    return between(metrics.measured.interval_us) if metrics.measured else NOTHING


def place(iteration: Iteration) -> str:
    """Returns ``site = value`` of the change. A part that the change's name contains is left out."""
    parts = (part for part in (iteration.site, iteration.value) if part and part not in iteration.optimization)
    return " = ".join(parts)


def outcome_cells(iteration: Iteration) -> tuple[list[str], list[list[str]]]:
    """Returns the header, and one row for each workload, of an iteration's outcomes. Predicted times have no ratios."""
    measured = any(outcome.ratio or outcome.against_baseline for outcome in iteration.outcomes)
    rows = []
    for outcome in iteration.outcomes:
        ratios = [faster(speedup_of(outcome.ratio)), faster(speedup_of(outcome.against_baseline))]
        checked = outcome.checked.reason if outcome.checked else NOTHING
        rows.append([outcome.workload, outcome.verdict, *(ratios if measured else []), checked])
    ratios = ["over the incumbent", "over the baseline"]
    return ["workload", "verdict", *(ratios if measured else []), "checked"], rows


class RunWords:
    """The texts about a run of `tune` or `optimize`. In a run without measurements, each time is called predicted."""

    command_name = "Reproduce"

    def __init__(self, report: OptimizeEvidence | TuneEvidence):
        run, gpu = report.run, report.run.machine.gpu or report.run.board or report.run.machine.arch
        self.report = report
        self.predicted = not run.measured
        self.p = "predicted " if self.predicted else ""
        """The prefix of the name of each time."""
        what = run.kernel if isinstance(run, RunRecord) else run.task
        self.title = f"{what} {'for' if self.predicted else 'on'} {gpu} ({run.machine.arch})"
        times = "predicted times, nothing was measured" if self.predicted else "measured"
        started = f"started {run.started[:19].replace('T', ' ')} UTC, {'finished' if run.finished else 'not finished'}"
        self.subtitle = f"run {run.run} of {run.where or run.task}, {started}; {times}"

    def typical(self, speedup: str) -> str:
        """Adds the error factor to a predicted speed-up."""
        return f"{speedup} ({prediction_error.typical()})" if self.predicted and speedup != NOTHING else speedup

    def environment(self) -> tuple[tuple[str, str], ...]:
        """Returns pairs of name and value: all that is needed to judge the numbers or to repeat the run."""
        run, machine = self.report.run, self.report.run.machine
        gpu = machine.gpu or f"none; predicted for {run.board or machine.arch}"
        values: dict[str, Encodable] = {"gpu": gpu, "arch": machine.arch}
        values |= {"driver": machine.driver, "host": machine.host, **machine.versions}
        if isinstance(run, TuneRun):
            values |= {"seed": run.seed, "raced at most": run.top, "policy": run.policy}
            values |= {f"seconds, {stage}": f"{value:.2f}" for stage, value in run.seconds.items()}
        elif isinstance(run, RunRecord):
            values |= run.environment
            values |= {f"A/A noise, {name}": str(interval) for name, interval in run.noise.items()}
            values |= {"branch": run.branch, "base commit": run.base_commit, "seed": run.seed}
            values |= {"policy": run.policy, "options": run.options}
        return settings(values)


class Words(RunWords):
    """Sentences about a run of `optimize`."""

    report: OptimizeEvidence

    def __init__(self, report: OptimizeEvidence):
        super().__init__(report)
        self.command_name = "Confirm on a GPU" if self.predicted else "Reproduce"

    @property
    def outcome(self) -> str:
        """The result of the run in one sentence."""
        report = self.report
        if not report.tried:
            return "No change has been tried yet."
        tried = _counted(len(report.tried), "iteration")
        if not report.kept:
            return f"Nothing was kept in {tried}: the code is as it was."
        over = "the workload" if len(report.workloads) == 1 else f"{len(report.workloads)} workloads, geometric mean"
        times = f"{number(report.before_ms)} → {number(report.after_ms)} ms"
        return (
            f"{self.p.capitalize()}{'speed-up' if self.p else 'Speed-up'} {self.typical(faster(report.speedup))} "
            f"over the untouched code ({over}: {self.p}{times}); {len(report.kept)} of {tried} kept."
        )

    def notes(self) -> Iterator[str]:
        """Yields warnings about the result."""
        report, run = self.report, self.report.run
        lossy = [iteration for iteration in report.kept if iteration.risk == "lossy"]
        if lossy:
            named = ", ".join(f"{iteration.n} ({iteration.optimization})" for iteration in lossy)
            yield f"Lossy, though within the task's tolerance: iteration {named}."
        unverified = [str(iteration.n) for iteration in report.kept if iteration.correctness != "PASS"]
        if unverified:
            yield f"Kept without being verified: iteration {', '.join(unverified)}."
        yield (f"Stopped: {run.stop_reason}." if run.stop_reason else "Not finished: the same command resumes it.")
        if self.predicted:
            yield f"All times are predicted. Confirm them on a GPU before you rely on them; {prediction_error.times()}."

    @property
    def command(self) -> str:
        run = self.report.run
        again = run.reproduce or f"tilewright optimize {run.where} --seed {run.seed}"
        return run.confirm or again if self.predicted else again

    def to_confirm(self) -> tuple[list[str], list[list[str]]]:
        """Returns header and rows of the table of changes that wait for a GPU, the best predicted first."""
        rows = [
            [str(n), name, prediction_error.speedup(change.speedup, change.kind), change.command]
            for n, name, change in left_to_confirm(self.report.iterations)
        ]
        return ["", "change", "predicted speed-up", "to measure it"], rows

    def time(self, iteration: Iteration) -> float | None:
        """Returns the time of one iteration in milliseconds."""
        return iteration.predicted_ms if self.predicted else iteration.latency_ms

    def workloads(self) -> tuple[list[str], list[list[str]]]:
        """Returns header and rows of the table of workloads. Predicted times have no interval."""
        step = 2 if self.predicted else 1
        times = [f"{self.p}before, µs", "95 %", f"{self.p}after, µs", "95 %"][::step]
        rows = []
        for change in self.report.workloads:
            sides = (change.before, change.after)
            cells = [cell for side in sides for cell in (number(side.us), interval_us(side))]
            lights = f"{light(change.before)} → {light(change.after)}"
            bound = change.before.bound.kind if change.before.bound else NOTHING
            rows.append([change.workload, *cells[::step], faster(change.speedup), lights, bound])
        return ["workload", *times, f"{self.p}speed-up", f"{self.p}speed of light", "bound"], rows


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


class TuneWords(RunWords):
    """Sentences about a run of `tune`."""

    report: TuneEvidence

    @property
    def outcome(self) -> str:
        """The result of the run in one sentence."""
        report = self.report
        if not report.workloads:
            return "No workload is done yet."
        done = _counted(len(report.workloads), "workload")
        without = [workload.name for workload in report.workloads if workload.result.best is None]
        if without:
            return f"No configuration works for {', '.join(without)} ({done} in all)."
        if all(workload.is_shipped(workload.result.best) for workload in report.workloads if workload.result.best):
            return f"The configuration shipped today is the best on {done}."
        speedup = faster(report.speedup)
        if speedup == NOTHING:
            return f"The best configuration of {done}; the one shipped today has no {self.p}time to compare with."
        name = f"{self.p}speed-up".capitalize()
        return f"{name} {self.typical(speedup)} over the configuration shipped today (geometric mean, {done})."

    def notes(self) -> Iterator[str]:
        """Yields warnings about the result."""
        run = self.report.run
        unverified: dict[str, list[str]] = {}
        for workload in self.report.workloads:
            best = workload.result.best
            if best is not None and (best.checked is None or not best.checked.right):
                reason = best.checked.reason if best.checked else "nothing was compared"
                unverified.setdefault(reason, []).append(workload.name)
        for reason, names in unverified.items():
            which = f"workload{'s' if len(names) > 1 else ''} {', '.join(names)}"
            yield f"Not verified: the best configuration of {which} ({reason})."
        if not run.finished:
            yield "Not finished: the same command resumes it."
        if self.predicted:
            yield "There was no race: all times are predicted. Confirm them on a GPU before you rely on them."
            yield f"{prediction_error.times().capitalize()}."
        if self.report.workloads:
            yield f"{prediction_error.times().capitalize()}."
        if not run.board:
            yield "An earlier version of Tilewright made this run, and did not store what the roofline needs."

    @property
    def command(self) -> str:
        run = self.report.run
        return run.reproduce or f"tilewright tune {run.where or 'FILE:' + run.task} --arch {run.machine.arch} --fresh"
