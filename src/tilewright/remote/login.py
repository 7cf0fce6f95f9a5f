"""What a run does on the login node of a SLURM cluster. `boot` calls it there, with Python's standard library alone.

    allocate   returns the run's allocation, which is asked for if there is none
    state      how an allocation is
    attach     connects to the resident process in an allocation
    kill       ends the resident process, which is replaced
    end        ends an allocation

One batch job is the allocation of a run. Its script keeps one resident process (`agent`) on its node, as a step with
all that the job has (``--exact``). A connection to it is a step that shares the node (``--overlap``) and measures
nothing. The job needs no process on the login node, and ends with the run. Nothing here needs SLURM's accounting.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from tilewright.remote import boot, queue

AGENT, LOOK = "tilewright-agent", "tilewright-look"
"""The names of the two kinds of steps."""
LIVE = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED")
"""The states of a job that has not ended."""
FIRST_POLL, LONGEST_POLL = 0.1, 10.0  # seconds
LOCK_SECONDS = 10.0
ENDING_SECONDS = 30.0
GONE_SECONDS = 5
"""The script ends so long after the run, also if SLURM does not notice that the step has ended."""
AT_ONCE_SECONDS = 15.0
"""With ``immediate``, an allocation may wait so long."""
LEAVING_SECONDS = 5.0
"""The connection of a client that was killed ends within so long."""
FEWEST_SECONDS, DEATHS = 10, 3
"""The script gives up after so many resident processes in a row that ended within so many seconds and served nobody."""
NOT_SHARED, DIES = 91, 92
"""The script's exit codes if its node lacks the files that were brought, and if it gave up."""
ENV = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("SLURM_", "SBATCH_", "SRUN_")) or name == "SLURM_CONF"
}


@dataclass(frozen=True)
class QueuedJob:
    """What ``scontrol`` says about a job. ``state``: GONE if it has forgotten the job."""

    number: str
    state: str
    reason: str = ""
    node: str = ""
    code: str = ""
    start: str = ""

    @property
    def reply(self) -> boot.Reply:
        return {"job": self.number, "state": self.state, "reason": self.reason, "node": self.node, "code": self.code}


def allocate(
    where: Path, code: str, run: str, asked: Mapping[str, Any], environment: str, python: str, work: str, cwd: str,
    linger: float,
) -> boot.Reply:  # fmt: skip
    """Returns the run's allocation when it has started. One that waits is cancelled if the client goes away.

    asked: as in `job_spec.JobSpec.asked`. Other arguments: as in `boot.attach`.
    """
    if shutil.which("sbatch") is None:
        return {
            "error": f"there is no SLURM on {os.uname().nodename} (no sbatch on PATH); fix: name a login node as "
            "ssh_host in job_spec.json"
        }
    folder = where / "runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock, _cancelled_with_client() as waiting:
        if not _locked(lock):
            return {"error": "another command of yours waits for the allocation of this run; fix: wait until it has it"}
        name = name_of(asked, run)
        jobs = _found(run)
        for other in jobs.keys() - {name}:
            if (why := _given_up(jobs[other], folder)) is not None:
                return {"error": why}
        job = jobs.get(name)
        if new := job is None:
            if (why := _talk(asked)) is not None:
                return {"error": why}
            text = script(where, code, folder, asked, environment, python, work, cwd, linger)
            done = slurm(["sbatch", "--parsable", *options(asked, name), f"--output={folder}/log-%j"], text)
            number = done.stdout.strip().partition(";")[0]
            if done.returncode or not number:
                return {"error": queue.refusal(done.stderr, asked, _partitions())}
            (folder / f"going-{number}").touch()
            job = QueuedJob(number, "PENDING")
        if job.state == "PENDING":
            waiting.append(job.number)
        found = _started(job, asked)
        if "error" not in found:
            waiting.clear()
        return {**found, "new": new}


def name_of(asked: Mapping[str, Any], run: str) -> str:
    """Returns the name of a run's job. One that was asked for otherwise has another name, and is not used."""
    kept = {name: value for name, value in asked.items() if name != "immediate"}
    return f"{asked['job_name']}-{run}-{hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:8]}"


def _given_up(job: QueuedJob, folder: Path) -> str | None:
    """Ends an allocation of the run that was asked for otherwise. Returns why not if a client is connected to it."""
    until = time.monotonic() + LEAVING_SECONDS
    while _steps(job.number, LOOK):
        if time.monotonic() > until:
            return (
                f"another command uses this run in job {job.number}, which another job_spec.json asked for; fix: wait "
                "until that command ends, or end it"
            )
        time.sleep(0.2)
    boot.say(note=f"job {job.number} of this run is ended: another job_spec.json asked for it")
    (folder / f"going-{job.number}").unlink(missing_ok=True)
    slurm(["scancel", job.number])
    _ended(job.number, LIVE)
    return None


