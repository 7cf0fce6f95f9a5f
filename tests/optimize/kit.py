"""What the tests of the loop share: a small kernel in a repository of its own, made-up entries, a scripted gate."""

from __future__ import annotations

import atexit
import datetime
import hashlib
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from tests.made_runs import MACHINE

from tilewright.candidate.client import Candidates
from tilewright.errors import MachineError, TaskError, TilewrightError
from tilewright.hardware.architectures import default_board
from tilewright.hardware.diagnosis import Resource
from tilewright.inspect.work import bound_of
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.records import Attempt, EntryHistory, Iteration, Metrics, RunRecord, WorkloadOutcome
from tilewright.optimize.attempting import Builder, Variant, no_variant
from tilewright.optimize.bookkeeping import Setup
from tilewright.optimize.decide import Paired, decide
from tilewright.optimize.gates.base import ConfirmedVariant, Judged, RacedVariants
from tilewright.optimize.loop import Loop
from tilewright.optimize.options import Options
from tilewright.optimize.proposed import Proposer
from tilewright.optimize.proposing.asked import Ask, ExternalProposer, Propose
from tilewright.optimize.recording import baseline_iteration
from tilewright.optimize.versions import version as versions
from tilewright.optimize.versions.workspace import Workspace
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Risk, Site
from tilewright.race.stats import Interval, measured_of
from tilewright.records import Value
from tilewright.source.syntax import Source
from tilewright.task.loading import load_task, where_is
from tilewright.task.task import Task

H200 = default_board("sm_90")
DATE = datetime.date(2026, 11, 21)
DATED = "2026-11-21"

SCALE = '''\
"""y = 2 x, in blocks of TILE."""

import cuda.tile as ct

import tilewright as tw


@ct.kernel
def scale(x, y, TILE: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(y, (i,), ct.load(x, (i,), (TILE,)) * 2)


def launch(x, y, N, config):
    return tw.Launch(scale, (-(-N // config.TILE),), (x, y, config.TILE))


task = tw.Task(
    name="scale",
    launch=launch,
    tensors={"x": tw.Tensor(("N",), "float32"), "y": tw.Output(("N",), "float32")},
    reference=lambda x: 2 * x,
    flops=lambda N: N,
    space=tw.Space(constants={"TILE": (256,)}, shipped={"TILE": 256}),
    workloads={"small": {"N": 4096}},
)
'''


