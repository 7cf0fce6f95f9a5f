"""`tilewright agent "speed up MAIN" --yes` on copies of programs with known problems: what it finds, and the gain.

    python bench/agent_programs.py OUT.json [PROGRAM …] [--work DIR] [--state FILE.tar.gz] [--seconds 570] [--rounds 7]

The programs are examples/slow_training, and those of bench/programs/unseen and bench/programs/later, which nobody
looked at who worked on the agent. Each is copied into a git repository of its own, and goes through four stages:

    agent    the command, as a user starts it; its time limit is --agent-seconds, or what is left of --seconds
    outputs  the untouched and the final program, with the same seed: the numbers that they print are compared
    timing   both, whole processes in random order, --rounds times: time of a step, and of the whole command
    score    what was found (bench/agent_matching.py says how that is decided)

What is done lies in --work: the same command goes on from there. --state keeps that folder in one file, for a machine
that forgets its disk. The time of a step is that between the first and the last line with a step's number that the
program prints, over the steps between them; a program that prints its own time for a batch is taken at its word.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent_matching import Problem, claims_of, problems_of, verdict_on
from common import EXAMPLES, made_here, write

from tilewright.ledger.agent_runs import AgentLedger
from tilewright.race.stats import ratio_interval

PROGRAMS = Path(__file__).parent / "programs"
STEP = re.compile(r"\bstep\s+(\d+)")
OWN_TIME = re.compile(r"([\d.]+) ms for a batch")
A_TIME = re.compile(r"\b(ms|µs|us|s|seconds?)\b(?! *loss)")
"""Lines of the output that say how long something took are not compared."""
NUMBER = re.compile(r"-?\d+\.?\d*(?:[eE][-+]?\d+)?")
SPARE, LEAST = 20.0, 60.0
"""The seconds that an agent may take beyond its limit, and the fewest seconds with which one is begun."""
RELATIVE, ABSOLUTE = 0.01, 0.002
"""Of numbers with a point that a program prints after some steps; a changed order of roundings moves them. Whole
numbers are equal."""


def known_programs() -> dict[str, tuple[Path, str, tuple[Problem, ...]]]:
    """Name → its folder, its main file, and its problems."""
    ours = json.loads((PROGRAMS / "slow_training.json").read_text())
    patterns = {each["id"]: each["patterns"] for each in ours["problems"]}
    found = {"slow_training": (EXAMPLES / "slow_training", ours["main"], problems_of(ours["problems"], patterns))}
    for folder in (PROGRAMS / "unseen", PROGRAMS / "later"):
        kinds = json.loads((folder / "KINDS.json").read_text())
        for each in json.loads((folder / "PROBLEMS.json").read_text())["programs"]:
            found[each["program"]] = (folder / each["program"], each["main"], problems_of(each["problems"], kinds))
    return found


class Study:
    """One program in its folder below ``work``, with the results of the stages that are done."""

    def __init__(self, name: str, work: Path, agent_seconds: float, options: Sequence[str]) -> None:
        self.name, self.place, self.agent_seconds, self.options = name, work / name, agent_seconds, options
        source, self.main, self.problems = known_programs()[name]
        self.original, self.tree, self.home = (self.place / each for each in ("original", "tree", "home"))
        self._file = self.place / "done.json"
        if not self._file.exists():
            shutil.rmtree(self.place, ignore_errors=True)
            self._copy(source)
            self.keep({})
        self.done: dict[str, Any] = json.loads(self._file.read_text())

    def _copy(self, source: Path) -> None:
        for copy in (self.original, self.tree):
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "*.md", "*.json"))
        git = ("git", "-c", "user.name=bench", "-c", "user.email=bench@example.org")
        for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "as it is")):
            subprocess.run([*git, *words], cwd=self.tree, check=True)

    def keep(self, done: Mapping[str, Any]) -> None:
        self.done = dict(done)
        unfinished = self._file.with_suffix(".part")
        unfinished.write_text(json.dumps(self.done, indent=1))
        unfinished.replace(self._file)

    # Stages -----------------------------------------------------------------------------------------

    def agent(self, until: float) -> bool:
        """Runs or resumes the agent; returns whether it came to its end. It is not begun with less than `LEAST`
        seconds. It ends by itself at its limit; only one that does not is ended from outside.
        """
        left = until - time.monotonic() - SPARE
        if left < LEAST:
            return False
        limit = ("--seconds", f"{min(self.agent_seconds, left):.0f}")
        words = [sys.executable, "-m", "tilewright", "agent", f"speed up {self.main}", "--yes", *limit, *self.options]
        before = self.done.get("agent", {"seconds": 0.0, "calls": 0})
        started = time.perf_counter()
        with (self.place / "agent.out").open("ab") as out, (self.place / "agent.err").open("ab") as err:
            environment = {**os.environ, "TILEWRIGHT_HOME": str(self.home)}
            process = subprocess.Popen(
                words, cwd=self.tree, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
            try:
                code = process.wait(max(1.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)
                process.wait()
                code = None
        seconds = before["seconds"] + time.perf_counter() - started
        said = (self.place / "agent.err").read_text(errors="replace").strip().splitlines()[-3:]
        result = {"seconds": seconds, "calls": before["calls"] + 1, "exit": code, "last_lines": said}
        self.keep({**self.done, "agent": result | {"command": ["tilewright", *words[3:]]}})
        return code is not None

    def outputs(self) -> None:
        """Runs both once, and compares what they print. This is the first round of the timing, too."""
        runs = {each: self._run(getattr(self, each)) for each in ("original", "tree")}
        printed = [run[2] for run in runs.values()]
        found = difference(*printed)
        row = {each: {"step_ms": step, "command_s": whole} for each, (step, whole, _) in runs.items()}
        outputs = {"equal": found is None, "difference": found, "printed": printed}
        self.keep({**self.done, "outputs": outputs, "rounds": [row]})

    def timing(self, rounds: int, until: float) -> bool:
        """Adds rounds to those that are stored; returns whether there are enough."""
        rows = list(self.done.get("rounds", ()))
        draw = random.Random(len(rows))
        while len(rows) < rounds:
            began = time.monotonic()
            order = draw.sample(["original", "tree"], 2)
            times = {each: self._run(getattr(self, each))[:2] for each in order}
            rows.append({each: {"step_ms": step, "command_s": whole} for each, (step, whole) in times.items()})
            self.keep({**self.done, "rounds": rows})
            if len(rows) < rounds and time.monotonic() + (time.monotonic() - began) > until:
                return False
        ratios = {}
        for what in ("step_ms", "command_s"):
            after, before = ([row[each][what] for row in rows] for each in ("tree", "original"))
            if all(math.isfinite(ms) for ms in (*after, *before)):
                found = asdict(ratio_interval(after, before, 0.95))
                ratios[what] = {name: number if math.isfinite(number) else None for name, number in found.items()}
        self.keep({**self.done, "timing": {"after_over_before": ratios, "load": os.getloadavg()[0]}})
        return True

    def score(self) -> None:
        os.environ["TILEWRIGHT_HOME"] = str(self.home)
        original = {path.name: path.read_text() for path in sorted(self.original.glob("*.py"))}
        try:
            with AgentLedger() as ledger:
                run, parts = ledger.load("latest")
        except Exception as error:
            self.keep({**self.done, "score": {"failed": str(error)}})
            return
        claims = claims_of(parts, original, Path(run.root))
        rows = []
        for problem in self.problems:
            fitting = [claim for claim in claims if claim.fits(problem)]
            standing = next((s for s in ("kept", "open", "taken back") if s in [c.standing for c in fitting]), "")
            rows.append({"problem": problem.id, "kind": problem.about, "needs_cuda": problem.needs_cuda,
                         "found": bool(fitting), "mended": standing == "kept", "standing": standing,
                         "claims": [claim.id for claim in fitting]})  # fmt: skip
        told = [{**asdict(claim), "verdict": verdict_on(claim, self.problems)} for claim in claims]
        ends = [asdict(end) for end in parts.ends]
        self.keep({**self.done, "score": {
            "run": run.run, "stop_reason": run.stop_reason, "mode": run.mode, "problems": rows, "claims": told,
            "ends": ends, "patch": run.patch, "device": next((m.device for m in parts.measurements), ""),
            "effect": next((json.loads(json.dumps(asdict(m), default=str)) for m in parts.measurements
                            if m.id == run.effect), None),
        }})  # fmt: skip

    def _run(self, tree: Path) -> tuple[float, float, str]:
        """One run of the user's command: ms a step, seconds in all, and what it printed."""
        words = [sys.executable, "-B", "-u", self.main]
        started, seen, lines = time.perf_counter(), [], []
        with subprocess.Popen(words, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if found := STEP.search(line):
                    seen.append((int(found[1]), time.perf_counter()))
            said = process.stderr.read() if process.stderr else ""
        whole = time.perf_counter() - started
        if process.returncode != 0:
            return math.nan, math.nan, f"exit code {process.returncode}: {said.strip()[-300:]}"
        text = "".join(lines)
        if own := OWN_TIME.search(text):
            return float(own[1]), whole, text
        if len(seen) > 1 and seen[-1][0] > seen[0][0]:
            return 1e3 * (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0]), whole, text
        return math.nan, whole, text