def _locked(lock: IO[str]) -> bool:
    """Locks a file, so that two clients of one run share its allocation. Returns False if it stays locked."""
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.1)


def options(asked: Mapping[str, Any], name: str = "tilewright") -> list[str]:
    """Returns the options of ``sbatch``."""
    gpus, cores = asked["gpus_per_node"], asked["cpus_per_task"]
    found = ["--nodes=1", "--ntasks=1", "--no-requeue", f"--job-name={name}", f"--time={asked['walltime']}"]
    found += [f"--{each}={asked[each]}" for each in ("partition", "account") if asked[each]]
    found += [f"--gres=gpu:{gpus}"] if gpus else []
    return found + ([f"--cpus-per-task={cores}"] if cores else [])


def script(
    where: Path, code: str, folder: Path, asked: Mapping[str, Any], environment: str, python: str, work: str, cwd: str,
    linger: float,
) -> str:  # fmt: skip
    """Returns the job's script, which replaces a resident process that dies until the run has ended.

    A process that another one replaces cannot start before that one has ended: each takes all that the job has.
    """
    base, gpus = where / "files" / work, asked["gpus_per_node"]
    step = ["srun", "--exact", "--nodes=1", "--ntasks=1", f"--job-name={AGENT}"]
    step += [f"--gres=gpu:{gpus}"] if gpus else []
    if asked["container_image"]:
        mounts = ",".join([f"{where}:{where}", *asked["mounts"]])
        step += [f"--container-image={asked['container_image']}", f"--container-mounts={mounts}"]
        step += [f"--container-workdir={base / cwd}"]
    agent = [boot.interpreter_of(where, environment, python), "-m", "tilewright.remote.agent"]
    after = [str(base), str(linger), str(folder)]
    return f"""\
#!/bin/sh
cd {shlex.quote(str(base / cwd))} || exit {NOT_SHARED}
export PYTHONPATH={shlex.quote(boot.python_path(where, code))}
run={shlex.quote(str(folder))}
going=$run/going-$SLURM_JOB_ID served=$run/served-$SLURM_JOB_ID
touch "$going"
deaths=0
trap 'exit 0' USR1
(while [ -e "$going" ]; do sleep 2; done; sleep {GONE_SECONDS}; kill -USR1 $$) &
watcher=$!
trap 'kill $watcher' EXIT
while [ -e "$going" ]; do
  began=$(date +%s)
  {shlex.join(step)} --cpus-per-task="$SLURM_CPUS_ON_NODE" \\
    {shlex.join(agent)} "@{socket_name(folder.name, "$SLURM_JOB_ID")}" {shlex.join(after)} </dev/null &
  wait $!
  echo $? >"$run/code-$SLURM_JOB_ID"
  deaths=$((deaths + 1))
  if [ -e "$served" ] || [ $(($(date +%s) - began)) -ge {FEWEST_SECONDS} ]; then deaths=0; fi
  rm -f "$served"
  if [ -e "$going" ] && [ $deaths -ge {DEATHS} ]; then exit {DIES}; fi
done
exit 0
"""


def socket_name(run: str, job: str) -> str:
    return f"tilewright-{run}-{job}"


def state(where: Path, code: str, run: str, job: str) -> boot.Reply:
    """Returns the state of an allocation, and the last line that its script or its resident process printed."""
    log = boot.last_line(where / "runs" / run / f"log-{job}", ("srun: ", "slurmstepd: "))
    return {**_ended(job).reply, "log": log}


def _ended(job: str, before: Sequence[str] = ()) -> QueuedJob:
    """Waits until SLURM says how a job ended that ends, or that it is in the queue again.

    before: the states in which it may still be.
    """
    until = time.monotonic() + ENDING_SECONDS
    while (found := job_of(job)).state in ("COMPLETING", "REQUEUED", *before) and time.monotonic() < until:
        time.sleep(0.2)
    return found


def attach(where: Path, code: str, run: str, job: str, hello: str) -> boot.Reply | None:
    """Replaces this process by a step of the allocation, in which `boot.meet` copies stdin and stdout."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from tilewright.remote import boot; boot.meet(*sys.argv[2:])"
    )
    step = ["srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", "--gres=none", "--unbuffered"]
    step += [f"--job-name={LOOK}", "--quiet", sys.executable, "-c", program]
    os.execvpe("srun", [*step, str(where / "code" / code), f"@{socket_name(run, job)}", hello], ENV)  # noqa: S606


def kill(where: Path, code: str, job: str) -> boot.Reply:
    """Ends the resident process of an allocation."""
    for step in _steps(job, AGENT):
        slurm(["scancel", "--signal=KILL", step])
        slurm(["scancel", step])  # SLURM forgets it, also if nothing of it is left on the node
    return {"ok": True}


def _steps(job: str, name: str) -> list[str]:
    """Returns the steps of a job that have this name."""
    found = slurm(["squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i %j"]).stdout.splitlines()
    return [line.split()[0] for line in found if line.split()[1:] == [name]]


def end(where: Path, code: str, job: str) -> boot.Reply:
    """Ends an allocation."""
    slurm(["scancel", job])
    return {"ok": True}


def slurm(command: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a program of SLURM. Raises OSError if it is not there or hangs."""
    try:
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False, env=ENV, timeout=120)
    except subprocess.TimeoutExpired:
        raise OSError(None, f"{command[0]} does not answer; fix: try again when SLURM's controller does") from None


