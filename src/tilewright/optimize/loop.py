"""The optimisation loop: read this first.

    baseline → choose → build → judge → commit → record → keep or restore → choose …

One iteration tries one entry of the playbook at one site (P-10): its values are compiled side by side, what the
machine code rules out falls, the rest is verified and raced against the incumbent, and the best of them is
confirmed on fresh inputs. The ledger has it before anything is kept, so a kill loses at most the running
iteration, and the same command goes on. `run.optimize` sets up what a `Loop` needs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tilewright.errors import MachineError, TilewrightError
from tilewright.hardware.architectures import Board
from tilewright.inspect.work import CountedWork, count
from tilewright.ledger import perf_results
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.records import (
    Attempt,
    EntryHistory,
    Iteration,
    IterationStatus,
    Metrics,
    RunRecord,
    WorkloadOutcome,
    still_kept,
)
from tilewright.optimize.attempting import Builder, Variant, applied, fell, screened
from tilewright.optimize.choosing import Key, Proposal, Tries, proposals
from tilewright.optimize.decide import following
from tilewright.optimize.gates.base import Gate, Judged
from tilewright.optimize.limits import TimeUp, within
from tilewright.optimize.metrics import mean_interval_ms, mean_ms
from tilewright.optimize.proposed import ENTRY, Proposer, Seen, proposal_of
from tilewright.optimize.versions.workspace import Workspace
from tilewright.optimize.what_changed import what_changed
from tilewright.playbook.base import Entry, KernelFacts
from tilewright.progress import Progress
from tilewright.records import Bound, Value, Workload
from tilewright.source.syntax import Source


@dataclass(frozen=True)
class Limits:
    """When the loop ends, and what it may try."""

    policy: str
    iterations: int
    minutes: float
    """Of wall time, for one iteration (P-11)."""
    patience: int
    lossy: bool


@dataclass(frozen=True)
class Setup:
    """What a loop works with."""

    run: RunRecord
    ledger: Ledger
    workspace: Workspace
    builder: Builder
    gate: Gate
    entries: Sequence[Entry]
    proposers: Sequence[Proposer]
    history: Mapping[str, EntryHistory]
    bounds: Mapping[str, Bound]
    limits: Limits
    progress: Progress

    @property
    def board(self) -> Board:
        return self.builder.board

    @property
    def workloads(self) -> tuple[Workload, ...]:
        return self.builder.workloads


@dataclass
class Loop:
    """One run, from its incumbent to its stop reason. ``iterations`` are those that the ledger has."""

    setup: Setup
    incumbent: Variant
    iterations: list[Iteration]
    tried: dict[Key, Tries] = field(default_factory=dict)
    lowered: set[str] = field(default_factory=set)
    ruled_out: list[str] = field(default_factory=list)
    """Since the last iteration: what needed none."""
    misses: int = 0
    """Iterations in a row that kept nothing."""
    missed: Counter[str] = field(default_factory=Counter)
    """By entry, its reverted sites since a change was kept."""
    _stop: str | None = None
    """Why the loop ends after the last iteration, by P-22."""
    _kept: int = 0
    """Changes kept so far."""
    _built_so_far: int = 0
    _facts: tuple[Variant, KernelFacts] | None = None

    def __post_init__(self) -> None:
        """Where an interrupted run stood."""
        done, self.iterations = self.iterations, []
        for one in done:
            self._follow(one)
            self.iterations.append(one)

    def run(self) -> str:
        """Iterates until something says stop; the reason."""
        limits = self.setup.limits
        self._write_table()  # a kill may have come between the ledger and the table
        while self._stop is None and len(self.iterations) <= limits.iterations:
            started = time.perf_counter()
            chosen = self._next()
            if chosen is None:
                return "every entry was tried"
            proposal, variants, attempts = chosen
            judged = self._judged(proposal, variants) if variants else _nothing_left(attempts)
            self._record(proposal, variants, judged, attempts, time.perf_counter() - started)
        return self._stop or f"{limits.iterations} iterations (P-23)"

    # Choosing -------------------------------------------------------------------------------------

    def _next(self) -> tuple[Proposal, list[Variant], list[Attempt]] | None:
        """The next proposal of which something is left after compiling, or what was handed in; None when all
        were tried."""
        for proposal in self._candidates():
            self.setup.progress("build", len(self.iterations), self.setup.limits.iterations, proposal.name)
            try:
                with within(self.setup.limits.minutes * 60):
                    variants, attempts = self._built(proposal)
            except TimeUp:
                late = f"did not compile within {self.setup.limits.minutes:g} min"
                variants, attempts = [], [fell(proposal.place, "failed", late)]
            if variants or proposal.entry == ENTRY:  # who hands something in hears what became of it
                return proposal, variants, attempts
            self._count(proposal.entry, proposal.place)
            self.ruled_out.append(f"{proposal.name}: {_nothing_left(attempts)}")
        return None

    def _candidates(self) -> Iterator[Proposal]:
        """What may be tried on the incumbent, in order; what is handed in comes first."""
        texts, facts = self.incumbent.texts, self._known()
        for proposer in self.setup.proposers:
            change = proposer.propose(Seen(texts, facts, tuple(self.iterations)))
            if change is not None:
                yield proposal_of(change, texts)
        found, unable = proposals(
            texts, facts, self.setup.entries, history=self.setup.history, tried=self.tried,
            kept=self._kept, lossy=self.setup.limits.lossy, lowered=frozenset(self.lowered), missed=self.missed,
        )  # fmt: skip
        self.ruled_out += [one for one in unable if one not in self.ruled_out]
        yield from found

    def _known(self) -> KernelFacts:
        """The facts of the incumbent, made once for each."""
        if self._facts is None or self._facts[0] is not self.incumbent:
            variant, board = self.incumbent, self.setup.board
            work: dict[str, CountedWork] = {}

            def counted(workload: Workload) -> CountedWork:
                if workload.name not in work:
                    work[workload.name] = count(variant.task, workload, board)
                return work[workload.name]

            facts = KernelFacts(variant.task, board, self.setup.workloads, self.setup.bounds, variant.codes, counted)
            self._facts = variant, facts
        return self._facts[1]

    def findings(self) -> list[str]:
        """What entries see in the incumbent that no source change mends, such as token chains (K1 J)."""
        found: list[str] = []
        for entry in self.setup.entries:
            for path, text in self.incumbent.texts.items():
                found += entry.findings(Source(path.name, text), self._known())
        return found

    # Building and judging -------------------------------------------------------------------------

    def _built(self, proposal: Proposal) -> tuple[list[Variant], list[Attempt]]:
        """Every value of the proposal that compiles to something else than the incumbent."""
        self._built_so_far += 1  # for the name: two proposals of one entry may be built in one iteration
        label = f"{len(self.iterations)}-{proposal.entry}-{self._built_so_far}"
        wanted, fallen = applied(proposal, self.incumbent.texts, label)
        built, failed = self.setup.builder.built(wanted)
        variants, dropped = screened(built, self.incumbent)
        return variants, [*fallen, *failed, *dropped]

    def _judged(self, proposal: Proposal, variants: list[Variant]) -> Judged | str:
        """The gate's word; or why the iteration crashed."""
        n, limits = len(self.iterations), self.setup.limits
        self.setup.progress("judge", n, limits.iterations, f"{proposal.name}: {len(variants)} variants")
        try:
            with within(limits.minutes * 60):
                return self.setup.gate.judge(variants, self.incumbent)
        except TimeUp:
            return f"longer than {limits.minutes:g} min (P-11)"
        except MachineError:
            raise
        except TilewrightError as error:
            return str(error)

    def _record(
        self, proposal: Proposal, variants: list[Variant], judged: Judged | str, attempts: list[Attempt],
        seconds: float,
    ) -> None:  # fmt: skip
        """Committed, recorded, and only then kept or restored (P-20)."""
        n, workspace = len(self.iterations), self.setup.workspace
        iteration = Iteration(
            n=n, optimization=proposal.name, entry=proposal.entry, site=proposal.place,
            why_chosen=proposal.why, risk=proposal.risk, seconds=seconds, ruled_out=tuple(self.ruled_out),
            correctness="unverified", status="crash", reason=str(judged), attempts=tuple(attempts),
        )  # fmt: skip
        if isinstance(judged, Judged):
            iteration = self._with_judgement(iteration, judged)
        elif not variants and all(one.status in ("duplicate", "screened") for one in attempts):
            iteration = replace(iteration, status="revert")  # nothing broke: there was nothing to judge
        value, texts = self._tried(proposal, variants, judged)
        if texts is not None:
            message = _message(n, proposal, value, iteration.reason)
            commit = workspace.write_and_commit(n, texts, message)
            iteration = replace(iteration, value=str(value), commit=commit, diff=workspace.diff(commit))
        self.append(iteration)
        if iteration.commit is not None:
            if isinstance(judged, Judged) and judged.keep:
                workspace.keep(iteration.commit)
                self.incumbent = judged.best
            else:
                workspace.revert(n, iteration.commit)
        self.ruled_out = []

    def _with_judgement(self, iteration: Iteration, judged: Judged) -> Iteration:
        setup = self.setup
        return replace(
            iteration, correctness=judged.correctness, status=_status(judged), reason=judged.reason,
            latency_ms=judged.latency_ms, interval_ms=judged.interval_ms, predicted_ms=judged.predicted_ms,
            outcomes=judged.outcomes, attempts=(*iteration.attempts, *judged.attempts),
            comparison=what_changed(self.incumbent, judged.best, setup.workloads[0], setup.board),
            environment=judged.environment,
        )  # fmt: skip

    def _tried(
        self, proposal: Proposal, variants: list[Variant], judged: Judged | str
    ) -> tuple[Value, Mapping[Path, str] | None]:
        """What the iteration's commit holds: the value that went furthest, and the texts; None of nothing."""
        if isinstance(judged, Judged):
            return judged.best.value, judged.best.texts
        if variants:
            return variants[0].value, variants[0].texts
        wanted, _ = applied(proposal, self.incumbent.texts, "")
        return (wanted[0][0], wanted[0][2]) if wanted else ("", None)

    def undo(self, reason: str) -> bool:
        """Takes back the last kept change, for what was found out only at the end; False where none is left."""
        kept = still_kept(self.iterations)
        if not kept:
            return False
        last, n = kept[-1], len(self.iterations)
        before = str(kept[-2].commit) if len(kept) > 1 else self.setup.workspace.base_commit
        self.append(
            Iteration(
                n=n, optimization=f"undo {last.n}: {last.optimization}", entry=last.entry, site=last.site,
                correctness="FAIL", status="revert", reason=reason, commit=last.commit,
            )
        )  # fmt: skip
        self.setup.workspace.keep(before)
        texts = self.setup.workspace.texts()
        self.incumbent = self.setup.builder.certain(f"{n}-undo", texts)
        return True

    def append(self, iteration: Iteration) -> None:
        """Into the ledger, and the table that is a view of it."""
        setup = self.setup
        setup.ledger.append(setup.run.run, iteration)
        self._follow(iteration)
        self.iterations.append(iteration)
        self._write_table()
        note = f"{iteration.optimization}: {iteration.status}: {iteration.reason}"
        setup.progress("iteration", iteration.n, setup.limits.iterations, note)

    def _write_table(self) -> None:
        setup = self.setup
        perf_results.update(setup.ledger.folder(setup.run.run), self.iterations, measured=setup.gate.measured)

    def _follow(self, one: Iteration) -> None:
        """What comes after an iteration, by P-22: from its row alone, so that a resumed run goes on alike."""
        if not self.iterations:
            return
        limits, kept = self.setup.limits, one.status == "keep"
        share = _share_gained(one, still_kept(self.iterations)[-1:] or self.iterations[:1]) if kept else 0.0
        after = following(kept, share, limits.policy, self.misses, limits.patience)
        self.misses, self._stop = after.misses, after.stop_reason
        self.missed[one.entry] += 1
        if kept:
            self.missed.clear()
            self._kept += 1
            (self.lowered.add if after.lower_priority else self.lowered.discard)(one.entry)
        self._count(one.entry, one.site)

    def _count(self, entry: str, place: str) -> None:
        """A site that was tried. What was kept there changed the code, and may be changed further."""
        before = self.tried.get((entry, place), Tries(0, 0))
        self.tried[entry, place] = Tries(before.times + 1, self._kept)


