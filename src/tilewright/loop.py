"""The optimisation loop: read this first.

    baseline → choose → build → judge → commit → record → keep or restore → choose …

One iteration tries one entry of the playbook at one site (P-10): its values are compiled side by side, what the
machine code rules out falls, the rest is verified and raced against the incumbent, and the best of them is
confirmed on fresh inputs. The ledger has it before anything is kept, so a kill loses at most the running
iteration, and the same command goes on. `optimizing.optimize` sets up what a `Loop` needs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright import perf_results
from tilewright.attempting import Builder, Variant, applied, screened
from tilewright.choosing import Key, Proposal, Tries, proposals
from tilewright.counted import Work, count
from tilewright.decide import following
from tilewright.errors import MachineError, TilewrightError
from tilewright.gate import Gate, Judged
from tilewright.handed_in import Proposer, Seen, proposal_of
from tilewright.hardware import Board
from tilewright.ledger import Ledger
from tilewright.ledger_records import (
    Attempt,
    EntryHistory,
    Iteration,
    IterationStatus,
    RunRecord,
    Standing,
    WorkloadOutcome,
)
from tilewright.limits import TimeUp, within
from tilewright.playbook.base import Entry, Facts
from tilewright.progress import Progress
from tilewright.records import Bound, Value, Workload
from tilewright.standing import mean_interval_ms, mean_ms
from tilewright.what_changed import what_changed
from tilewright.workspace import Workspace


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
    _kept: int = 0
    """Changes kept so far."""
    _facts: tuple[Variant, Facts] | None = None

    def __post_init__(self) -> None:
        """Where an interrupted run stood."""
        for one in self.iterations[1:]:
            self._kept += one.status == "keep"
            self._count(one.entry, one.site)
            after = following(one.status == "keep", 1.0, self.setup.limits.policy, self.misses, 10**6)
            self.misses = after.misses

    def run(self) -> str:
        """Iterates until something says stop; the reason."""
        limits = self.setup.limits
        while len(self.iterations) <= limits.iterations:
            started = time.perf_counter()
            chosen = self._next()
            if chosen is None:
                return "every entry was tried"
            proposal, variants, attempts = chosen
            judged = self._judged(proposal, variants, attempts)
            iteration = self._recorded(proposal, judged, attempts, time.perf_counter() - started)
            self._kept += iteration.status == "keep"
            self._count(proposal.entry, proposal.place)
            if isinstance(judged, Judged):
                self._follow(proposal, judged)
            gain = (iteration.gain or 1.0) if iteration.status == "keep" else 1.0
            after = following(
                iteration.status == "keep", 1 - 1 / gain, limits.policy, self.misses, limits.patience
            )
            self.misses = after.misses
            if stop := (judged.stop if isinstance(judged, Judged) else after.stop_reason):
                return stop
        return f"{limits.iterations} iterations (P-23)"

    # Choosing -------------------------------------------------------------------------------------

    def _next(self) -> tuple[Proposal, list[Variant], list[Attempt]] | None:
        """The next proposal of which something is left after compiling; None when all were tried."""
        passed: set[Key] = set()
        while True:
            proposal = self._chosen(passed)
            if proposal is None:
                return None
            passed.add(proposal.key)
            self.setup.progress("build", len(self.iterations), self.setup.limits.iterations, proposal.name)
            try:
                with within(self.setup.limits.minutes * 60):
                    variants, attempts = self._built(proposal)
            except TimeUp:
                self._count(proposal.entry, proposal.place)
                self.ruled_out.append(
                    f"{proposal.name}: did not compile within {self.setup.limits.minutes:g} min"
                )
                continue
            if variants:
                return proposal, variants, attempts
            self._count(proposal.entry, proposal.place)
            self.ruled_out.append(f"{proposal.name}: {_nothing_left(attempts)}")

    def _chosen(self, passed: set[Key]) -> Proposal | None:
        texts, facts = self.incumbent.texts, self._known()
        for proposer in self.setup.proposers:
            change = proposer.propose(Seen(texts, facts, tuple(self.iterations)))
            if change is not None:
                return proposal_of(change, texts)
        found, unable = proposals(
            texts, facts, self.setup.entries, history=self.setup.history, tried=self.tried,
            kept=self._kept, lossy=self.setup.limits.lossy, lowered=frozenset(self.lowered),
        )  # fmt: skip
        self.ruled_out += [one for one in unable if one not in self.ruled_out]
        return next((one for one in found if one.key not in passed), None)

    def _known(self) -> Facts:
        """The facts of the incumbent, made once for each."""
        if self._facts is None or self._facts[0] is not self.incumbent:
            variant, board = self.incumbent, self.setup.board
            work: dict[str, Work] = {}

            def counted(workload: Workload) -> Work:
                if workload.name not in work:
                    work[workload.name] = count(variant.task, workload, board)
                return work[workload.name]

            facts = Facts(
                variant.task, board, self.setup.workloads, self.setup.bounds, variant.codes, counted
            )
            self._facts = variant, facts
        return self._facts[1]

    # Building and judging -------------------------------------------------------------------------

    def _built(self, proposal: Proposal) -> tuple[list[Variant], list[Attempt]]:
        """Every value of the proposal that compiles to something else than the incumbent."""
        wanted, fallen = applied(
            proposal.apply,
            self.incumbent.texts,
            proposal.values(),
            f"{len(self.iterations)}-{proposal.entry}",
        )
        built, failed = self.setup.builder.built(wanted)
        variants, dropped = screened(built, self.incumbent)
        return variants, [*fallen, *failed, *dropped]

    def _judged(self, proposal: Proposal, variants: list[Variant], attempts: list[Attempt]) -> Judged | str:
        """The gate's word; or why the iteration crashed."""
        n, limits = len(self.iterations), self.setup.limits
        self.setup.progress("judge", n, limits.iterations, f"{proposal.name}: {len(variants)} variants")
        try:
            with within(limits.minutes * 60):
                return self.setup.gate.judge(variants, self.incumbent, self.misses)
        except TimeUp:
            return f"longer than {limits.minutes:g} min (P-11)"
        except MachineError:
            raise
        except TilewrightError as error:
            return str(error)

    def _recorded(
        self, proposal: Proposal, judged: Judged | str, attempts: list[Attempt], seconds: float
    ) -> Iteration:
        """Committed, recorded, and only then kept or restored (P-20)."""
        n, setup, commit = len(self.iterations), self.setup, None
        iteration = Iteration(
            n=n, optimization=proposal.name, entry=proposal.entry, site=proposal.place,
            why_chosen=proposal.why, risk=proposal.risk, seconds=seconds, ruled_out=tuple(self.ruled_out),
            correctness="unverified", status="crash", reason=str(judged), attempts=tuple(attempts),
        )  # fmt: skip
        if isinstance(judged, Judged):
            best = judged.best
            commit = setup.workspace.write_and_commit(
                n, best.texts, _message(n, proposal, best.value, judged)
            )
            iteration = replace(
                iteration, value=str(best.value), correctness=judged.correctness,
                status=_status(judged), reason=judged.reason, commit=commit,
                latency_ms=judged.latency_ms, interval_ms=judged.interval_ms, predicted_ms=judged.predicted_ms,
                outcomes=judged.outcomes, attempts=(*attempts, *judged.attempts),
                diff=setup.workspace.diff(commit),
                comparison=what_changed(self.incumbent, best, setup.workloads[0], setup.board),
                environment=judged.environment,
            )  # fmt: skip
        self.append(iteration)
        if commit is not None and isinstance(judged, Judged):
            if judged.keep:
                setup.workspace.keep(commit)
                self.incumbent = judged.best
            else:
                setup.workspace.revert(n, commit)
        self.ruled_out = []
        return iteration

    def undo(self, reason: str) -> bool:
        """Takes back the last kept change, for what was found out only at the end; False where none is left."""
        kept = [one for one in self.iterations if one.status == "keep" and one.commit in self._standing()]
        if not kept:
            return False
        last, n = kept[-1], len(self.iterations)
        before = kept[-2].commit if len(kept) > 1 else self.setup.workspace.base_commit
        self.append(
            Iteration(
                n=n, optimization=f"undo {last.n}: {last.optimization}", entry=last.entry, site=last.site,
                correctness="FAIL", status="revert", reason=reason, commit=last.commit,
            )
        )  # fmt: skip
        self.setup.workspace.keep(str(before))
        texts = self.setup.workspace.texts()
        variants, _ = self.setup.builder.built([(f"undo {last.n}", f"{n}-undo", texts)])
        self.incumbent = variants[0]
        return True

    def _standing(self) -> set[str]:
        """The commits that the branch holds: those that were kept and not taken back."""
        undone = {one.commit for one in self.iterations if one.status == "revert"}
        return {one.commit for one in self.iterations if one.status == "keep" and one.commit} - undone

    def append(self, iteration: Iteration) -> None:
        """Into the ledger, and the table that is a view of it."""
        setup = self.setup
        setup.ledger.append(setup.run.run, iteration)
        self.iterations.append(iteration)
        perf_results.update(setup.ledger.folder(setup.run.run), self.iterations, measured=setup.gate.measured)
        note = f"{iteration.optimization}: {iteration.status}: {iteration.reason}"
        setup.progress("iteration", iteration.n, setup.limits.iterations, note)

    def _follow(self, proposal: Proposal, judged: Judged) -> None:
        if judged.keep:
            (self.lowered.add if judged.small else self.lowered.discard)(proposal.entry)

    def _count(self, entry: str, place: str) -> None:
        """A site that was tried. What was kept there changed the code, and may be changed further."""
        before = self.tried.get((entry, place), Tries(0, 0))
        self.tried[entry, place] = Tries(before.times + 1, self._kept)


def _status(judged: Judged) -> IterationStatus:
    return "keep" if judged.keep else "crash" if judged.crashed else "revert"


def _nothing_left(attempts: Sequence[Attempt]) -> str:
    """Why a proposal has no variant: in the words of its attempts, said once."""
    reasons = list(dict.fromkeys(one.reason for one in attempts))
    return "; ".join(reasons[:3]) if reasons else "no value to try"


def _message(n: int, proposal: Proposal, value: Value, judged: Judged) -> str:
    """Of the commit: what, where, and the evidence."""
    lossy = " (lossy)" if proposal.risk == "lossy" else ""
    head = f"{proposal.name} = {value}{lossy}" if str(value) != proposal.place else f"{proposal.name}{lossy}"
    return f"{head}\n\nIteration {n}, {proposal.entry} at {proposal.place}.\n{judged.reason}\nChosen: {proposal.why}\n"


def baseline_iteration(standings: Sequence[Standing]) -> Iteration:
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
