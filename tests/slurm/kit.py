"""A real SLURM on loopback: its daemons are children of the test run, with configuration and state of their own.

Two nodes with two GPUs each, which are character devices that every Linux has.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.remote.kit import GRACE, processes, wait_for

SBIN = "/usr/sbin:/usr/local/sbin:" + os.environ.get("PATH", "")
DAEMONS = {name: shutil.which(name, path=SBIN) for name in ("munged", "slurmctld", "slurmd")}
needs_slurm = pytest.mark.skipif(
    None in DAEMONS.values() or shutil.which("sbatch") is None,
    reason="needs SLURM; fix: apt-get install slurm-wlm slurmctld slurmd munge",
)
CONFIGURATION = """\
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_min_interval=0
SlurmdTimeout=30
KillWait=1
CompleteWait=0
MinJobAge=300
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=2000 Gres=gpu:2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=2000 Gres=gpu:2
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=60 State=UP PriorityTier=9
PartitionName=closed Nodes=ALL MaxTime=60 State=UP AllowAccounts=nobody
"""
NODES = ("n1", "n2")


@dataclass
class Cluster:
    """``folder``: configuration, state and logs of the daemons."""

    folder: Path
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self) -> None:
        (self.folder / "state").mkdir()
        (self.folder / "munge").mkdir()
        (self.folder / "munge" / "key").write_bytes(os.urandom(1024))
        (self.folder / "munge" / "key").chmod(0o600)
        host = socket.gethostname().partition(".")[0]
        text = CONFIGURATION.format(host=host, user=getpass.getuser(), folder=self.folder, ports=_free_ports(3))
        self.configuration.write_text(text)
        gpus = [f"NodeName={node} Name=gpu File={file}\n" for node in NODES for file in ("/dev/null", "/dev/zero")]
        (self.folder / "gres.conf").write_text("".join(gpus))
        munge = self.folder / "munge"
        self._run(
            "munged", "--foreground", "--force", f"--socket={munge}/socket", f"--key-file={munge}/key",
            f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed",
        )  # fmt: skip
        wait_for((munge / "socket").exists)
        self.start_controller("-i")
        for node in NODES:
            self.start_node(node)
        wait_for(self.is_idle)

    @property
    def configuration(self) -> Path:
        return self.folder / "slurm.conf"

    def start_controller(self, *options: str) -> None:
        self._run("slurmctld", "-D", *options, "-f", str(self.configuration))

    def start_node(self, node: str) -> None:
        self._run("slurmd", "-D", "-N", node, "-f", str(self.configuration), key=node)

    def _run(self, name: str, *options: str, key: str = "") -> None:
        program = DAEMONS[name]
        assert program is not None
        key = key or name
        with (self.folder / f"{key}.log").open("ab") as log:
            self.daemons[key] = subprocess.Popen(
                [program, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | self.environ
            )

    @property
    def environ(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.configuration)}

    def say(self, *command: str) -> str:
        """Returns what a program of SLURM prints."""
        env, program = os.environ | self.environ, shutil.which(command[0], path=SBIN)
        assert program is not None
        return subprocess.run([program, *command[1:]], capture_output=True, text=True, env=env, timeout=GRACE).stdout

    def is_idle(self) -> bool:
        return self.say("sinfo", "-hN", "-o", "%N %T", "-p", "main").split() == ["n1", "idle", "n2", "idle"]

    def jobs(self) -> list[str]:
        """Returns the jobs that have not ended, as number, state and node."""
        return self.say("squeue", "-h", "-o", "%i %T %N").splitlines()

    def submitted(self) -> int:
        """Returns how many jobs there were up to now."""
        return self.say("scontrol", "-o", "show", "job").count("JobId=")

    def agents(self) -> list[int]:
        """Returns the resident processes of this cluster's runs."""
        return [pid for pid, line in processes() if "remote.agent" in line and "srun " not in line and self.has(line)]

    def connections(self) -> list[int]:
        """Returns the processes of ``srun`` that connect clients to resident processes."""
        return [
            pid
            for pid, line in processes()
            if line.startswith("srun ") and "tilewright-look" in line and self.has(line)
        ]

    def keepers(self) -> list[int]:
        """Returns the processes of ``srun`` that keep resident processes."""
        return [
            pid for pid, line in processes() if line.startswith("srun ") and "remote.agent" in line and self.has(line)
        ]

    def has(self, line: str) -> bool:
        return str(self.folder) in line

    def left(self) -> list[str]:
        """Returns what is left of runs: jobs, and processes."""
        return [
            *self.jobs(),
            *(line for _, line in processes() if "tilewright" in line and "remote" in line and self.has(line)),
        ]

    def fail_node(self, node: str) -> None:
        """Kills all processes of a node, as a crash does, and lets SLURM know."""
        self.daemons[node].kill()
        self.daemons[node].wait()
        for job in [each.split()[0] for each in self.jobs() if each.endswith(f" {node}")]:
            self.kill_job(job)
        self.say("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")

    def kill_job(self, job: str) -> None:
        """Kills all processes of a job. Another cluster on this machine may have a job of the same number."""
        ours, mark = f"SLURM_CONF={self.configuration}\0".encode(), f"SLURM_JOB_ID={job}\0".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                environ = (entry / "environ").read_bytes()
                if ours in environ and (mark in environ or f"slurmstepd: [{job}.".encode() in line):
                    os.kill(int(entry.name), signal.SIGKILL)

    def mend_node(self, node: str) -> None:
        self.start_node(node)
        self.say("scontrol", "update", f"NodeName={node}", "State=RESUME")
        wait_for(self.is_idle)

    def requeue(self, job: str, noticed: Callable[[], object] = lambda: True) -> None:
        """Puts a running job back into the queue. It starts again once that was ``noticed``."""
        self.say("scontrol", "update", f"JobId={job}", "Requeue=1")
        self.say("scontrol", "requeue", job)
        wait_for(lambda: "JobState=PENDING" in self.say("scontrol", "-o", "show", "job", job))
        wait_for(noticed)
        later = "StartTime=now+3"  # a node refuses a job that it has killed in the same second
        self.say("scontrol", "update", f"JobId={job}", later)

    def complaint(self) -> str:
        """Returns the last line that each daemon has written."""
        lines = ((log.stem, log.read_text(errors="replace").strip().splitlines()) for log in self.folder.glob("*.log"))
        return "; ".join(f"{daemon}: {said[-1]}" for daemon, said in lines if said)

    def stop(self) -> None:
        """Ends the nodes first: if all end at once, a node waits for the controller."""
        self.say("scancel", f"--user={getpass.getuser()}")
        for key in sorted(self.daemons, key=lambda key: [*NODES, "slurmctld", "munged"].index(key)):
            self.daemons[key].terminate()
            try:
                self.daemons[key].wait(10)
            except subprocess.TimeoutExpired:
                self.daemons[key].kill()
                self.daemons[key].wait()
        for pid, line in processes():
            if str(self.folder) in line:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def spec(folder: Path, **values: object) -> Path:
    """Writes a ``job_spec.json`` for the cluster."""
    usual = {
        "ssh_host": None, "partition": "main", "account": None, "gpus_per_node": 1, "walltime": "10",
        "python": sys.executable, "remote_work_dir": str(folder / "cache"),
    }  # fmt: skip
    path = folder / "job_spec.json"
    path.write_text(json.dumps({**usual, **values}))
    return path


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