def _share_gained(one: Iteration, before: Sequence[Iteration]) -> float:
    """Of the time: measured by pairs, or else predicted."""
    if one.gain is not None:
        return 1 - 1 / one.gain
    was = before[0].predicted_ms
    return 1 - one.predicted_ms / was if one.predicted_ms is not None and was else 0.0


def _status(judged: Judged) -> IterationStatus:
    return "keep" if judged.keep else "crash" if judged.crashed else "revert"


def _nothing_left(attempts: Sequence[Attempt]) -> str:
    """Why a proposal has no variant: in the words of its attempts, said once."""
    reasons = list(dict.fromkeys(one.reason for one in attempts))
    return "; ".join(reasons[:3]) if reasons else "no value to try"


def _message(n: int, proposal: Proposal, value: Value, reason: str) -> str:
    """Of the commit: what, where, and the evidence."""
    lossy = " (lossy)" if proposal.risk == "lossy" else ""
    head = f"{proposal.name} = {value}{lossy}" if str(value) != proposal.place else f"{proposal.name}{lossy}"
    return f"{head}\n\nIteration {n}, {proposal.entry} at {proposal.place}.\n{reason}\nChosen: {proposal.why}\n"


def baseline_iteration(standings: Sequence[Metrics]) -> Iteration:
    """Row 0: the untouched code (P-19)."""
    measured = [one.measured for one in standings if one.measured is not None]
    predicted = [one.predicted.us for one in standings if one.predicted is not None]
    return Iteration(
        n=0,
        optimization="baseline",
        correctness="PASS",
        status="keep",
        reason="the untouched code",
        latency_ms=mean_ms(one.us for one in measured),
        interval_ms=mean_interval_ms(measured),
        predicted_ms=mean_ms(predicted),
        outcomes=tuple(
            WorkloadOutcome(
                workload=one.workload, verdict="the untouched code", measured=one.measured,
                predicted=one.predicted, code=one.code,
            )
            for one in standings
        ),
    )  # fmt: skip