def job_of(number: str) -> QueuedJob:
    """Returns a job as it is."""
    done = slurm(["scontrol", "--oneliner", "show", "job", number])
    if done.returncode:
        if "Invalid job id" in done.stderr:
            return QueuedJob(number, "GONE")
        raise OSError(None, queue.refusal(done.stderr, {}, ()))
    fields = dict(re.findall(r"(\S+?)=(\S*)", done.stdout))
    values = (fields.get(name, "") for name in ("JobState", "Reason", "BatchHost", "ExitCode", "StartTime"))
    return QueuedJob(number, *values)


def _found(run: str) -> dict[str, QueuedJob]:
    """Returns the jobs of a run that have not ended, by their names. Raises OSError if SLURM cannot say."""
    done = slurm(["squeue", "--me", "--noheader", f"--states={','.join(LIVE)}", "--format=%i %T %j"])
    if done.returncode:
        raise OSError(None, queue.refusal(done.stderr, {}, ()))
    found = re.finditer(rf"^(\S+) (\S+) (.*-{run}-[0-9a-f]{{8}}) *$", done.stdout, re.MULTILINE)
    return {each[3]: QueuedJob(each[1], each[2]) for each in found}


def _started(job: QueuedJob, asked: Mapping[str, Any]) -> boot.Reply:
    """Waits until a job runs. An error if it cannot, or does not at once where that is wanted."""
    began, wait, told = time.monotonic(), FIRST_POLL, ""
    while (job := job_of(job.number)).state in ("PENDING", "CONFIGURING"):
        if (why := queue.hopeless(job.reason, asked)) is not None:
            return {"error": why}
        if asked["immediate"] and time.monotonic() - began > AT_ONCE_SECONDS:
            return {"error": f"no allocation at once ({job.reason}); fix: remove immediate from job_spec.json to wait"}
        if wait > 1.0 and job.reason != told:
            told = job.reason
            boot.say(note=f"job {job.number} waits in the queue ({told}), expected to start: {job.start}")
        if _client_gone(wait):
            return {"error": "the client went away"}
        wait = min(1.5 * wait, LONGEST_POLL)
    return job.reply


def _talk(asked: Mapping[str, Any]) -> str | None:
    """Says when a job would start if that is not soon, and what would start earlier. With ``immediate``, returns it."""
    seconds = _until_start(asked)
    if seconds is None or seconds <= (AT_ONCE_SECONDS if asked["immediate"] else queue.LONG_SECONDS):
        return None
    others: list[tuple[dict[str, str], float]] = []
    for change in queue.alternatives(asked, _partitions()):
        latest = min([seconds, *(found for other, found in others if other.keys() == change.keys())])
        earlier = _until_start({**asked, **change})
        if earlier is not None and earlier < latest - 60:  # a shorter walltime that gains nothing is not named
            others.append((change, earlier))
    said = queue.offer(seconds, others)
    if asked["immediate"]:
        return f"{said}; or remove immediate from job_spec.json"
    boot.say(note=said)
    return None


def _until_start(asked: Mapping[str, Any]) -> float | None:
    """Returns the seconds until SLURM expects to start such a job; None if it does not say."""
    done = slurm(["sbatch", "--test-only", *options(asked)], "#!/bin/sh\n")
    return queue.expected(done.stderr, time.time())


def _partitions() -> tuple[str, ...]:
    return tuple(dict.fromkeys(slurm(["sinfo", "--noheader", "--format=%R"]).stdout.split()))


@contextmanager
def _cancelled_with_client() -> Iterator[list[str]]:
    """Yields a list. The jobs in it at the end are cancelled, also at the end by a signal."""

    def ended(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    jobs: list[str] = []
    before = {number: signal.signal(number, ended) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        yield jobs
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for job in jobs:
            with suppress(OSError):
                slurm(["scancel", job])


def _client_gone(seconds: float) -> bool:
    """Waits. Returns True as soon as the client closes its side. Reads nothing, because nothing is sent meanwhile."""
    poll = select.poll()
    poll.register(0, select.POLLRDHUP | select.POLLIN)
    return bool(poll.poll(seconds * 1000))


ACTIONS: dict[str, Callable[..., boot.Reply | None]] = {
    "allocate": allocate,
    "state": state,
    "attach": attach,
    "kill": kill,
    "end": end,
}
