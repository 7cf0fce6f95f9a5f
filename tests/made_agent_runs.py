"""Runs of `agent`, made up for the tests of its reports: every end of an item, no measurement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.made_runs import MACHINE, times

from tilewright.ledger.agent_records import (
    STEPS,
    AgentChange,
    AgentEnd,
    AgentFinding,
    AgentItem,
    AgentMeasurement,
    AgentRun,
    AgentStep,
    MeasurementKind,
    WhyRemaining,
)
from tilewright.ledger.agent_runs import AgentLedger
from tilewright.race.stats import ratio_interval

ROOT = "/home/ada/model"
AGENT_RUN = AgentRun(
    key="key", task="train.py", machine=MACHINE, measured=True, question="speed up train.py", mode="autopilot",
    program=("python", "train.py", "--steps", "20"), root=ROOT, specialists=("profiling",),
    why="a vague question: measure first", trace='CASEBOOK: no-match query="speed up train.py"',
    bottleneck="memory-bound", bottleneck_evidence="memory bandwidth at 89% of peak, compute at 35%",
    options={"rounds": 15},
)  # fmt: skip
DIFF = """\
--- a/train.py
+++ b/train.py
@@ -31,3 +31,1 @@
-    weights = (q @ k.transpose(-2, -1) / math.sqrt(64)).softmax(-1)
-    return weights @ v
+    return torch.nn.functional.scaled_dot_product_attention(q, k, v)
"""


def race(before_us: float, after_us: float, kind: MeasurementKind = "race", change: str = "") -> AgentMeasurement:
    old, new = times(before_us, 1), times(after_us, 2)
    return AgentMeasurement(
        kind=kind, about=f"{kind} of {change or 'the whole program'}", change=change,
        values={"step before, µs": old.us, "step after, µs": new.us}, device="NVIDIA H200",
        ratio=ratio_interval(new.samples_us, old.samples_us, 0.95),
        samples_us={"before": old.samples_us, "after": new.samples_us},
        verdict="faster" if after_us < 0.98 * before_us else "slower" if after_us > 1.02 * before_us else "tied",
        reason="41 interleaved rounds",
    )  # fmt: skip


def item(n: int, text: str, tag: str = "fusion") -> AgentItem:
    return AgentItem(id=f"R{n}", text=text, impact="High", effort="Low", risk="lossless", specialists=("profiling",),
                     findings=(f"3f2a-{n}",), tag=tag)  # fmt: skip


def change(of: AgentItem, name: str) -> AgentChange:
    return AgentChange(id=f"{of.id}.1", item=of.id, specialist="profiling", name=name, site=f"train.py:3{of.id[1:]}",
                       rationale="one kernel, not four", texts={f"{ROOT}/train.py": "new"}, diff=DIFF)  # fmt: skip


class MadeAgentRun:
    """Appends to a run as the coordinator does."""

    def __init__(self, ledger: AgentLedger, record: AgentRun = AGENT_RUN):
        self.ledger, self.run = ledger, ledger.begin(record).run

    def measured(self, measurement: AgentMeasurement) -> str:
        return self.ledger.measured(self.run, measurement).id

    def baseline(self, us: float = 20_000.0) -> str:
        time = times(us)
        return self.measured(AgentMeasurement(
            kind="baseline", about="python train.py --steps 20", values={"step, µs": time.us}, device="NVIDIA H200",
            samples_us={"baseline": time.samples_us},
        ))  # fmt: skip

    def planned(self, *items: AgentItem) -> None:
        for each in items:
            self.ledger.planned(self.run, each)
            self.ledger.found(self.run, AgentFinding(
                id=each.findings[0], kind="attention", level="High", text=each.text, item=each.id,
                evidence="train.py:31",
            ))  # fmt: skip

    def dismissed(self, text: str, why: str) -> None:
        self.ledger.found(self.run, AgentFinding(id="3f2a-9", kind="idle", level="Low", text=text, dismissed=why,
                                                 evidence=f"{self.run}/m0"))  # fmt: skip

    def stepped(self, of: AgentChange, upto: str, failed: str = "", **evidence: str) -> None:
        """Stores the steps of a change up to one of them; ``failed``: why that one failed."""
        for name in STEPS[: STEPS.index(upto) + 1]:  # type: ignore[arg-type]
            last = name == upto and failed
            self.ledger.stepped(self.run, AgentStep(
                change=of.id, name=name, state="failed" if last else "done", reason=failed if last else "",
                evidence=evidence.get(name, of.site),
            ))  # fmt: skip

    def left_out(self, of: AgentChange, *names: str) -> None:
        for name in names:
            self.ledger.stepped(self.run, AgentStep(change=of.id, name=name, state="left out", reason="x"))  # type: ignore[arg-type]

    def applied(self, of: AgentItem, name: str, before_us: float, after_us: float) -> AgentChange:
        made = change(of, name)
        self.ledger.proposed(self.run, made)
        id = self.measured(race(before_us, after_us, change=made.id))
        outputs = self.outputs(made, "equal", "largest difference 1.2e-06, allowed 1.0e-03")
        self.stepped(made, "finish", validate=id, correctness=outputs)
        self.ended(of, "applied", "", "faster beyond the noise", id)
        return made

    def outputs(self, of: AgentChange, verdict: str, reason: str) -> str:
        return self.measured(AgentMeasurement(kind="outputs", about="outputs of 3 steps", change=of.id, verdict=verdict,
                                              reason=reason, values={"worst": 1.2e-06}))  # fmt: skip

    def slower(self, of: AgentItem, name: str, before_us: float, after_us: float) -> AgentChange:
        made = change(of, name)
        self.ledger.proposed(self.run, made)
        id = self.measured(race(before_us, after_us, change=made.id))
        self.stepped(made, "validate", "slower beyond the noise", validate=id)
        self.left_out(made, "correctness")
        self.ledger.stepped(self.run, AgentStep(change=made.id, name="finish", state="done", evidence=id))
        self.ended(of, "rolled back", "applied but no gain", "slower beyond the noise", id)
        return made

    def ended(self, of: AgentItem, status: str, why: WhyRemaining | str, reason: str, evidence: str = "") -> None:
        end = AgentEnd(item=of.id, status=status, why=why, reason=reason, evidence=evidence)  # type: ignore[arg-type]
        self.ledger.ended(self.run, end)

    def finished(self, before_us: float = 20_000.0, after_us: float = 11_000.0) -> str:
        effect = self.measured(race(before_us, after_us, "effect"))
        proof = self.measured(AgentMeasurement(
            kind="operations", about="operations of the last version", verdict="ran",
            reason="scaled_dot_product_attention 0 → 12", facts={"before": 0, "after": 12},
        ))  # fmt: skip
        self.ledger.finish(self.run, "every item has ended", effect=effect, proof=proof, patch=DIFF)
        return self.run


ATTENTION = item(1, "Enable FlashAttention for self-attention layers")
POOLING = item(2, "Apply memory pooling for attention buffers", "")
CHECKPOINTS = item(3, "Consider gradient checkpointing for memory reduction", "locality")
PINNED = item(4, "Copy from pinned memory", "async")
GRAPH = item(5, "Capture the step as a CUDA graph", "batching")


def several(ledger: AgentLedger) -> str:
    """Two changes applied, one rolled back, and an item for each other reason; one finding is dismissed."""
    made = MadeAgentRun(ledger)
    made.baseline()
    made.planned(ATTENTION, POOLING, CHECKPOINTS, PINNED, GRAPH)
    made.dismissed("GPU 0 is idle for 3.0 % of its time", "under the limit of 30 %")
    made.applied(ATTENTION, "scaled_dot_product_attention", 20_000.0, 15_000.0)
    made.ended(
        POOLING, "remaining", "mechanism already present", "torch's caching allocator pools memory", "train.py:7"
    )
    made.slower(CHECKPOINTS, "checkpointing", 15_000.0, 18_000.0)
    made.applied(PINNED, "pinned copies", 15_000.0, 11_000.0)
    made.ended(GRAPH, "remaining", "blocked", "needs a GPU of sm_80 or newer")
    return made.finished()


def asked(ledger: AgentLedger, then: Callable[[MadeAgentRun], None]) -> str:
    """A run in which the user asked for one change. ``then``: what happens after the plan."""
    record = replace(AGENT_RUN, question="use scaled_dot_product_attention in train.py", mode="user-specified",
                     bottleneck="", bottleneck_evidence="")  # fmt: skip
    made = MadeAgentRun(ledger, record)
    made.baseline()
    made.planned(ATTENTION)
    then(made)
    return made.run


def one(ledger: AgentLedger) -> str:
    """The change that the user asked for is applied."""

    def then(made: MadeAgentRun) -> None:
        made.applied(ATTENTION, "scaled_dot_product_attention", 20_000.0, 15_000.0)
        made.finished(20_000.0, 15_500.0)

    return asked(ledger, then)
