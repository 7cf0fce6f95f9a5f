"""What does a CUDA graph gain on the launch-bound programs of examples/, and are its replays right? Needs a GPU.

    python bench/cuda_graph.py [--seconds 115] [--out FILE.json]

For each program: the trial that the specialist makes (sync debug, capture, 20 replays with changing inputs against
eager, eager and replay in turn), and the change that it proposes, judged as the agent does (operations that ran,
outputs compared, race of whole steps). A part that the time does not allow is left out, and named. Wanted:
serve.py, batch 1, takes at most half the time, with equal replays. The exit code is 1 if it does not.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from common import EXAMPLES, made_here, need_gpu, write

from tilewright.errors import TilewrightError
from tilewright.ledger.agent_records import AgentChange
from tilewright.program.command import ProgramCommand
from tilewright.program.graphs.analysis import analysed
from tilewright.program.graphs.changes import GraphedCallables, ReplayedForward
from tilewright.program.reading.reach import reached_modules
from tilewright.program.trying import ProgramTrials
from tilewright.specialists.changing import proposal_of

WANTED = 2.0
"""Times as fast on an H200."""
RUN_S = 60.0
TRIAL_S, JUDGE_S = 15.0, 45.0
"""Seconds that the parts are expected to take at most. A part begins if so many are left."""


@dataclass(frozen=True)
class Program:
    name: str
    words: tuple[str, ...]
    change: ReplayedForward | GraphedCallables
    judged: bool = True


PROGRAMS = (
    Program("serve.py, batch 1", ("serve.py", "--batch", "1", "--steps", "2000"), ReplayedForward()),
    Program("train.py, batch 8", ("train.py", "--batch", "8", "--steps", "2000"), GraphedCallables()),
    Program("serve.py, batch 8", ("serve.py", "--batch", "8", "--steps", "2000"), ReplayedForward(), judged=False),
)


def trial_of(command: ProgramCommand) -> dict[str, Any]:
    """The trial of a program's model."""
    found = analysed(command, RUN_S)
    if found.trial is None:
        return {"failed": found.failed, "places": [str(each) for each in found.hazards]}
    trial = found.trial
    row: dict[str, Any] = {
        "captured": trial.captured, "replays": trial.replays, "equal": trial.equal, "within rounding": trial.within,
        "places": [str(each) for each in found.hazards], "note": found.failed, "trains": trial.trains,
        "samples_us": {"eager": trial.eager_us, "replay": trial.replay_us},
    }  # fmt: skip
    if trial.eager_us:
        row |= {
            "eager, µs": median(trial.eager_us),
            "replay, µs": median(trial.replay_us),
            "ratio": trial.ratio.to_json(),
        }
    return row


def judged(command: ProgramCommand, change: ReplayedForward | GraphedCallables) -> dict[str, Any]:
    """The change of a program, judged on a copy."""
    proposal = proposal_of(change, reached_modules(command.script, command.root))
    if proposal is None:
        return {"failed": f"{change.name} has no place in the program"}
    texts = {path: path.read_text() for path in proposal.texts}
    made = AgentChange(
        id="c1", item="Q1", specialist="cuda-graph", name=proposal.name, rationale=proposal.rationale,
        site=proposal.site, risk=proposal.risk, delegation="", texts={str(k): v for k, v in proposal.texts.items()},
        before={str(k): v for k, v in texts.items()}, diff="", ran=proposal.ran, gone=proposal.gone,
    )  # fmt: skip
    trials = ProgramTrials(command, run_seconds=RUN_S, race_seconds=30.0)
    trials.baseline(texts, texts)
    done = trials.judge(made, texts, True, 20.0)
    row: dict[str, Any] = {"kept": done.kept, "reason": done.reason, "ran": done.run.reason}
    if done.outputs is not None:
        row["outputs"] = f"{done.outputs.verdict}: {done.outputs.reason}"
    if done.race is not None:
        row |= {"verdict": done.race.verdict, "values": dict(done.race.values), "interval": done.race.reason,
                "samples_us": {name: list(us) for name, us in done.race.samples_us.items()}}  # fmt: skip
    return row


def measured(seconds: float) -> list[dict[str, Any]]:
    began, rows = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "launch_bound"
        shutil.copytree(EXAMPLES / "launch_bound", place, ignore=shutil.ignore_patterns("__pycache__"))
        for program in PROGRAMS:
            command = ProgramCommand.of([sys.executable, *program.words], place)
            row: dict[str, Any] = {"program": program.name}
            rows.append(row)
            for part, needed in (("trial", TRIAL_S), ("judged", JUDGE_S if program.judged else 0.0)):
                left = began + seconds - time.monotonic()
                if not needed:
                    continue
                if left < needed:
                    row[part] = {"left out": f"{left:.0f} s were left, and it may take {needed:.0f}"}
                else:
                    try:
                        row[part] = trial_of(command) if part == "trial" else judged(command, program.change)
                    except TilewrightError as error:
                        row[part] = {"failed": str(error)}
                print(f"{program.name}: {part} after {time.monotonic() - began:.0f} s", flush=True)
    return rows


def shown(rows: list[dict[str, Any]]) -> None:
    print(f"\n{'program':20} {'equal':>8} {'eager':>9} {'replay':>9} {'speed-up':>9}   whole step, judged")
    for row in rows:
        trial, step = row["trial"], row.get("judged", {})
        if "eager, µs" in trial:
            eager, replay = trial["eager, µs"], trial["replay, µs"]
            equal = f"{trial['equal']} / {trial['replays']}"
            said = f"{equal:>8} {eager:>7.0f}µs {replay:>7.0f}µs {eager / replay:>8.2f}×"
        else:
            said = trial.get("failed") or trial.get("left out") or trial["note"] or "; ".join(trial["places"])
        whole = step.get("reason") or step.get("left out") or step.get("failed", "")
        if values := step.get("values"):
            whole = f"{values['step before, µs']:.0f} → {values['step after, µs']:.0f} µs; {whole}"
        print(f"{row['program']:20} {said}   {whole}")


def gains(row: dict[str, Any]) -> bool:
    """Whether the model is at least `WANTED` times as fast, with right replays, in the trial and in the whole step."""
    trial, step = row["trial"], row.get("judged", {})
    fast = bool(trial.get("ratio")) and trial["ratio"]["high"] is not None and trial["ratio"]["high"] <= 1.0 / WANTED
    samples = step.get("samples_us", {})
    times = [median(samples[name]) for name in ("before", "after") if samples.get(name)]
    return fast and trial["within rounding"] == trial["replays"] and len(times) == 2 and times[0] >= WANTED * times[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=115.0)
    parser.add_argument("--out")
    given = parser.parse_args()
    need_gpu()
    rows = measured(given.seconds)
    good = gains(rows[0])
    write(given.out, {**made_here(), "wanted": WANTED, "reached": good, "programs": rows})
    shown(rows)
    print(f"serve.py, batch 1, at least {WANTED:g} times as fast with equal replays: {'yes' if good else 'no'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
