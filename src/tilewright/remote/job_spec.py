"""``job_spec.json``: what a run on a SLURM cluster asks for. It is the only source of these fields; none is guessed.

The file is in the working directory, or where ``TILEWRIGHT_JOB_SPEC`` says:

    {"ssh_host": "login1", "partition": "h100", "account": "kernels", "gpus_per_node": 1, "walltime": "2:00:00"}

`FIELDS` lists all fields. A field of `NEEDED` must be there, with null for the cluster's default.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tilewright.errors import RequestError, UnknownChoice
from tilewright.remote.connection import refused_host

FILE, VARIABLE = "job_spec.json", "TILEWRIGHT_JOB_SPEC"
NEEDED = ("ssh_host", "partition", "account", "gpus_per_node", "walltime")
OPTIONAL = ("ssh_host", "partition", "account")
"""These of the needed fields may be null."""
FIELDS = {
    "ssh_host": "the login node as for the command ssh; null: SLURM is on this machine",
    "partition": "the partition; null: the cluster's default",
    "account": "the account that is charged; null: your default",
    "gpus_per_node": "how many GPUs to ask for; one of them is used",
    "walltime": "the longest time that the allocation lasts, as for sbatch, such as 2:00:00",
    "slurm_user": "your name on the login node",
    "node_count": "1: a run uses one node",
    "job_name": "how the job's name begins",
    "cpus_per_task": "how many CPU cores to ask for",
    "container_image": "the image in which candidates run, as for srun --container-image",
    "mounts": "what the container sees, a list of SOURCE:TARGET",
    "python": "an interpreter over there that has Tilewright's dependencies; a container needs one",
    "packages": "further requirements for the environment that is made there",
    "remote_work_dir": "a folder for everything that is brought, which login and compute nodes share",
    "remote_cwd": "accepted and not used: the task's files are brought",
    "mfa_style": "false: a connection of its own; true: the ControlMaster that you opened; null: it if there is one",
    "immediate": "true: the run ends if the allocation cannot start at once",
}
"""Field → meaning."""
_WALLTIME = re.compile(r"(\d+-\d{1,2}(:\d{1,2}){0,2}|\d+(:\d{1,2}){0,2})")
_MOUNT = re.compile("[^:]+:[^:]")
_TEXT = "a text"
_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "gpus_per_node": ("a number from 0 on", lambda value: _number(value, 0)),
    "node_count": ("1", lambda value: _number(value, 1)),
    "cpus_per_task": ("a number from 1 on", lambda value: _number(value, 1)),
    "mounts": ("a list of texts such as /data:/data", lambda value: _texts(value) and all(map(_MOUNT.match, value))),
    "packages": ("a list of texts", lambda value: _texts(value)),
    "mfa_style": ("true, false or null", lambda value: isinstance(value, bool)),
    "immediate": ("true or false", lambda value: isinstance(value, bool)),
    "walltime": ("a time such as 30 (minutes), 2:00:00 or 1-12", lambda value: bool(_WALLTIME.fullmatch(str(value)))),
}  # fmt: skip


@dataclass(frozen=True)
class JobSpec:
    """The checked fields of a ``job_spec.json``, as in `FIELDS`."""

    ssh_host: str | None
    partition: str | None
    account: str | None
    gpus_per_node: int
    walltime: str
    slurm_user: str | None = None
    node_count: int = 1
    job_name: str = "tilewright"
    cpus_per_task: int | None = None
    container_image: str | None = None
    mounts: tuple[str, ...] = ()
    python: str | None = None
    packages: tuple[str, ...] = ()
    remote_work_dir: str | None = None
    remote_cwd: str | None = None
    mfa_style: bool | None = None
    immediate: bool = False

    @property
    def host(self) -> str:
        """The login node as for ssh; "" if SLURM is on this machine."""
        return f"{self.slurm_user}@{self.ssh_host}" if self.ssh_host and self.slurm_user else self.ssh_host or ""

    @property
    def asked(self) -> dict[str, Any]:
        """What the login node needs to know for the allocation."""
        kept = ("partition", "account", "gpus_per_node", "walltime", "job_name", "cpus_per_task", "immediate")
        values = asdict(self)
        return {name: values[name] for name in (*kept, "container_image", "mounts")}


def read(partition: str = "", environ: Mapping[str, str] = os.environ) -> JobSpec:
    """Returns the job specification of a run.

    partition: what the user named after ``--on slurm:``; it replaces the field.
    Raises RequestError if the file cannot be used. In a terminal, asks for missing fields first, and writes them down.
    """
    path = Path(environ.get(VARIABLE) or FILE)
    values = _loaded(path)
    if partition:
        values["partition"] = partition
    missing = [name for name in NEEDED if name not in values]
    if missing and sys.stdin.isatty() and sys.stderr.isatty():
        values |= {name: _asked(name) for name in missing}
        spec = checked(values, path)
        path.write_text(json.dumps(values, indent=2) + "\n")
        return spec
    return checked(values, path)


def checked(values: Mapping[str, Any], path: Path) -> JobSpec:
    """Returns the specification with these values. Raises RequestError, in one line, for the first mistake."""
    for name in values:
        if name not in FIELDS:
            raise UnknownChoice(f"field of {path.name}", name, FIELDS)
    if missing := [name for name in NEEDED if name not in values]:
        named = "; ".join(f'"{name}": {FIELDS[name]}' for name in missing)
        there = f"{path} lacks" if path.is_file() else f"{path} is not there; it needs"
        raise RequestError(f"{there} {named}")
    given = {name: value for name, value in values.items() if value is not None or name in NEEDED}
    for name, value in given.items():
        if value is None and name in OPTIONAL:
            continue
        wanted, fits = _KINDS.get(name, (_TEXT, _is_text))
        if not fits(value):
            raise RequestError(f"{path}: {name} is {json.dumps(value)}; fix: make it {wanted}: {FIELDS[name]}")
    known = {field.name for field in fields(JobSpec)} & given.keys()
    fitting: dict[str, Any] = {name: tuple(v) if isinstance(v := given[name], list) else v for name in known}
    spec = JobSpec(**fitting)
    _check_together(spec, path)
    return spec


def _check_together(spec: JobSpec, path: Path) -> None:
    if spec.node_count != 1:
        raise RequestError(f"{path}: node_count is {spec.node_count}, but a run uses one node; fix: make it 1")
    if spec.container_image and not spec.python:
        raise RequestError(
            f'{path}: container_image needs "python" too: an interpreter in the image that has numpy and cuda-tile'
        )
    if spec.mounts and not spec.container_image:
        raise RequestError(f'{path}: mounts are for a container; fix: add "container_image", or remove "mounts"')
    if spec.ssh_host is None and spec.slurm_user not in (None, getpass.getuser()):
        raise RequestError(f"{path}: slurm_user is {spec.slurm_user}, and you are {getpass.getuser()}; fix: remove it")
    if spec.ssh_host is not None and refused_host(spec.host) is not None:
        raise RequestError(f"{path}: ssh_host '{spec.host}' is no name of a host; fix: a name as for the command ssh")


def _loaded(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise RequestError(f"{path} is no JSON: {error}") from None
    if not isinstance(values, dict):
        raise RequestError(f'{path} is no object of JSON; fix: {{"partition": …, …}}')
    return values


def _asked(name: str) -> object:
    """Asks the user for a field. An empty answer is null where that is possible."""
    while True:
        print(f"{name} ({FIELDS[name]}{', empty for null' if name in OPTIONAL else ''}): ", end="", file=sys.stderr)
        answer = input().strip()
        if not answer and name in OPTIONAL:
            return None
        value: object = int(answer) if name == "gpus_per_node" and answer.isdigit() else answer
        wanted, fits = _KINDS.get(name, (_TEXT, _is_text))
        if fits(value):
            return value
        print(f"give {wanted}", file=sys.stderr)


def _number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and not value.startswith("-") and value.isprintable()


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(_is_text(each) for each in value)