def difference(before: str, after: str) -> str | None:
    """Returns the first difference of what two versions printed; None if there is none beyond the tolerance."""
    if before.startswith("exit code") or after.startswith("exit code"):
        return f"before: {before[:200]} after: {after[:200]}"
    pairs = [
        [line for line in text.splitlines() if line.strip() and not A_TIME.search(line)] for text in (before, after)
    ]
    if len(pairs[0]) != len(pairs[1]):
        return f"{len(pairs[0])} lines, then {len(pairs[1])}"
    for one, other in zip(*pairs, strict=True):
        if NUMBER.sub("#", one) != NUMBER.sub("#", other):
            return f"{one!r} became {other!r}"
        for a, b in zip(NUMBER.findall(one), NUMBER.findall(other), strict=True):
            whole = "." not in a and "." not in b
            near = math.isclose(float(a), float(b), rel_tol=RELATIVE, abs_tol=ABSOLUTE)
            if (a != b) if whole else not near:
                return f"{one!r} became {other!r}"
    return None


def work_on(study: Study, rounds: int, until: float) -> bool:
    """Does the stages that are left, and the score anew; returns whether all are done."""
    ended = study.done.get("agent", {}).get("exit") is not None or study.agent(until)
    study.score()  # from the ledger: a run that was cut off has a score too
    if not ended or time.monotonic() > until:
        return False
    if "outputs" not in study.done:
        study.outputs()
    return "timing" in study.done or study.timing(rounds, until)


