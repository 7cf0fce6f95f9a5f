"""A Ray cluster on this machine with GPUs that are made up, whose nodes are children of the test run."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.remote.kit import children, processes, wait_for

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs the package ray; fix: make test-ray")
START_SECONDS = 180.0


class RayCluster:
    """One node with ``gpus`` GPUs, to which others may be added. Its folder has a short name: sockets are in it."""

    def __init__(self, gpus: int) -> None:
        self.gpus, self.folder = gpus, Path(tempfile.mkdtemp(prefix="tw-ray-", dir="/tmp"))
        self.port, self.client_port = _free_port(), _free_port()
        self.nodes: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process = self._node(
            "--head", f"--port={self.port}", f"--ray-client-server-port={self.client_port}",
            "--include-dashboard=false", f"--num-gpus={self.gpus}",
        )  # fmt: skip

    def add_node(self) -> None:
        """Starts a further node with one GPU. Before Ray 2.60, its files are in the folder of the first node."""
        self.nodes.append(self._node(f"--address={self.address}", "--num-gpus=1"))

    def _node(self, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", *options]
        command += [f"--num-cpus={max(self.gpus, 1)}", "--object-store-memory=80000000", "--node-ip-address=127.0.0.1"]
        number = len(list(self.folder.glob("log-*")))
        log = self.folder / f"log-{number}"
        command.append(f"--temp-dir={self.folder}/{number}")
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=os.environ | self.environ,
                start_new_session=True,
            )  # fmt: skip

        def ready() -> bool:
            assert process.poll() is None, log.read_text()
            return "Ray runtime started" in log.read_text()

        wait_for(ready, START_SECONDS)
        return process

    def end_node_of(self, actor: int) -> None:
        """Kills all processes of the further node on which an actor runs."""
        for node in self.nodes:
            below = [pid for pid, _ in children(node.pid)]
            if actor in below:
                node.kill()
                node.wait()
                for pid in below:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    @property
    def environ(self) -> dict[str, str]:
        return {"HOME": str(self.folder), "RAY_USAGE_STATS_ENABLED": "0"}

    def workers(self) -> list[int]:
        """Returns the processes of the actors."""
        nodes = [self.process, *self.nodes]
        return [pid for node in nodes for pid, line in children(node.pid) if line.startswith("ray::GpuActor")]

    def worker_processes(self) -> list[int]:
        """Returns the processes that the actors started."""
        return [pid for actor in self.workers() for pid, _ in children(actor)]

    def stop(self) -> None:
        nodes = [self.process, *self.nodes]
        ours = [pid for node in nodes for pid, _ in children(node.pid)]
        for node in nodes:
            node.terminate()
        for node in nodes:
            with suppress(subprocess.TimeoutExpired):
                node.wait(10)
        for pid in [*ours, *(pid for pid, line in processes() if str(self.folder) in line)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for node in nodes:
            node.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
