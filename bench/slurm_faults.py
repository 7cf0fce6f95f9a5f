"""Injects faults into runs in allocations of a real SLURM on loopback, and counts what is lost and what is left.

    python bench/slurm_faults.py [--faults 200] [--seed 0] [--set-aside] [--out FILE.json]

Each run is a command of twelve steps, with a record of its own of what is answered, as `tune` has. Four faults of
different kinds happen at random steps. A command that a fault ended is started again, after space was freed if it asked
for that. Afterwards each step has its answer, no step that had one ran again, and no process and no job is left. Needs
root, SLURM and an ssh server. The GPUs are simulated.

--set-aside: only the faults of slurm_set_aside.txt; without it, all others.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from common import lines_of, made_here, write

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # the cluster of the tests

from tests.remote.kit import Loopback, processes  # noqa: E402
from tests.slurm.client import STEP_MILLISECONDS, WORKER  # noqa: E402
from tests.slurm.kit import DAEMONS, NODES, Cluster, spec  # noqa: E402
from tests.slurm.worker import noted, step  # noqa: E402

from tilewright.executors.slurm import Slurm  # noqa: E402
from tilewright.remote import job_spec  # noqa: E402

EACH, BETWEEN, LINGER_SECONDS = 4, 3, 150.0
STARTS, RUN_SECONDS, LEFT_SECONDS = 8, 300.0, 60.0
SET_ASIDE = Path(__file__).with_name("slurm_set_aside.txt")


# The faults -----------------------------------------------------------------------------------------


@dataclass
class Trial:
    """One run and its fault."""

    cluster: Cluster
    loop: Loopback
    folder: Path
    client: subprocess.Popen[str] | None = None

    def job(self) -> str:
        return next((each.split()[0] for each in self.cluster.jobs() if "RUNNING" in each), "")

    def node(self) -> str:
        return next((each.split()[2] for each in self.cluster.jobs() if "RUNNING" in each), "n1")

    def workers(self) -> list[int]:
        return [pid for pid, line in processes() if line.split()[1:] == [WORKER, str(self.folder)]]

    def the_client(self) -> list[int]:
        return [self.client.pid] if self.client else []


def kill(pids: list[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def of_job(job: str, words: str) -> list[int]:
    return [pid for pid, line in processes() if words.format(job=job) in line]


def client_and_agent(trial: Trial) -> None:
    kill(trial.the_client())
    kill(trial.cluster.agents())


def suspended(trial: Trial) -> None:
    kill(trial.the_client(), signal.SIGSTOP)
    time.sleep(2.0)
    kill(trial.the_client(), signal.SIGCONT)


def node_fails(trial: Trial) -> None:
    node = trial.node()
    trial.cluster.fail_node(node)
    trial.cluster.mend_node(node)


def slurmd(trial: Trial) -> None:
    node = trial.node()
    trial.cluster.daemons[node].kill()
    trial.cluster.daemons[node].wait()
    trial.cluster.start_node(node)


def controller(trial: Trial) -> None:
    trial.cluster.daemons["slurmctld"].kill()
    trial.cluster.daemons["slurmctld"].wait()
    time.sleep(1.0)
    trial.cluster.start_controller()


def preempted(trial: Trial) -> None:
    wrap = ["--wrap=sleep 600", "-N2", "--exclusive", f"--output={trial.folder}/urgent"]
    urgent = trial.cluster.say("sbatch", "--parsable", "-p", "urgent", *wrap).strip()
    for _ in range(200):
        if trial.cluster.say("squeue", "-h", "-j", urgent, "-o", "%T").strip() == "RUNNING":
            break
        time.sleep(0.05)
    trial.cluster.say("scancel", urgent)


def requeued(trial: Trial) -> None:
    if job := trial.job():
        with suppress(AssertionError):  # it ended meanwhile
            trial.cluster.requeue(job)


def over(trial: Trial) -> None:
    """Lets the walltime end while the client waits: SLURM looks every half a minute."""
    job = trial.job()
    kill(trial.the_client(), signal.SIGSTOP)
    trial.cluster.say("scontrol", "update", f"JobId={job}", "TimeLimit=1")
    for _ in range(150):
        if "JobState=RUNNING" not in trial.cluster.say("scontrol", "-o", "show", "job", job):
            break
        time.sleep(1.0)
    kill(trial.the_client(), signal.SIGCONT)


def full(trial: Trial) -> None:
    small = trial.folder / "small"
    with suppress(OSError), (small / "filling").open("wb", buffering=0) as filling:
        while True:
            filling.write(b"x" * 4096)


def two(trial: Trial) -> None:
    kill(trial.cluster.connections())
    kill(trial.cluster.agents())


Fault = Callable[[Trial], object]
FAULTS: dict[str, tuple[Fault, int]] = {
    "killed client": (lambda t: kill(t.the_client()), 0),
    "interrupted client": (lambda t: kill(t.the_client(), signal.SIGINT), 1),
    "terminated client": (lambda t: kill(t.the_client(), signal.SIGTERM), 1),
    "killed client and resident process": (client_and_agent, 1),
    "killed srun of the connection": (lambda t: kill(t.cluster.connections()), 0),
    "killed srun of the resident process": (lambda t: kill(t.cluster.keepers()), 1),
    "killed resident process": (lambda t: kill(t.cluster.agents()), 1),
    "frozen resident process": (lambda t: kill(t.cluster.agents(), signal.SIGSTOP), 1),
    "killed worker": (lambda t: kill(t.workers()), 1),
    "hanging worker": (lambda t: kill(t.workers(), signal.SIGSTOP), 1),
    "failed node": (node_fails, 1),
    "killed slurmd": (slurmd, 0),
    "preemption": (preempted, 1),
    "requeued job": (requeued, 1),
    "cancelled job": (lambda t: t.cluster.say("scancel", t.job()), 1),
    "full disk": (full, 0),
    "timeout of the allocation": (over, 1),
    "killed slurmstepd": (lambda t: kill(of_job(t.job(), "slurmstepd: [{job}.0]")), 1),
    "killed batch script": (lambda t: kill(of_job(t.job(), "job{job:0>5}/slurm_script")), 1),
    "killed controller": (controller, 0),
    "lost ssh connection": (lambda t: t.loop.drop(), 0),
    "suspended client": (suspended, 0),
    "two deaths at once": (two, 1),
}
"""Name → how, and how many steps it may interrupt, which run again. Any step that had ended before does not."""


# The trials -----------------------------------------------------------------------------------------


@dataclass
class Found:
    """What became of a run. ``lost``: steps without an answer, and steps that ran again although they had ended."""

    faults: tuple[str, ...]
    by_ssh: bool
    starts: int
    finished: int
    again: int
    lost: int
    left: int
    seconds: float
    said: str = ""


def tried(cluster: Cluster, loop: Loopback, folder: Path, faults: Sequence[str], rng: random.Random) -> Found:
    """Makes one run with some faults, each at a step of its own. A full disk comes last, and stays full unless a
    command asks for space."""
    began, faults = time.monotonic(), sorted(faults, key=lambda fault: fault == "full disk")
    by_ssh = "lost ssh connection" in faults or rng.random() < 0.25
    waiting = [(f"s{BETWEEN * place + rng.randrange(BETWEEN)}", fault) for place, fault in enumerate(faults)]
    (folder / "task").mkdir(parents=True)
    (folder / "task" / "ops.py").write_text(f"import tilewright\n# {folder}\n")
    work = cluster.folder / "cache"
    if "full disk" in faults:
        work = folder / "small"
        work.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(work)], check=True)
    values = {"ssh_host": "loop"} if by_ssh else {}
    job = spec(folder, remote_work_dir=str(work), **values)
    trial, starts, said = Trial(cluster, loop, folder), 0, ""
    names = [f"s{number}" for number in range(BETWEEN * len(faults))]
    while starts < STARTS and not (starts and trial.client is not None and trial.client.returncode == 0):
        starts += 1
        with (folder / f"said-{starts}").open("w") as out:
            trial.client = subprocess.Popen(
                [sys.executable, "-m", "tests.slurm.client", *map(str, (folder, len(names), LINGER_SECONDS))], cwd=ROOT,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, text=True,
                env=os.environ | {"TILEWRIGHT_JOB_SPEC": str(job)},
            )  # fmt: skip
        until = time.monotonic() + RUN_SECONDS
        while trial.client.poll() is None and time.monotonic() < until:
            if waiting and noted(folder, "began", waiting[0][0]):
                time.sleep(rng.random() * STEP_MILLISECONDS / 1000)
                FAULTS[waiting.pop(0)[1]][0](trial)
            time.sleep(0.01)
        if trial.client.poll() is None:
            said += "did not end; "
            trial.client.kill()
        trial.client.wait()
        said += (printed := (folder / f"said-{starts}").read_text()[-1000:])
        if "free some space there" in printed:
            (work / "filling").unlink(missing_ok=True)
    answered = (folder / "answered").read_text().split() if (folder / "answered").exists() else []
    missing = sum(name not in answered for name in names)
    again = sum(max(0, noted(folder, "began", name) - 1) for name in names)
    left = _left(cluster)
    for node in NODES:  # SLURM takes a node out of service after a killed batch script
        cluster.say("scontrol", "update", f"NodeName={node}", "State=RESUME")
    if "full disk" in faults:
        subprocess.run(["umount", "-l", str(work)], check=True)
    faults = faults[: len(faults) - len(waiting)]  # a run that was over before the last one has one less
    lost = missing + max(0, again - sum(FAULTS[fault][1] for fault in faults))
    ended = sum(noted(folder, "ended", name) > 0 for name in names)
    seconds = round(time.monotonic() - began, 1)
    return Found(tuple(faults), by_ssh, starts, ended, again, lost, left, seconds, said if lost or left else "")


def _left(cluster: Cluster) -> int:
    until = time.monotonic() + LEFT_SECONDS
    while (left := cluster.left()) and time.monotonic() < until:
        time.sleep(0.1)
    for line in left:
        print(f"left: {line[:200]}", flush=True)
    return len(left)


# What a step costs ----------------------------------------------------------------------------------


def overhead(cluster: Cluster, folder: Path) -> dict[str, float]:
    """Compares the step of a run with the shortest ``srun`` in the same allocation. In seconds, medians."""
    (folder / "task").mkdir(parents=True)
    (folder / "task" / "ops.py").write_text("import tilewright\n")
    os.environ["TILEWRIGHT_JOB_SPEC"] = str(spec(folder, remote_work_dir=str(cluster.folder / "cache")))
    steps, sruns = [], []
    with Slurm(job_spec.read(), (sys.executable, WORKER, str(folder))) as executor:
        began = time.perf_counter()
        executor.open(str(folder / "task" / "ops.py"))
        executor.run(step("first"))
        first = time.perf_counter() - began
        [job] = [each.split()[0] for each in cluster.jobs()]
        for number in range(50):
            began = time.perf_counter()
            assert executor.run(step(f"s{number}")).status == "PASSED"
            steps.append(time.perf_counter() - began)
            began = time.perf_counter()
            cluster.say("srun", f"--jobid={job}", "--overlap", "-N1", "-n1", "--gres=none", "true")
            sruns.append(time.perf_counter() - began)
    found = {"step": statistics.median(steps), "slowest step": max(steps), "srun": statistics.median(sruns)}
    return {**found, "step beyond srun": found["step"] - found["srun"], "first step, from nothing": first}


def summed(found: Sequence[Found], kinds: Sequence[str], costs: dict[str, float]) -> dict[str, Any]:
    names = "finished", "again", "lost", "left", "starts"
    counts = {name: sum(getattr(each, name) for each in found) for name in names}
    version = subprocess.run([str(DAEMONS["slurmctld"]), "-V"], capture_output=True, text=True).stdout.strip()
    summary = {**made_here(), "slurm": version, "seconds": costs, "faults": sum(len(each.faults) for each in found)}
    return {**summary, "kinds": {kind: sum(each.faults.count(kind) for each in found) for kind in kinds}, **counts}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set-aside", action="store_true")
    parser.add_argument("--only", help="one fault")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    aside = lines_of(SET_ASIDE)
    assert set(aside) <= FAULTS.keys()
    kinds = [asked.only] if asked.only else aside if asked.set_aside else [each for each in FAULTS if each not in aside]
    rng, found = random.Random(asked.seed), []  # type: random.Random, list[Found]
    with tempfile.TemporaryDirectory(prefix="tilewright-slurm-") as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)
        (folder / "slurm").mkdir()
        (folder / "ssh").mkdir()
        cluster = Cluster(folder / "slurm")
        loop = Loopback(folder / "ssh", f"SetEnv SLURM_CONF={cluster.configuration}\n")
        try:
            cluster.start()
            loop.start()
            os.environ |= cluster.environ | {"TILEWRIGHT_SSH": loop.environ["TILEWRIGHT_SSH"]}
            os.environ["XDG_CACHE_HOME"] = str(folder / "here")
            costs = overhead(cluster, folder / "overhead")
            print(json.dumps(costs), flush=True)
            passes = (rng.sample(kinds, len(kinds)) for _ in range(asked.faults))
            drawn = list(islice(chain.from_iterable(passes), asked.faults))
            for number, start in enumerate(range(0, len(drawn), EACH)):
                each = tried(cluster, loop, folder / f"run-{number}", drawn[start : start + EACH], rng)
                found.append(each)
                print(number, json.dumps(asdict(each)), flush=True)
                if asked.out:
                    write(asked.out, {**summed(found, kinds, costs), "runs": [asdict(each) for each in found]})
        finally:
            cluster.stop()
            loop.stop()
    summary = summed(found, kinds, costs)
    print(json.dumps(summary))
    return 1 if summary["lost"] or summary["left"] else 0


if __name__ == "__main__":
    sys.exit(main())