def row(study: Study) -> str:
    done, score = study.done, study.done.get("score", {})
    problems, claims = score.get("problems", []), score.get("claims", [])
    count = {v: sum(c["verdict"] == v for c in claims) for v in ("false", "to look at", "real gain", "taken back")}
    ratios = done.get("timing", {}).get("after_over_before", {})
    speed = {what: _as_fast(interval) for what, interval in ratios.items()}
    found, mended = (sum(each[what] for each in problems) for what in ("found", "mended"))
    same = {True: "equal", False: "DIFFERENT"}.get(done.get("outputs", {}).get("equal"), "-")
    return (
        f"{study.name:14} {f'{found} of {len(study.problems)}':>9} {mended:>6} {count['false']:>5}"
        f" {count['to look at']:>10} {same:>9}  {speed.get('step_ms', '-'):22} {speed.get('command_s', '-'):22}"
        f" {done.get('agent', {}).get('seconds', 0):7.0f}"
    )


def _as_fast(ratio: Mapping[str, float | None]) -> str:
    """The reciprocal of a ratio of times, with its interval, if there were rounds enough for one."""
    centre, slowest, fastest = (f"{1 / r:.2f}" if (r := ratio[name]) else "…" for name in ("centre", "high", "low"))
    return f"{centre} ({slowest} to {fastest})"


HEAD = (
    f"{'program':14} {'found':>9} {'mended':>6} {'false':>5} {'to look at':>10} {'outputs':>9}  "
    f"{'step, × as fast':22} {'command, × as fast':22} {'agent s':>7}"
)


def unpack(state: Path | None, work: Path) -> None:
    if state is not None and state.exists():
        with tarfile.open(state) as packed:
            packed.extractall(work, filter="fully_trusted")


def pack(state: Path | None, work: Path) -> None:
    if state is not None:
        with tarfile.open(state, "w:gz") as packed:
            packed.add(work, ".")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(known_programs()))
    parser.add_argument("--work", type=Path, default=Path("/tmp/agent-programs"))
    parser.add_argument("--state", type=Path, help="keeps --work in this file")
    parser.add_argument("--seconds", type=float, default=570.0, help="of this call")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--agent-seconds", type=float, default=840.0, help="the time limit of the agent")
    parser.add_argument("--allow-lossy", action="store_true")
    given = parser.parse_args()
    until = time.monotonic() + given.seconds
    names = given.programs or list(known_programs())
    if unknown := [name for name in names if name not in known_programs()]:
        parser.error(f"unknown program '{unknown[0]}'; known: {', '.join(known_programs())}")
    unpack(given.state, given.work)
    options = ["--allow-lossy"] if given.allow_lossy else []
    studies = [Study(name, given.work, given.agent_seconds, options) for name in names]
    left = [study.name for study in studies if time.monotonic() > until or not work_on(study, given.rounds, until)]
    print(HEAD)
    for study in studies:
        print(row(study))
    options += ["--seconds", f"{given.agent_seconds:g}"]
    record = {**made_here(), "cores": os.cpu_count(), "cuda": _gpu(), "options": options, "unfinished": left,
              "looked at by hand": {}, "programs": {study.name: study.done for study in studies}}  # fmt: skip
    write(given.out, record)
    pack(given.state, given.work)
    if left:
        sys.exit(f"not finished: {', '.join(left)}; the same command goes on")


def _gpu() -> str | None:
    from tilewright.hardware.gpu import detect

    found = detect()
    return None if found is None else found.name


if __name__ == "__main__":
    main()
