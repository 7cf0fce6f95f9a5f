"""The ray executor: runs steps on the GPUs of a Ray cluster that is already there, one actor for each GPU.

Ray brings what is needed: Tilewright itself and the files of the task are the runtime environment of the job. An actor
whose process or machine is lost is replaced, and its step runs again. The actors end with this process. The cluster
is never started or stopped.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import tilewright
from tilewright.errors import MachineError, NoGpu, RequestError, in_one_line
from tilewright.executors.base import Answer, Executor, ignore
from tilewright.hardware.machine import OtherMachine
from tilewright.remote import files as brought
from tilewright.remote.actor import GpuActor
from tilewright.task.loading import file_named
from tilewright.worker.messages import Advanced, PrepareInputs, Step
from tilewright.worker.outcome import Outcome

TRIES = 4
"""How often a step is run in all if its worker is lost each time: it may be the step that ends the worker's machine."""
FREE_SECONDS = 120.0
"""How long to wait for a free GPU of the cluster."""
LOOK_SECONDS = 0.5
CONNECT_SECONDS = 5.0
COMMANDS = ("check", "doctor")
"""The commands that run over there as a whole."""


class Cluster:
    """The connection of this process to a Ray cluster. Executors share it, and the last one closes it.

    address: as for `ray.init`.
    files: what is brought.
    """

    def __init__(self, address: str, files: brought.Surroundings) -> None:
        try:
            import ray
            from ray import is_initialized  # which a folder called ray, that is no package, does not have
        except ImportError:
            raise MachineError("--on ray needs the package ray; fix: pip install 'tilewright[ray]'") from None
        if is_initialized():
            raise RequestError("this process uses Ray already; fix: run Tilewright in a process of its own")
        self.ray: Any = ray
        self.name = "the Ray cluster" + ("" if address == "auto" else f" at {address}")
        self.root, self._users = files.root, 0
        if (why := _silent(address)) is not None:
            fix = "fix: --on ray:HOST:PORT of its head, or --on ray://HOST:10001 from outside the cluster"
            raise MachineError(f"{self.name} does not answer ({why}); {fix}")
        self._connect(address, files.zipped())
        if not ray.cluster_resources().get("GPU"):
            self._disconnect()
            raise NoGpu(f"{self.name} has no GPUs; fix: start its nodes with ray start --num-gpus=N")

    def ended(self, call: Any, seconds: float) -> bool:
        """Waits for the end of a call. Returns whether it ended within ``seconds``.

        Raises MachineError if the cluster has ended.
        """
        until = time.monotonic() + seconds
        while not self.ray.wait([call], timeout=min(LOOK_SECONDS, seconds))[0]:
            if time.monotonic() - self._seen > CONNECT_SECONDS:
                self.refuse_ended()
            if time.monotonic() > until:
                return False
        return True

    def refuse_ended(self) -> None:
        """Raises MachineError if the cluster has ended. Ray would end this process after a minute."""
        self._seen = time.monotonic()
        if self._head and (why := _silent(self._head)) is not None:
            fix = "fix: start it again; what was finished is stored, and the same command goes on"
            raise MachineError(f"{self.name} has ended ({why}); {fix}")

    def _connect(self, address: str, files: bytes) -> None:
        with tempfile.NamedTemporaryFile(prefix="tilewright-", suffix=".zip") as file, _own_signals():
            file.write(files)
            file.flush()
            environment = {
                "working_dir": file.name, "py_modules": [str(Path(tilewright.__file__).parent)],
                "excludes": ["__pycache__"],
            }  # fmt: skip
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self.ray.init(address, runtime_env=environment, log_to_driver=False, logging_level="ERROR")
            except Exception as error:
                raise MachineError(self._refused(error)) from None

        self._let_ray_print(False)
        self._seen = time.monotonic()
        self._head = address if "://" in address else str(self.ray.get_runtime_context().gcs_address)

    def _disconnect(self) -> None:
        self._let_ray_print(True)
        self.ray.shutdown()

    def _let_ray_print(self, allowed: bool) -> None:
        """Without ``allowed``, Ray does not write its own words about a lost worker to stdout, where results are."""
        with suppress(AttributeError):  # it is private, and there is no public way
            self.ray._private.worker._worker_logs_enabled = allowed

    def _refused(self, error: Exception) -> str:
        said = " ".join(str(error).split())
        if "find any running Ray instance" in said:
            return "no Ray cluster runs on this machine; fix: --on ray:ADDRESS, or start one with ray start"
        if "ersion mismatch" in said:
            return f"{self.name} runs another version: {said}; fix: use the same versions here"
        return f"no connection to {self.name}: {in_one_line(error)}"

    def join(self) -> None:
        self._users += 1

    def leave(self) -> None:
        self._users -= 1
        if not self._users:
            self._disconnect()

    def free(self) -> int:
        """Returns how many GPUs are free."""
        return int(self.ray.available_resources().get("GPU", 0))

    def actor(self, command: Sequence[str]) -> Any:
        """Returns the handle of a new actor, which waits for a free GPU."""
        made = self.ray.remote(GpuActor)
        return made.options(num_gpus=1, num_cpus=1, max_restarts=0, max_concurrency=2).remote(tuple(command))

    def place(self, actor: Any) -> tuple[OtherMachine, str | None]:
        """Waits for an actor, and returns as `GpuActor.place`.

        Raises MachineError if no actor starts there, and Ray's own error if this one was lost.
        """
        errors = self.ray.exceptions
        why = f"no GPU became free within {FREE_SECONDS:g} s; fix: wait, or end what uses them"
        try:
            place = actor.place.remote()
            if self.ended(place, FREE_SECONDS):
                found: tuple[OtherMachine, str | None] = self.ray.get(place)
                return found
        except errors.RayError as error:
            if not isinstance(error, errors.RuntimeEnvSetupError) and "creation task" not in str(error):
                raise
            why = f"no worker starts there: {last_line(error)}"
            if "ModuleNotFoundError" in why:
                why += "; fix: pip install 'tilewright[gpu]', and what the task needs, on its nodes"
        self.end(actor)
        raise MachineError(f"{self.name}: {why}")

    def end(self, actor: Any) -> None:
        self.ray.kill(actor)


