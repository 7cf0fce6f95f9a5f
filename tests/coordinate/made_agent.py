"""A program and a judge for tests of the coordinator. The ledger, the journal, git and the files are real; what the
program's runs would say is scripted, so that no test depends on the speed of a machine."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tilewright.coordinate import agent_plan
from tilewright.coordinate.agent_plan import AgentPlan, AgentRequest
from tilewright.coordinate.coordinator import Coordinator, Hands
from tilewright.coordinate.run_book import RunBook
from tilewright.errors import TilewrightError
from tilewright.ledger.agent_records import AgentChange, AgentMeasurement, AgentParts, MeasurementKind
from tilewright.ledger.agent_runs import AgentLedger
from tilewright.ledger.records import Risk
from tilewright.optimize.versions.journal import Journal
from tilewright.profile.figures import Profile
from tilewright.program.findings.base import RunFinding
from tilewright.program.trial import ChangeTrial, Needed, Texts
from tilewright.race.interval import Interval
from tilewright.specialists.delegation import Delegation
from tilewright.specialists.profiling import Profiling
from tilewright.specialists.proposal import NoProposal, ProgramProposal

PROGRAM = "import torch\nslow = 1\nslower = 1\n"
FASTER, TIED, SLOWER = (
    Interval(0.7, 0.75, 0.8, 0.99, 9),
    Interval(0.9, 1.0, 1.1, 0.99, 9),
    Interval(1.1, 1.2, 1.3, 0.99, 9),
)


def program_in(folder: Path, *, git: bool = True) -> Path:
    """Writes a program, and commits it. Returns the script."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "train.py"
    script.write_text(PROGRAM)
    if git:
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
            subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=folder, check=True)
    return script


def proposing(monkeypatch: pytest.MonkeyPatch, risk: Risk = "lossless", **replaced: str) -> list[Delegation]:
    """Lets the profiling specialist propose ``word=new word``, where the word stands in the script. The name of a
    change is its new word. Returns the delegations that it gets."""
    asked: list[Delegation] = []

    def propose(self: Profiling, delegation: Delegation) -> tuple[ProgramProposal, ...] | NoProposal:
        asked.append(delegation)
        path = Path(delegation.file)
        text = path.read_text()
        there = {new: old for old, new in replaced.items() if f"{old} =" in text}
        found = tuple(
            ProgramProposal(new, "less work", {path: text.replace(f"{old} =", f"{new} =")}, risk, f"train.py:{n}")
            for n, (new, old) in enumerate(there.items(), 1) if new in delegation.task or "up" in delegation.task
        )  # fmt: skip
        return found or NoProposal("inapplicable", "the program has no place for it", "train.py:1")

    monkeypatch.setattr(Profiling, "propose", propose)
    return asked


def measurement(
    kind: MeasurementKind, change: str = "", ratio: Interval | None = None, **values: float
) -> AgentMeasurement:
    return AgentMeasurement(kind=kind, about=kind, change=change, ratio=ratio, values=values, device="this CPU",
                            verdict="faster" if ratio is FASTER else "tied")  # fmt: skip


@dataclass
class ScriptedJudge:
    """Says of each change, by its name, how its race ends; a name that it does not know computes something else.

    seen: the texts that each call was about.
    """

    ratios: Mapping[str, Interval]
    before_each: Callable[[str], None] = lambda name: None
    effect_ratio: Interval = FASTER
    seen: list[tuple[str, Texts]] = field(default_factory=list)
    asked: list[bool] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    found: list[RunFinding] = field(default_factory=list)
    fails: TilewrightError | None = None
    needs: Needed = field(default_factory=lambda: Needed(0.0, 0.0))
    most: list[float] = field(default_factory=list)

    def baseline(
        self, original: Texts, incumbent: Texts, *, profile: bool = False, record: bool = False
    ) -> AgentMeasurement:
        self.before_each("baseline")
        self.seen.append(("baseline", dict(original)))
        return measurement("baseline", step=20.0)

    def profile(self, incumbent: Texts) -> Profile | None:
        return self.profiles.pop(0) if self.profiles else None

    def findings(self, incumbent: Texts) -> tuple[RunFinding, ...]:
        if self.fails is not None:
            raise self.fails
        return tuple(self.found)

    def needed(self) -> Needed:
        return self.needs

    def judge(
        self, change: AgentChange, incumbent: Texts, asked: bool, seconds: float, most: float = math.inf
    ) -> ChangeTrial:
        self.before_each(change.name)
        self.seen.append((change.name, dict(incumbent)))
        self.asked.append(asked)
        self.most.append(most)
        run, outputs = measurement("operations", change.id), measurement("outputs", change.id, worst=0.5)
        ratio = self.ratios.get(change.name)
        if ratio is None:
            return ChangeTrial(kept=False, failed_at="correctness", why="inapplicable", reason="the outputs differ",
                               run=run, outputs=outputs)  # fmt: skip
        race = measurement("race", change.id, ratio, before=20.0, after=20.0 * ratio.centre)
        kept = ratio is FASTER
        return ChangeTrial(kept=kept, failed_at="" if kept else "validate", why="" if kept else "applied but no gain",
                     reason=f"{ratio} of the time", run=run, outputs=outputs, race=race)  # fmt: skip

    def effect(
        self, original: Texts, final: Texts, changes: tuple[AgentChange, ...], seconds: float = math.inf
    ) -> tuple[AgentMeasurement, ...]:
        self.before_each("effect")
        self.seen.append(("effect", dict(original)))
        values = {"step before, µs": 20.0, "step after, µs": 20.0 * self.effect_ratio.centre}
        return (measurement("effect", ratio=self.effect_ratio, **values), measurement("operations", ran=3.0))


def plan_for(script: Path, question: str = "speed up train.py", **fields: object) -> AgentPlan:
    return agent_plan.planned(AgentRequest(question, cwd=script.parent, **fields))  # type: ignore[arg-type]


@contextmanager
def coordinator(
    plan: AgentPlan, home: Path, judge: ScriptedJudge, seconds: float = 1e6, clock: Callable[[], float] = time.monotonic
) -> Iterator[Coordinator]:
    """A coordinator of a new run, or of the interrupted one."""
    with AgentLedger(home / "ledger.db") as ledger:
        record = agent_plan.record_of(plan)
        run, parts = ledger.resume(record.key) or (ledger.begin(record), AgentParts())
        with Journal.open(plan.program.root, run.run, home) as journal:
            yield Coordinator(plan, RunBook(ledger, run, parts), Hands(judge, journal), seconds=seconds, clock=clock)


def worked(
    script: Path, home: Path, judge: ScriptedJudge, question: str = "speed up train.py", **fields: object
) -> RunBook:
    """Plans and works."""
    with coordinator(plan_for(script, question, **fields), home, judge) as made:
        return made.work()
