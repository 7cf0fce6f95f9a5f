"""Runs of the loop, made up for the tests of the ledger and its views: every kind of record, no measurement."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tilewright.ledger.records import Attempt, Iteration, Metrics, RunRecord, WorkloadOutcome
from tilewright.race.stats import median_interval, ratio_interval
from tilewright.records import Bound, Checked, Machine, MachineCode, MeasuredTime, PredictedTime

MACHINE = Machine("sm_90", "NVIDIA H200", "580.95", "node7", {"cuda-tile": "1.7.0", "tilewright": "0.1"})
WORKLOADS = ("small", "large")
MIX = {"global load": 24, "shared load": 12, "integer": 160, "float32": 96, "control": 9}

DIFF = """\
--- a/rms_norm.py
+++ b/rms_norm.py
@@ -10,7 +10,7 @@ def rms_norm(x, out, N: ct.Constant[int]):
     row = ct.bid(0)
-    tile = ct.gather(x, (row, offsets))
+    tile = ct.load(x, index=(row, 0), shape=(1, N))
     ct.store(out, index=(row, 0), tile=tile)
"""


def times(centre_us: float, seed: int = 0, rounds: int = 41) -> MeasuredTime:
    drawn = random.Random(f"{seed} {centre_us}")
    samples = tuple(centre_us * (1 + 0.01 * abs(drawn.gauss(0, 1))) for _ in range(rounds))
    interval = median_interval(samples)
    return MeasuredTime(interval.centre, (interval.low, interval.high), samples)


def code(seed: int = 0) -> MachineCode:
    return MachineCode(
        "k", 90, 40 + seed, 0, 1024, 128, 1, 0, 0, "HGMMA", 8, {"LDG.128": 4}, 200 + seed, f"{seed:064x}"
    )


def metrics(workload: str, us: float, *, measured: bool = True, before_us: float | None = None) -> Metrics:
    """4 MiB of traffic and as many FLOP as bytes; the bandwidth of an H200."""
    moved = 4.0 * 2**20
    bound = Bound("memory", "1 FLOP/B: below 10", 1.0, 206.0, moved / 4.8e6)
    if not measured:
        time = PredictedTime(us, "traffic")
        return Metrics(workload=workload, predicted=time, bound=bound, flops=moved, bytes=moved, mix=MIX)
    time_us, before = times(us), times(before_us) if before_us else None
    ratio = ratio_interval(time_us.samples_us, before.samples_us, 0.95) if before else None
    return Metrics(
        workload=workload, measured=time_us, against_baseline=ratio, bound=bound, flops=moved, bytes=moved,
        code=code(), mix=MIX,
    )  # fmt: skip


def run_record(
    key: str = "key", *, workloads: Sequence[str] = WORKLOADS, measured: bool = True, us: float = 20.0
) -> RunRecord:
    return RunRecord(
        key=key,
        task="rms_norm",
        kernel="rms_norm",
        where="examples/naive/rms_norm.py:rms_norm",
        machine=MACHINE if measured else Machine("sm_90", None, None, "node7", MACHINE.versions),
        measured=measured,
        board="H200",
        bandwidth_gbs=4800.0,
        dtype="bfloat16",
        seed=7,
        policy={"name": "default", "accept": 0.05, "confidence": 0.95},
        options={"patience": 5, "minutes": 10.0},
        noise={name: median_interval([0.99, 1.0, 1.01, 0.995, 1.005, 1.0]) for name in workloads},
        environment={"clocks_mhz": [1980, 1980], "power_limit_w": 700},
        branch="cutile-perf-rms_norm-20261125",
        base_commit="0123abc",
        reproduce="tilewright optimize examples/naive/rms_norm.py --seed 7",
        baseline=tuple(metrics(name, us, measured=measured) for name in workloads),
    )


def outcome(workload: str, us: float, incumbent_us: float, seed: int = 0) -> WorkloadOutcome:
    new, old = times(us, seed), times(incumbent_us, seed)
    return WorkloadOutcome(
        workload=workload,
        verdict="faster" if us < incumbent_us else "slower",
        ratio=ratio_interval(new.samples_us, old.samples_us, 0.95),
        against_baseline=ratio_interval(new.samples_us, times(20.0, seed).samples_us, 0.95),
        measured=new,
        incumbent=old,
        baseline=times(20.0, seed),
        checked=Checked("correct", "agrees with float64", 0.25, ("normal", "hostile")),
        code=code(seed),
    )


def baseline_iteration(us: float = 20.0, *, workloads: Sequence[str] = WORKLOADS) -> Iteration:
    interval = times(us).interval_us
    return Iteration(
        n=0, optimization="baseline", correctness="PASS", status="keep", reason="the untouched code",
        latency_ms=times(us).us / 1e3, interval_ms=(interval[0] / 1e3, interval[1] / 1e3),
        outcomes=tuple(outcome(name, us, us) for name in workloads),
    )  # fmt: skip


def raced(
    n: int, us: float, incumbent_us: float, *, keep: bool, workloads: Sequence[str] = WORKLOADS, seed: int = 0
) -> Iteration:
    """An iteration that was raced, with attempts of every other fate beside it."""
    new = times(us, seed)
    return Iteration(
        n=n,
        entry="A",
        optimization="gather of a row → tile load",
        site="rms_norm.py:12",
        value="tile load",
        correctness="PASS",
        status="keep" if keep else "revert",
        reason=f"{us / incumbent_us:.3f} of the incumbent's time",
        latency_ms=new.us / 1e3,
        interval_ms=(new.interval_us[0] / 1e3, new.interval_us[1] / 1e3),
        why_chosen="priority 1 × expected 1.5",
        diff=DIFF,
        commit=f"c0ffee{n:02d}",
        outcomes=tuple(outcome(name, us, incumbent_us, seed) for name in workloads),
        attempts=(
            Attempt(
                value="tile load", status="raced", reason="fastest", code=code(n), measured={"small": new}, diff=DIFF
            ),
            Attempt(value="TILE=64", status="failed", reason="compile: shared memory 240 KiB > 227 KiB"),
            Attempt(value="TILE=32", status="wrong", reason="NaN in row 3", code=code(1)),
            Attempt(value="TILE=16", status="crashed", reason="illegal address", measured={"small": times(9.0)}),
        ),
        comparison="LDG.32 64 → LDG.128 16",
        seconds=12.5,
        environment={"clocks_mhz": [1980, 1965]},
        ruled_out=("spills: none",),
    )  # fmt: skip


def crashed(n: int, reason: str = "the worker died: illegal address") -> Iteration:
    return Iteration(
        n=n, entry="C", optimization="TILE 64 → 256", site="rms_norm.py:3", value="256", correctness="FAIL",
        status="crash", reason=reason, diff=DIFF, attempts=(Attempt(value="256", status="crashed", reason=reason),),
    )  # fmt: skip


def predicted(n: int, us: float, *, keep: bool) -> Iteration:
    return Iteration(
        n=n,
        entry="A" if n else "",
        optimization="gather of a row → tile load" if n else "baseline",
        correctness="PASS",
        status="keep" if keep else "revert",
        reason="predicted",
        predicted_ms=us / 1e3,
        outcomes=tuple(
            WorkloadOutcome(workload=name, verdict="predicted", predicted=PredictedTime(us, "traffic"))
            for name in WORKLOADS
        ),
    )
