"""Runs of the loop, made up for the tests of the ledger and its views: every kind of record, no measurement."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from tilewright.hardware.diagnosis import Diagnosis, Move, ResourceLimit
from tilewright.ledger.records import Attempt, Iteration, Metrics, RunRecord, TuneRun, WorkloadOutcome
from tilewright.ledger.tunings import TuneLedger
from tilewright.race.stats import median_interval, ratio_interval
from tilewright.records import (
    Bound,
    Candidate,
    Checked,
    Configuration,
    Json,
    Machine,
    MachineCode,
    MeasuredTime,
    PredictedTime,
    Workload,
    WorkloadResult,
)

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


DIAGNOSIS = Diagnosis(
    0.42, "machine code and measured time",
    ResourceLimit("bytes in flight", 4.25, "4 CTAs an SM × 2 KiB = 8 KiB under way, 36% of the 22.3 KiB"),
    (ResourceLimit("launch", 5.0, "launch, start and end of the grid take about 5 µs"),),
    (Move("latency", "reverted (8): 3.1 % slower"), Move("prefetch", "not tried: the run ended before")),
)  # fmt: skip


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


# Runs of tune


def tune_run(*, measured: bool = True, key: str = "key") -> TuneRun:
    machine = MACHINE if measured else Machine("sm_90", None, None, "node7", MACHINE.versions)
    return TuneRun(
        key=key, task="rms_norm", machine=machine, measured=measured, where="examples/rms_norm.py:rms_norm",
        board="H200", bandwidth_gbs=4800.0, dtype="bfloat16", policy={"l2": "cold", "launch": "graph"}, top=10, seed=7,
        reproduce="tilewright tune examples/rms_norm.py:rms_norm --arch sm_90 --fresh",
    )  # fmt: skip


def tile(size: int, occupancy: int | None = None) -> Configuration:
    return Configuration.of({"KERNEL": "two_pass", "TILE": size, "occupancy": occupancy})


def tuned_workload(name: str, us: float = 15.0, *, measured: bool = True) -> WorkloadResult:
    """A candidate of every fate; the shipped configuration is ``TILE=64``."""
    moved = 4.0 * 2**20
    bound = Bound("memory", "1 FLOP/B is under the ridge", 1.0, 206.0, moved / 4.8e6, "counted", moved, moved)
    right = Checked("correct", "agrees with float64", 0.25, ("normal", "hostile"))
    raced = [
        Candidate(
            tile(size, occupancy), "raced", reason, code(n), 0.5, PredictedTime(us * 0.9 * share, "traffic"),
            times(us * share, n), right,
        )
        for n, (size, occupancy, share, reason) in enumerate(
            (
                (128, 4, 1.0, "smallest median of the remaining candidates after 41 rounds"),
                (128, 2, 1.006, "tied after 41 rounds: 1.006 × the leader's time"),
                (64, None, 1.3, "dropped after 16 rounds: 1.300 × the leader's time"),
                (256, None, 1.9, "dropped after 6 rounds: 1.900 × the leader's time"),
            )
        )
    ]  # fmt: skip
    others = [
        Candidate(tile(512), "failed", "compile: shared memory 240 KiB > 227 KiB"),
        Candidate(tile(32), "wrong", "NaN in row 3", code(5), 0.5, PredictedTime(us, "traffic"),
                  checked=Checked("incorrect", "NaN in row 3")),
        Candidate(tile(16), "screened", "predicted 11. of 12", code(6), 0.5, PredictedTime(3 * us, "traffic")),
        Candidate(tile(256, 1), "duplicate", "same code as TILE=256", code(3), 0.5, PredictedTime(us * 1.7, "traffic")),
    ]  # fmt: skip
    noise = {"why": "two copies of one kernel differ by +0.02% (1.0002); spread of a sample 0.40%", "rounds": 20}
    race: dict[str, Json] = {
        "policy": {"l2": "cold", "launch": "graph", "tie_band": 0.01, "confidence": 0.99},
        "noise": dict(noise), "rounds": 41, "settled": True, "seed": 7,
    }  # fmt: skip
    if not measured:
        raced = [replace(one, status="predicted", measured=None, reason="predicted, not raced") for one in raced]
    workload, shipped = Workload(name, {"M": 4096, "N": 4096, "dtype": "bfloat16"}), tile(64)
    tied = (tile(128, 4), tile(128, 2)) if measured else ()
    why = "the cheapest of 2 that are within 1.0% of the fastest; settled after 41 rounds"
    return WorkloadResult(
        workload, bound, raced[0], tied, (*raced, *others), shipped,
        why if measured else "the shortest predicted time; predicted, not measured", race if measured else None,
    )  # fmt: skip


def tuned(ledger: TuneLedger, *, measured: bool = True, names: Sequence[str] = WORKLOADS, finish: bool = True) -> str:
    """A whole run in the ledger; its name."""
    run = ledger.begin(tune_run(measured=measured)).run
    for n, name in enumerate(names):
        ledger.save(run, tuned_workload(name, 15.0 + 6 * n, measured=measured))
    if finish:
        ledger.finish(run, {"compile": 12.5, "race": 3.0, "total": 17.25})
    return run
