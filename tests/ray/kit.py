"""A Ray cluster on this machine with GPUs that are made up, a child of the test run."""

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
    """One node. Its folder has a short name, because sockets are in it."""

    def __init__(self, gpus: int) -> None:
        self.gpus, self.folder = gpus, Path(tempfile.mkdtemp(prefix="tw-ray-", dir="/tmp"))
        self.port, self.client_port = _free_port(), _free_port()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={self.port}",
            f"--num-gpus={self.gpus}", "--num-cpus=8", "--include-dashboard=false", f"--temp-dir={self.folder}/s",
            f"--ray-client-server-port={self.client_port}", "--object-store-memory=80000000",
            "--node-ip-address=127.0.0.1", "--disable-usage-stats",
        ]  # fmt: skip
        self.log = self.folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | self.environ,
                start_new_session=True,
            )  # fmt: skip
        wait_for(self._ready, START_SECONDS)

    def _ready(self) -> bool:
        said = self.log.read_text()
        assert self.process.poll() is None, said
        return "Ray runtime started" in said

    @property
    def environ(self) -> dict[str, str]:
        return {"HOME": str(self.folder), "RAY_USAGE_STATS_ENABLED": "0"}

    def workers(self) -> list[int]:
        """Returns the processes of the actors."""
        return [pid for pid, line in children(self.process.pid) if line.startswith("ray::Worker")]

    def worker_processes(self) -> list[int]:
        """Returns the processes that the actors started."""
        return [pid for actor in self.workers() for pid, _ in children(actor)]

    def stop(self) -> None:
        ours = [pid for pid, _ in children(self.process.pid)]
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        for pid in [*ours, *(pid for pid, line in processes() if str(self.folder) in line)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