def git(folder: Path, *arguments: str) -> str:
    """Git as a user runs it."""
    who = ("-c", "user.name=User", "-c", "user.email=user@example.org", "-c", "commit.gpgSign=false")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def repository(folder: Path, text: str = SCALE, name: str = "ops.py") -> Path:
    """The task file, committed in a new repository."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_bytes(text.encode())
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--", name)
    git(folder, "commit", "--quiet", "--message=first")
    return file


# Entries --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lines(Entry):
    """An entry that writes a comment at the end of the file, once for each value and place."""

    id: str = "T"
    places: tuple[str, ...] = ("the end",)
    values: tuple[Value, ...] = (1,)
    expected: float = 1.1
    priority: int = 1
    risk: Risk = "lossless"
    kernel: str = ""
    promise: float = 1.0
    tries: int = 2
    eases: tuple[Resource, ...] = ()
    first: bool = False

    @property
    def about(self) -> EntryDescription:
        effect = Effect(self.expected, self.expected, "made up", DATED)
        priority = dict.fromkeys(("memory", "balanced", "compute"), self.priority)
        return EntryDescription(
            self.id,
            f"lines of {self.id}",
            "a comment",
            "always",
            "never",
            priority,
            effect,
            self.risk,
            tries=self.tries,
            eases=self.eases,
            first=self.first,
        )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        line = source.text.count("\n")
        return [Site(self.kernel, line, 0, place, self.values, self.promise) for place in self.places]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        return f"{source.text}# {self.id} {site.what} {value}\n"


@dataclass(frozen=True)
class Tripping(Lines):
    """One that breaks down: while it looks for sites, or while it applies."""

    at: Literal["sites", "apply", "refuses"] = "sites"

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        if self.at == "sites":
            raise KeyError("a form of code that nobody thought of")
        return super().sites(source, facts)

    def apply(self, source: Source, site: Site, value: Value) -> str:
        if self.at == "refuses":
            raise NotApplicable("the loop has no bounds")
        raise IndexError("a form of code that nobody thought of")


# A builder without a compiler, and a gate without a GPU -------------------------------------------------


@cache
def compiled(text: str = SCALE) -> Variant:
    """The untouched code, really compiled; once in a process."""
    folder = Path(FOLDER.name) / hashlib.sha256(text.encode()).hexdigest()[:8]
    folder.mkdir()
    file = folder / "ops.py"
    file.write_text(text)
    task = load_task(str(file))
    builder = Builder(candidates(), task, where_is(task), H200, task.selected(None), folder / "versions", seconds=60)
    return builder.build_one("baseline", {file: text})


@cache
def candidates(*packages: str) -> Candidates:
    """One server of versions for all tests of this process. ``packages``: what it imports once for all versions."""
    file = Path(FOLDER.name) / f"{'_'.join(('imports', *packages))}.py"
    file.write_text("".join(f"import {package}\n" for package in packages))
    server = Candidates([file] if packages else [])
    atexit.register(server.close)
    return server


FOLDER = tempfile.TemporaryDirectory(prefix="tilewright-kit-")
"""Stays until the process ends: whoever lowers a kernel again reads its source again."""


@dataclass(frozen=True)
class Pretending(Builder):
    """Loads as a `Builder` does, and pretends that each text compiles to code of its own."""

    pattern: Variant = field(default_factory=compiled)

    def build(self, wanted: Sequence[tuple[Value, str, Mapping[Path, str]]]) -> tuple[list[Variant], list[Attempt]]:
        variants, fallen = [], []
        for value, name, texts in wanted:
            version = versions.materialise(self.folder, name, texts)
            try:
                task = self.candidates.task(self.baseline, self.where, version.files)
            except TaskError as error:
                fallen.append(no_variant(value, "failed", f"does not load: {error}"))
                continue
            digest = hashlib.sha256("".join(texts.values()).encode()).hexdigest()
            codes = {name: replace(code, code_hash=digest) for name, code in self.pattern.codes.items()}
            variants.append(replace(self.pattern, value=value, texts=texts, version=version, task=task, codes=codes))
        return variants, fallen


Told: TypeAlias = float | Literal["wrong", "crash", "refused", "hang", "no machine"]
"""What the gate says of an iteration: a ratio of times, or what goes wrong."""


class Unranked:
    """Implements `gate.Ranking`, and runs nothing: the script says what becomes of the variants."""

    times: Mapping[str, float] = {}

    def heat(self, variants: Sequence[Variant]) -> bool:
        return False

    def race(self, variants: Sequence[Variant]) -> RacedVariants:
        return RacedVariants(tuple(variants), (), ())


@dataclass
class Scripted:
    """Implements `gate.Gate`: the samples that a script makes up, decided on by `decide.decide`."""

    script: Iterator[Told]
    measured: bool = True
    noise: Mapping[str, Interval] = field(default_factory=dict)
    asked: list[list[str]] = field(default_factory=list)
    us: float = 100.0
    """The incumbent's time."""
    baseline_us: float = 100.0
    seed: int = 1

    def _samples(self, us: float) -> tuple[float, ...]:
        self.seed += 1
        rng = np.random.default_rng(self.seed)
        return tuple(float(one) for one in us * rng.normal(1.0, 0.002, 400))

    def baseline(self, variant: Variant) -> tuple[Metrics, ...]:
        return self.final(variant)

    def final(self, variant: Variant) -> tuple[Metrics, ...]:
        return tuple(
            Metrics(workload=name, measured=measured_of(self._samples(self.us)), code=code)
            for name, code in variant.codes.items()
        )

    def ranking(self, incumbent: Variant) -> Unranked:
        return Unranked()

    def decide(self, confirmed: ConfirmedVariant) -> Judged:
        raise AssertionError("`confirm` has judged")

    def confirm(self, raced: RacedVariants, incumbent: Variant) -> Judged:
        variants = raced.variants
        self.asked.append([str(one.value) for one in variants])
        best, told = variants[0], next(self.script)
        if told == "hang":
            assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
            signal.raise_signal(signal.SIGALRM)  # as if the rest of the iteration's time were over
        if told == "refused":
            raise TilewrightError("the worker process said something strange")
        if told == "no machine":
            raise MachineError("the GPU fell off the bus")
        if isinstance(told, str):
            crashed = told == "crash"
            status, reason = ("crashed", "an illegal address") if crashed else ("wrong", "y[3] is 7, expected 6")
            attempt = best.attempt(status, reason)  # type: ignore[arg-type]
            return Judged(
                best=best, correctness="FAIL", keep=False, crashed=crashed, reason=reason, attempts=(attempt,)
            )
        ours, theirs = self._samples(self.us * told), self._samples(self.us)
        copy, baseline, captures = self._samples(self.us), self._samples(self.baseline_us), [20] * 20
        decided = decide({name: Paired(ours, theirs, copy, baseline, captures) for name in best.codes})
        outcomes = tuple(
            WorkloadOutcome(
                workload=name, verdict=one.why, ratio=one.ratio, against_baseline=one.against_baseline,
                measured=measured_of(ours), incumbent=measured_of(theirs), code=best.codes[name],
            )
            for name, one in decided.by_workload.items()
        )  # fmt: skip
        if decided.keep:
            self.us *= told
        return Judged(
            best=best, correctness="PASS", keep=decided.keep, decided=decided.decided, reason=decided.reason,
            outcomes=outcomes,
            attempts=tuple(one.attempt("raced", "in the race") for one in variants),
        )  # fmt: skip


