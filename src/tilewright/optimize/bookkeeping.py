"""The state of a run of `optimize`. It writes each iteration to git, the ledger and the table.

The whole state can be rebuilt from the ledger's iterations, so that an interrupted run can be continued.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tilewright.inspect.work import CountedWork, count
from tilewright.ledger import perf_results
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.records import (
    PROPOSER,
    Attempt,
    AttemptStatus,
    EntryHistory,
    Iteration,
    Metrics,
    RunRecord,
    ToConfirm,
    still_kept,
)
from tilewright.optimize.attempting import Builder, Variant, apply_values
from tilewright.optimize.choosing import Key, Past, Proposal, Tries, proposals, why_not
from tilewright.optimize.decide import following
from tilewright.optimize.elsewhere import OtherArchitectures
from tilewright.optimize.fields import look_ahead
from tilewright.optimize.gates.base import Gate, Judged, metrics_of
from tilewright.optimize.options import Options
from tilewright.optimize.proposed import ENTRY, Proposer, Seen, proposal_of
from tilewright.optimize.proposing.asked import ExternalProposer
from tilewright.optimize.recording import message_of, what_changed, with_times
from tilewright.optimize.versions.workspace import Workspace
from tilewright.playbook.analyses.edited_files import edited_files
from tilewright.playbook.base import Entry, KernelFacts
from tilewright.progress import BEST, Progress
from tilewright.race.stats import geometric_mean
from tilewright.records import Bound, Value, Workload

WITHOUT_FAILURE: tuple[AttemptStatus, ...] = ("duplicate", "screened", "tampering")
"""The outcomes of values that neither became a variant nor failed."""


@dataclass(frozen=True)
class Setup:
    """The objects that a loop works with. They stay the same for the whole run."""

    run: RunRecord
    ledger: Ledger
    workspace: Workspace
    builder: Builder
    gate: Gate
    entries: Sequence[Entry]
    addable: Sequence[Entry]
    """The entries that may be added to a structural change. ``--only`` does not limit them."""
    proposers: Sequence[Proposer]
    history: Mapping[str, EntryHistory]
    bounds: Mapping[str, Bound]
    options: Options
    progress: Progress
    elsewhere: OtherArchitectures = field(default_factory=lambda: OtherArchitectures({}))
    proposer: ExternalProposer | None = None
    """The proposer that is asked after the playbook."""


@dataclass
class Bookkeeping:
    """The state of a run. ``iterations``: the iterations in the ledger."""

    setup: Setup
    incumbent: Variant
    iterations: list[Iteration]
    tried: dict[Key, Tries] = field(default_factory=dict)
    lowered: set[str] = field(default_factory=set)
    ruled_out: list[str] = field(default_factory=list)
    """Proposals that left no variant to judge, each with the reason, since the last iteration."""
    misses: int = 0
    """Iterations in a row that kept nothing."""
    missed: Counter[str] = field(default_factory=Counter)
    """The number of each entry's sites that were reverted since the last kept change, by the entry's name."""
    stop: str | None = None
    """The reason why the loop ends after the last iteration. None if the loop continues."""
    _kept: int = 0
    """Changes kept so far."""
    built: int = 0
    """Proposals that were compiled so far."""
    _facts: tuple[Variant, KernelFacts] | None = None

    def __post_init__(self) -> None:
        """Rebuilds the state from the iterations of an interrupted run."""
        done, self.iterations = self.iterations, []
        for iteration in done:
            self._follow(iteration)

    def candidates(self) -> Iterator[Proposal]:
        """Yields proposals for the incumbent: first changes from proposers, then the playbook's, the most promising
        first."""
        texts = self.incumbent.texts
        for proposer in self.setup.proposers:
            change = proposer.propose(self.seen())
            if change is not None:
                yield proposal_of(change, texts)
        yield from self.ranked()
        ahead = look_ahead()
        if ahead.key not in self.tried or self.tried[ahead.key].kept < self._kept:
            yield ahead

    def seen(self, seconds_left: float = math.inf) -> Seen:
        """Returns the data that a proposer may read."""
        run, ledger = self.setup.run.run, self.setup.ledger
        return Seen(
            self.incumbent.texts, self.facts(), tuple(self.iterations), self.metrics, lambda: ledger.iterations(run),
            seconds_left,
        )  # fmt: skip

    def metrics(self) -> tuple[Metrics, ...]:
        """Returns the incumbent's metrics on each workload, from the iteration that kept it."""
        kept = [*self.iterations[:1], *still_kept(self.iterations)][-1]
        times = {outcome.workload: outcome.measured for outcome in kept.outcomes}
        bounds, workloads = self.setup.bounds, self.setup.builder.workloads
        return tuple(metrics_of(self.incumbent, each, bounds[each.name], times.get(each.name)) for each in workloads)

    def ranked(self) -> list[Proposal]:
        """Returns the playbook's proposals for the incumbent, the most promising first."""
        options = self.setup.options
        past = Past(
            self.setup.history, self.tried, self._kept, options.lossy, self.lowered, self.missed,
            measured=self.setup.gate.measured, by_place=options.policy == "base",
        )  # fmt: skip
        ranked, failures = proposals(self.incumbent.texts, self.facts(), self.setup.entries, past)
        self.ruled_out += [reason for reason in failures if reason not in self.ruled_out]
        return ranked

    def facts(self) -> KernelFacts:
        """Returns the facts of the incumbent. They are cached until the incumbent changes."""
        if self._facts is None or self._facts[0] is not self.incumbent:
            self._facts = self.incumbent, self.facts_of(self.incumbent)
        return self._facts[1]

    def facts_of(self, variant: Variant) -> KernelFacts:
        """Returns the facts of a variant. Its work is counted only when an entry asks for it."""
        builder, work = self.setup.builder, dict[str, CountedWork]()

        def counted(workload: Workload) -> CountedWork:
            if workload.name not in work:
                work[workload.name] = count(variant.task, workload, builder.board)
            return work[workload.name]

        return KernelFacts(variant.task, builder.board, builder.workloads, self.setup.bounds, variant.codes, counted)

    def findings(self) -> list[str]:
        """Returns problems that the entries find but that no change of the source can repair, such as token chains."""
        sources = [files.source for files in edited_files(self.incumbent.texts)]
        pairs = [(entry, source) for entry in self.setup.entries for source in sources]
        return [finding for entry, source in pairs for finding in entry.findings(source, self.facts())]

    def why_not(self, entry: Entry) -> str:
        """Returns the reason why an entry has no site in the incumbent; "" if no reason is known."""
        return why_not(entry, self.incumbent.texts, self.facts())

    def commit_and_record(
        self, proposal: Proposal, variants: list[Variant], judged: Judged | str, attempts: list[Attempt], seconds: float
    ) -> None:
        """Commits the change, records the iteration, and only then keeps or reverts the change."""
        n, workspace = len(self.iterations), self.setup.workspace
        iteration = Iteration(
            n=n, optimization=proposal.name, entry=proposal.entry, site=proposal.place,
            why_chosen=proposal.why, risk=proposal.risk, seconds=seconds, ruled_out=tuple(self.ruled_out),
            correctness="unverified", status="crash", reason=str(judged), attempts=tuple(attempts),
        )  # fmt: skip
        if isinstance(judged, Judged):
            iteration = self._with_judgement(iteration, judged)
        elif not variants and all(attempt.status in WITHOUT_FAILURE for attempt in attempts):
            iteration = replace(iteration, status="revert")  # no value failed, but none became a variant
        value, texts = self._to_commit(proposal, variants, judged)
        if texts is not None:
            message = message_of(n, proposal, value, iteration.reason)
            commit = workspace.write_and_commit(n, texts, message)
            iteration = replace(iteration, value=str(value), commit=commit, diff=workspace.diff(commit))
            if isinstance(judged, Judged) and judged.to_confirm:
                iteration = replace(iteration, to_confirm=self._to_confirm(judged.best, iteration, commit))
        self.append(iteration)
        if iteration.commit is not None:
            if isinstance(judged, Judged) and judged.keep:
                workspace.keep(iteration.commit)
                self.incumbent = judged.best
            else:
                workspace.revert(n, iteration.commit)
        self.ruled_out = []

    def _to_confirm(self, best: Variant, iteration: Iteration, commit: str) -> ToConfirm:
        """Writes the patch of a change that only a GPU can confirm. Returns the text that says how to measure it."""
        run, setup = self.setup.run, self.setup
        file = setup.ledger.folder(run.run).absolute() / f"to-confirm-{iteration.n}-{iteration.entry}.patch"
        file.write_text(setup.workspace.patch(commit))
        before = geometric_mean(metrics.us for metrics in run.baseline if metrics.us)
        command = shlex.join(["tilewright", "optimize", run.where, "--change", str(file)])
        return ToConfirm(speedup=(before or 0.0) / best.predicted_us, kind=best.kind, patch=str(file), command=command)

    def _with_judgement(self, iteration: Iteration, judged: Judged) -> Iteration:
        builder = self.setup.builder
        changed = what_changed(self.incumbent, judged.best, builder.workloads[0], builder.board)
        return with_times(
            replace(
                iteration, correctness=judged.correctness, reason=judged.reason, decided=judged.decided,
                outcomes=judged.outcomes,
                status="keep" if judged.keep else "crash" if judged.crashed else "revert",
                attempts=(*iteration.attempts, *judged.attempts), comparison=changed, environment=judged.environment,
                gain_parts=judged.gain_parts,
            )
        )  # fmt: skip

    def _to_commit(
        self, proposal: Proposal, variants: list[Variant], judged: Judged | str
    ) -> tuple[Value, Mapping[Path, str] | None]:
        """Returns the value that passed the most stages, and its texts. The texts are None if no value could be
        applied."""
        if isinstance(judged, Judged):
            return judged.best.value, judged.best.texts
        if variants:
            return variants[0].value, variants[0].texts
        if proposal.entry not in (ENTRY, PROPOSER):
            return "", None  # to apply a value again may take as long as it did in the build
        requests, _ = apply_values(proposal, self.incumbent.texts, "")
        return (requests[0][0], requests[0][2]) if requests else ("", None)

    def undo(self, reason: str) -> None:
        """Reverts the last kept change, which the final check found wrong."""
        kept = still_kept(self.iterations)
        last, n = kept[-1], len(self.iterations)
        before = str(kept[-2].commit) if len(kept) > 1 else self.setup.workspace.base_commit
        self.append(
            Iteration(
                n=n, optimization=f"undo {last.n}: {last.optimization}", entry=last.entry, site=last.site,
                correctness="FAIL", status="revert", reason=reason, commit=last.commit,
            )
        )  # fmt: skip
        self.setup.workspace.keep(before)
        self.incumbent = self.setup.builder.build_one(f"{n}-undo", self.setup.workspace.texts())

    def end(self, stop_reason: str, final: tuple[Metrics, ...]) -> str:
        """Marks the run as finished, and returns the patch. If nothing is changed, the run leaves no branch."""
        setup = self.setup
        patch = setup.workspace.patch()
        setup.ledger.finish(setup.run.run, stop_reason, final, patch)
        if not patch:
            setup.workspace.drop_branch()
        return patch

    def append(self, iteration: Iteration) -> None:
        """Writes an iteration to the ledger and the table."""
        setup = self.setup
        setup.ledger.append(setup.run.run, iteration)
        self._follow(iteration)
        self.write_table()
        note = f"{iteration.optimization}: {iteration.shown_status}: {iteration.reason}"
        setup.progress("iteration", iteration.n, setup.options.iterations, note)
        time = iteration.latency_ms or iteration.predicted_ms
        if iteration.status == "keep" and time:
            setup.progress(BEST, iteration.n, None, f"{time:.4g} ms after iteration {iteration.n}")

    def write_table(self) -> None:
        setup = self.setup
        perf_results.update(setup.ledger.folder(setup.run.run), self.iterations, measured=setup.gate.measured)

    def _follow(self, iteration: Iteration) -> None:
        """Updates the state by one iteration. Uses only data that the ledger stores, so a resumed run gets the same
        state."""
        before = self.iterations.copy()
        self.iterations.append(iteration)
        if not before:
            return
        if iteration.by_proposer:  # the proposer has limits of its own
            self._kept += iteration.status == "keep"
            return
        options, kept = self.setup.options, iteration.status == "keep"
        share = _share_gained(iteration, still_kept(before)[-1:] or before[:1]) if kept else 0.0
        after = following(kept, share, options.policy, self.misses, options.patience)
        self.misses, self.stop = after.misses, after.stop_reason
        self.missed[iteration.entry] += 1
        if kept:
            self.missed.clear()
            self._kept += 1
            (self.lowered.add if after.lower_priority else self.lowered.discard)(iteration.entry)
        self.count_site(iteration.entry, iteration.site)

    def count_site(self, entry: str, place: str) -> None:
        """Counts a try of the site ``place``. After the next kept change, the site may be tried again."""
        before = self.tried.get((entry, place), Tries(0, 0))
        self.tried[entry, place] = Tries(before.times + 1, self._kept)


def _share_gained(iteration: Iteration, before: Sequence[Iteration]) -> float:
    """Returns the fraction of the time that the iteration saved: measured in pairs, else predicted."""
    if iteration.gain is not None:
        return 1 - 1 / iteration.gain
    was = before[0].predicted_ms
    return 1 - iteration.predicted_ms / was if iteration.predicted_ms is not None and was else 0.0