class Ray(Executor):
    """Runs steps in an actor with one GPU.

    address: as for `ray.init`; "" for the cluster of this machine.
    worker: the command of the worker process over there; () for the usual one.
    cluster: the connection of another executor, to share it.
    """

    name = "ray"
    choice: ClassVar[str] = "ray[:ADDRESS]"

    def __init__(self, address: str = "", worker: Sequence[str] = (), cluster: Cluster | None = None) -> None:
        self.address, self.worker, self.cluster = address or "auto", tuple(worker), cluster
        self._actor: Any = None
        self._place: OtherMachine | None = None
        self._opened: tuple[str, dict[str, str]] | None = None
        self._opening: Any = None
        """The call that opens the task in the actor; None when it is over."""
        self._prepared: tuple[PrepareInputs, float | None] | None = None
        self._closing = threading.Lock()
        if cluster is not None:
            cluster.join()

    @classmethod
    def at(cls, where: str) -> Ray:
        if any(sign.isspace() for sign in where):
            raise RequestError(f"'{where}' is no address of a Ray cluster; fix: --on ray, or --on ray:HOST:PORT")
        return cls(f"ray:{where}" if where.startswith("//") else where)

    def place(self, task: str) -> OtherMachine:
        if self._place is None:
            try:
                self._place = self._first_place(task)
            except BaseException:
                self.close()
                raise
        return self._place

    def _first_place(self, task: str) -> OtherMachine:
        if self.cluster is None:
            around = brought.surroundings(Path(file_named(task)[0])) if task else brought.Surroundings(Path.cwd(), ())
            self.cluster = Cluster(self.address, around)
            self.cluster.join()
        if not self.cluster.free():
            self.say(f"all GPUs of {self.cluster.name} are in use; waiting for one")
        for _ in range(TRIES):
            self._actor = self.cluster.actor(self.worker)
            try:
                place, busy = self.cluster.place(self._actor)
            except self.cluster.ray.exceptions.RayError as error:
                reason = last_line(error)
                continue
            if busy is not None:
                self.say(f"the GPU of {place.name} is not free: {busy}")
            return place
        raise MachineError(f"{self.cluster.name} lost {TRIES} workers that were starting, the last one: {reason}")

    def others(self, most: int) -> Sequence[Ray]:
        cluster, first = self.cluster, self._place
        assert cluster is not None and first is not None, "the place is asked for first"
        new = [type(self)(self.address, self.worker, cluster) for _ in range(min(most, cluster.free()))]
        for each in new:
            each.say, each._actor = self.say, cluster.actor(self.worker)
        return [each for each in new if each._takes_part(cluster, first)]

    def _takes_part(self, cluster: Cluster, first: OtherMachine) -> bool:
        """Waits for the actor. If its GPU is busy or of another model than the first, closes this and returns False."""
        where = cluster.name
        try:
            self._place, busy = cluster.place(self._actor)
            where, why = self._place.name, _other_model(self._place, first) or busy
        except (MachineError, cluster.ray.exceptions.RayError) as error:
            why = last_line(error)
        if why is not None:
            self.say(f"a GPU of {where} is left out: {why}")
            self.close()
        return why is None

    def open(self, task: str, files: Mapping[str, str] | None = None) -> None:
        self.place(task)
        assert self.cluster is not None
        root = self.cluster.root
        self._opened, self._prepared = (brought.task_there(root, task), brought.texts_there(root, files)), None
        self._opening = self._actor.open.remote(*self._opened)

    def run(
        self, step: Step[Answer], *, silence: float | None = None, on_progress: Callable[[Advanced], None] = ignore
    ) -> Outcome[Answer]:
        """Implements `Executor.run`. If the actor is lost, another one runs the step again."""
        cluster, reason = self.cluster, ""
        assert cluster is not None, "a task is opened before a step runs"
        for _ in range(TRIES):
            try:
                if self._actor is None:
                    self._start_again(cluster)
                outcome = self._answered(cluster, step, silence, on_progress)
            except cluster.ray.exceptions.RayError as error:
                if self.cluster is None:
                    raise MachineError(f"the connection to {cluster.name} was closed") from None
                cluster.refuse_ended()
                reason = last_line(error)
                self.say(f"a worker of {cluster.name} was lost, and its step runs again: {reason}")
                self._drop(cluster)
            else:
                if isinstance(step, PrepareInputs):
                    self._prepared = None if outcome.answer is None else (step, silence)
                return outcome.raised(cluster.name)
        raise MachineError(f"{cluster.name} lost {TRIES} workers in one step, the last one: {reason}")

    def _answered(
        self, cluster: Cluster, step: Step[Answer], silence: float | None, on_progress: Callable[[Advanced], None]
    ) -> Outcome[Answer]:
        ray, actor = cluster.ray, self._actor
        if self._opening is not None:
            ray.get(self._opening)
            self._opening = None
        answer = actor.run.remote(step, silence)
        while not cluster.ended(answer, LOOK_SECONDS):
            if cluster.ended(new := actor.advanced.remote(), LOOK_SECONDS):
                for advanced in ray.get(new):
                    on_progress(advanced)
        outcome: Outcome[Answer] = ray.get(answer)
        return outcome

    def _start_again(self, cluster: Cluster) -> None:
        """Starts another actor, opens the task there, and prepares what the lost actor had prepared last."""
        assert self._opened is not None and self._place is not None
        self._actor = cluster.actor(self.worker)
        place, _ = cluster.place(self._actor)
        if (why := _other_model(place, self._place)) is not None:
            raise MachineError(f"{cluster.name} has no GPU to replace the lost one: {why}")
        self._opening = self._actor.open.remote(*self._opened)
        if self._prepared is not None:
            step, silence = self._prepared
            outcome = self._answered(cluster, step, silence, ignore)
            if outcome.answer is None:
                raise MachineError(f"{cluster.name}: workload {step.workload} could not be prepared: {outcome.reason}")

    def _drop(self, cluster: Cluster) -> None:
        """Ends the actor. It may still run, where the cluster does not reach it now."""
        actor, self._actor = self._actor, None
        if actor is not None:
            cluster.end(actor)

    def command(
        self, words: Sequence[str], task: str | None, paths: Sequence[Path] = (), files: bool = True,
        store: Path | None = None,
    ) -> int:  # fmt: skip
        """Runs `check` or `doctor` in an actor. Files that other commands leave would not come back."""
        if words[0] not in COMMANDS:
            raise RequestError(f"--on ray runs tune, {' and '.join(COMMANDS)}, not {words[0]}; fix: --on ssh:HOST")
        self.place(task or "")
        cluster = self.cluster
        assert cluster is not None
        here = Path.cwd().resolve()
        folder = str(here.relative_to(cluster.root)) if here.is_relative_to(cluster.root) else "."
        there = [
            os.path.relpath(brought.task_there(cluster.root, word), folder) if word == task else word for word in words
        ]
        columns = shutil.get_terminal_size((120, 24)).columns
        try:
            cluster.ray.get(self._actor.start.remote(there, folder, columns))
            code: int | None = None
            while code is None:
                printed, code = cluster.ray.get(self._actor.printed.remote())
                for to, text in printed:
                    (sys.stdout if to == 1 else sys.stderr).write(text)
                time.sleep(0 if printed else LOOK_SECONDS / 5)
        except cluster.ray.exceptions.RayError as error:
            raise MachineError(f"a worker of {cluster.name} was lost; fix: run it again: {last_line(error)}") from None
        return int(code)

    def set_up(self) -> tuple[str, Sequence[tuple[str, str]]]:
        cluster, place = self.cluster, self._place
        if cluster is None:
            return "cluster", ()
        gpus = int(cluster.ray.cluster_resources().get("GPU", 0))
        found = [("cluster", f"{cluster.name}, Ray {cluster.ray.__version__}, {gpus} GPUs, {cluster.free()} free")]
        return "worker", [*found, ("worker", place.name)] if place else found

    def close(self, wait: bool = True) -> None:
        with self._closing:
            cluster, self.cluster, self._place = self.cluster, None, None
        if cluster is not None:
            self._drop(cluster)
            cluster.leave()


EXECUTOR = Ray


def _silent(address: str) -> str | None:
    """Returns why nothing answers at an address; None if something does, or if the address names no port."""
    machine, _, port = address.removeprefix("ray://").rpartition(":")
    if not machine or not port.isdigit():
        return None
    try:
        socket.create_connection((machine.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _other_model(place: OtherMachine, first: OtherMachine) -> str | None:
    """Returns why a GPU is not of the model of the first one; None if it is."""
    here, there = (each.gpu.name if each.gpu else "none" for each in (place, first))
    return None if here == there else f"it is another model ({here}) than the first ({there})"


def last_line(error: BaseException) -> str:
    """Returns the last line of Ray's message without its guesses. An error over there is a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].partition(" Some common causes")[0] if lines else in_one_line(error)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps the handler of SIGTERM, which `ray.init` replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
