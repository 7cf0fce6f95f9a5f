"""Sentences for the Markdown and the page of a report."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.hardware import prediction_error
from tilewright.ledger.records import Metrics, RunRecord, TuneRun, left_to_confirm
from tilewright.report.cells import NOTHING, both_lights, faster, interval_us, number, ordinal, time_us
from tilewright.report.evidence import OptimizeEvidence, fields_of, settings
from tilewright.report.sourced import Sourced, citing, key
from tilewright.report.tune_evidence import TuneEvidence

WORKLOADS_AT = "workload"
"""The ledger id of all workloads of a run of `tune`."""


class RunWords:
    """The texts about a run of `tune` or `optimize`. If nothing was measured, each time is called predicted."""

    command_name = "Reproduce"

    def __init__(self, report: OptimizeEvidence | TuneEvidence):
        run, gpu = report.run, report.run.machine.gpu or report.run.board or report.run.machine.arch
        self.report = report
        self.predicted = not run.measured
        self.p = "predicted " if self.predicted else ""
        """The prefix of the name of each time: ``predicted ``, or "" if times were measured."""
        what = run.kernel if isinstance(run, RunRecord) else run.task
        self.title = f"{what} {'for' if self.predicted else 'on'} {gpu} ({run.machine.arch})"
        times = "predicted times, nothing was measured" if self.predicted else "measured"
        started = f"started {run.started[:19].replace('T', ' ')} UTC, {'finished' if run.finished else 'not finished'}"
        said = f"run {run.run} of {run.where or run.task}, {started}; {times}"
        self.subtitle = Sourced(said, "run/run", "run/where", "run/started")

    def typical(self, speedup: Sourced) -> Sourced:
        """Returns a speed-up as text. A predicted speed-up is followed by its error factor."""
        return (
            citing(f"{speedup} ({prediction_error.typical()})", speedup) if self.predicted and speedup.ids else speedup
        )

    def environment(self) -> tuple[tuple[str, str], ...]:
        """Returns pairs of name and value: all facts that are needed to judge the numbers or to repeat the run."""
        run, machine = self.report.run, self.report.run.machine
        gpu = machine.gpu or f"none; predicted for {run.board or machine.arch}"
        values: list[tuple[str, str]] = [("gpu", gpu), *fields_of(machine, "run/machine", "arch", "driver", "host")]
        values += settings(machine.versions, "run/machine/versions")
        if isinstance(run, TuneRun):
            values += [("raced at most", Sourced(run.top, "run/top")), *fields_of(run, "run", "seed", "policy")]
            values += [(f"seconds, {stage}", Sourced(f"{value:.2f}", f"run/seconds/{key(stage)}"))
                       for stage, value in run.seconds.items()]  # fmt: skip
        elif isinstance(run, RunRecord):
            values += settings(run.environment, "run/environment")
            for name, noise in run.noise.items():
                at = f"run/noise/{key(name)}"
                values.append((f"A/A noise, {name}", Sourced(noise, f"{at}/low", f"{at}/high")))
            values += [*fields_of(run, "run", "branch"), *settings(run.base_commit, "run/base_commit", "base commit")]
            values += fields_of(run, "run", "seed", "policy", "options")
        return tuple(values)


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
            return citing(f"Nothing was kept in {tried}: the code is as it was.", self.kept)
        over = "the workload" if len(report.workloads) == 1 else f"{len(report.workloads)} workloads, geometric mean"
        speedup, (before, after) = self.typical(faster(report.speedup)), self.mean_ms
        return citing(
            f"{self.p.capitalize()}{'speed-up' if self.p else 'Speed-up'} {speedup} over the untouched code "
            f"({over}: {self.p}{before} → {after} ms); {len(report.kept)} of {tried} kept.",
            Sourced("", "run/baseline"),
            speedup,
            before,
            after,
            self.kept,
        )

    @property
    def mean_ms(self) -> tuple[Sourced, Sourced]:
        """Describes the times before and after the run."""
        ids = [change.time_ids for change in self.report.workloads]
        before, after = ([pair[n] for pair in ids] for n in (0, 1))
        return Sourced(number(self.report.before_ms), *before), Sourced(number(self.report.after_ms), *after)

    @property
    def kept(self) -> Sourced:
        """Says how many iterations were kept."""
        tried = self.report.tried
        return Sourced(f"{len(self.report.kept)} of {len(tried)}", *(f"iteration/{each.n}/status" for each in tried))

    def notes(self) -> Iterator[str]:
        """Yields warnings about the result."""
        report, run = self.report, self.report.run
        lossy = [iteration for iteration in report.kept if iteration.risk == "lossy"]
        if lossy:
            named = [citing(f"{iteration.n} ({iteration.optimization})", ordinal(iteration)) for iteration in lossy]
            yield citing(f"Lossy, though within the task's tolerance: iteration {', '.join(named)}.", *named)
        unverified = [ordinal(iteration) for iteration in report.kept if iteration.correctness != "PASS"]
        if unverified:
            yield citing(f"Kept without being verified: iteration {', '.join(unverified)}.", *unverified)
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
            [Sourced(n, f"iteration/{n}/n"), name,
             Sourced(prediction_error.speedup(change.speedup, change.kind), f"iteration/{n}/to_confirm/speedup"),
             change.command]
            for n, name, change in left_to_confirm(self.report.iterations)
        ]  # fmt: skip
        return ["", "change", "predicted speed-up", "to measure it"], rows

    def tampering(self) -> tuple[list[str], list[list[str]]]:
        """Returns header and rows of the table of proposals that were refused as tampering."""
        rows = [
            [Sourced(each.n, f"iteration/{each.n}/n"), each.site, Sourced(each.tampering, f"iteration/{each.n}/reason")]
            for each in self.report.tried if each.tampering
        ]  # fmt: skip
        return ["", "proposal", "what it reached for"], rows

    def workloads(self) -> tuple[list[str], list[list[str]]]:
        """Returns header and rows of the table of workloads. Predicted times have no interval."""
        step = 2 if self.predicted else 1
        times = [f"{self.p}before, µs", "95 %", f"{self.p}after, µs", "95 %"][::step]
        rows = []
        for change in self.report.workloads:
            cells = [cell for side in change.sides for cell in (time_us(*side), interval_us(*side))]
            bound = change.before.bound.kind if change.before.bound else NOTHING
            rows.append([change.workload, *cells[::step], faster(change.speedup), both_lights(change), bound])
        return ["workload", *times, f"{self.p}speed-up", f"{self.p}speed of light", "bound"], rows

    def limits(self) -> tuple[list[str], list[list[str]]]:
        """Returns header and rows of the table of what limits each workload, the final version's most expensive limit
        first."""
        rows = []
        for metrics, at in self._diagnosed():
            assert metrics.diagnosis is not None
            found = metrics.diagnosis
            for place, each in enumerate((found.limit, *found.others)):
                source = f"{at}/limit" if not place else f"{at}/others/{place - 1}"
                lost = Sourced(number(each.lost_us), f"{source}/lost_us")
                named = metrics.workload if not place else ""
                rows.append([named, each.resource, lost, Sourced(each.evidence, f"{source}/evidence")])
        rung = next((each.diagnosis.rung for each, _ in self._diagnosed() if each.diagnosis), "")
        return ["workload", "limit", "costs about, µs", f"evidence from {rung}"], rows

    def moves(self) -> tuple[list[str], list[list[str]]]:
        """Returns header and rows of the table of changes that would ease the limits."""
        rows = [
            [metrics.workload, move.entry, Sourced(move.outcome, f"{at}/moves/{place}/outcome")]
            for metrics, at in self._diagnosed()
            if metrics.diagnosis is not None
            for place, move in enumerate(metrics.diagnosis.moves)
        ]
        return ["workload", "change", "outcome"], rows

    def _diagnosed(self) -> Iterator[tuple[Metrics, str]]:
        """Yields the metrics of each workload after the run that have a diagnosis, and the ledger id of the
        diagnosis."""
        for change in self.report.workloads:
            metrics, at = change.sides[1]
            if metrics.diagnosis is not None:
                yield metrics, f"{at}/diagnosis"


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
            return Sourced(f"No configuration works for {', '.join(without)} ({done} in all).", WORKLOADS_AT)
        if all(workload.is_shipped(workload.result.best) for workload in report.workloads if workload.result.best):
            return Sourced(f"The configuration shipped today is the best on {done}.", WORKLOADS_AT)
        speedup = faster(report.speedup)
        if speedup == NOTHING:
            text = f"The best configuration of {done}; the one shipped today has no {self.p}time to compare with."
            return Sourced(text, WORKLOADS_AT)
        name, speedup = f"{self.p}speed-up".capitalize(), self.typical(speedup)
        text = f"{name} {speedup} over the configuration shipped today (geometric mean, {done})."
        return Sourced(text, WORKLOADS_AT, *speedup.ids)

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
        if self.report.workloads:
            yield f"{prediction_error.times().replace('p', 'P', 1)}."
        if not run.board:
            yield "An earlier version of Tilewright made this run, and did not store what the roofline needs."

    @property
    def command(self) -> str:
        run = self.report.run
        return run.reproduce or f"tilewright tune {run.where or 'FILE:' + run.task} --arch {run.machine.arch} --fresh"