# The loop -------------------------------------------------------------------------------------------

LIMITS = Options("default", 25, 10.0, 6, lossy=False)


@dataclass
class Stage:
    """One loop, and all that it works with."""

    loop: Loop
    ledger: Ledger
    workspace: Workspace
    gate: Scripted
    file: Path

    @property
    def rows(self) -> tuple[Iteration, ...]:
        """What the ledger holds, read anew."""
        return self.ledger.iterations(self.loop.setup.run.run)

    @property
    def statuses(self) -> list[str]:
        return [one.status for one in self.rows[1:]]

    def run(self) -> str:
        return self.loop.run()


@contextmanager
def staged(
    file: Path,
    home: Path,
    script: Sequence[Told] = (),
    entries: Sequence[Entry] = (),
    *,
    limits: Options = LIMITS,
    history: Mapping[str, EntryHistory] | None = None,
    proposers: Sequence[Proposer] = (),
    propose: tuple[Propose, Ask] | None = None,
    run: str = "",
) -> Iterator[Stage]:
    """A loop on ``file``: a new run, or with ``run`` that one again."""
    task = load_task(str(file))
    workloads = task.selected(None)
    with Ledger(home / "ledger.db") as ledger:
        name = run or ledger.new_name()
        builder = Pretending(candidates(), task, where_is(task), H200, workloads, ledger.folder(name) / "versions")
        gate = Scripted(iter(script))
        with Workspace.open(task, name, home, DATE) as workspace:
            incumbent = builder.build_one("start", workspace.texts())
            standings = gate.baseline(incumbent)
            if run:
                record, iterations = ledger.run(run), list(ledger.iterations(run))
            else:
                record, iterations = ledger.begin(_record(task, name, workspace.branch, standings)), []
            bounds = {one.name: bound_of(task, one, H200) for one in workloads}
            loop = Loop(
                Setup(
                    record, ledger, workspace, builder, gate, tuple(entries), tuple(entries), tuple(proposers),
                    history or {}, bounds, limits, lambda *told: None,
                    proposer=propose and ExternalProposer(*propose, task.file, ledger.folder(name)),
                ),
                incumbent,
                iterations,
            )  # fmt: skip
            if not iterations:
                loop.append(baseline_iteration(standings))
            yield Stage(loop, ledger, workspace, gate, file)


def _record(task: Task, name: str, branch: str, standings: tuple[Metrics, ...]) -> RunRecord:
    return RunRecord(
        run=name, key="k", task=task.name, kernel="scale", where=where_is(task),
        machine=MACHINE, measured=True, board=H200.name,
        bandwidth_gbs=H200.bandwidth_gbs, dtype="float32", seed=1, baseline=standings, branch=branch,
    )  # fmt: skip
