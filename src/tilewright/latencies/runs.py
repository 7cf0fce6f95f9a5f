"""Stores runs of a test suite with their latency records, in one readable JSON file that only grows.

A run is one `pytest` process: its records, its host and the revision of the code. Times from different hosts
(machine, GPU, number of tests at a time) are never compared. Driver, versions, settings of the benchmark and the
revision may differ; the comparison reports this.

`append` takes a lock, writes a new file beside the old one and renames it. If the process is killed, the old file
stays. If two processes append at the same time, both succeed.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tilewright.errors import MachineError, StorageError
from tilewright.latencies.records import Record
from tilewright.ledger.codec import from_json, to_json
from tilewright.ledger.file import text_of, utc_now

FORMAT, VERSION = "tilewright latency runs", 1
PACKAGES = ("cuda-tile", "nvidia-cuda-tileiras", "tilegym", "torch", "triton")
SETTINGS = ("CUPTI", "CUDAGRAPH", "WARMUP", "REP", "MIN_REP", "SEED")
"""The environment variables that TileGym's benchmark reads."""


@dataclass(frozen=True)
class Host:
    """The facts that must be equal for times to be comparable."""

    machine: str
    gpu: str | None
    arch: str | None
    workers: int
    """The number of tests that ran at a time. Several tests disturb one another's times."""

    def __str__(self) -> str:
        beside = f", {self.workers} tests at a time" if self.workers > 1 else ""
        return f"{self.gpu or 'no GPU'} of {self.machine}{beside}"


@dataclass(frozen=True)
class SuiteRun:
    """The records of one `pytest` process. ``revision``: see the function `revision`."""

    created: str
    place: Host
    revision: str | None
    driver: str | None
    versions: Mapping[str, str]
    settings: Mapping[str, str]
    records: tuple[Record, ...]


def current(
    records: tuple[Record, ...], *, machine: str | None, workers: int, folder: Path, own: tuple[Path, ...] = ()
) -> SuiteRun:
    """Returns the run that ends now. ``own``: the files that this plug-in writes; `revision` ignores them."""
    from tilewright.hardware.gpu import detect
    from tilewright.hardware.machine import driver_version, installed_version

    gpu = detect()
    place = Host(machine or platform.node(), gpu.name if gpu else None, gpu.arch if gpu else None, workers)
    installed = {name: version for name in PACKAGES if (version := installed_version(name))}
    settings = {name: os.environ[name] for name in SETTINGS if name in os.environ}
    return SuiteRun(
        text_of(utc_now()), place, revision(folder, own), driver=driver_version() if gpu else None,
        versions={"python": platform.python_version(), **installed}, settings=settings, records=records,
    )  # fmt: skip


def revision(folder: Path, own: tuple[Path, ...] = ()) -> str | None:
    """Returns ``commit``, or ``commit+hash`` with a hash of the uncommitted changes in files other than ``own``.

    None if ``folder`` is not in a git repository with a commit.
    """
    from tilewright.tools.git import Git

    try:
        root = Path(Git(folder)("rev-parse", "--show-toplevel").strip())
        git = Git(root)
        commit = git("rev-parse", "--short=12", "HEAD").strip()
        changed = [name for name in git("diff", "HEAD", "--name-only", "-z").split("\0") if name]
        ours = {path.resolve() for path in own}
        counted = [name for name in changed if (root / name).resolve() not in ours]
        text = git("diff", "HEAD", "--binary", "--", *counted) if counted else ""
    except MachineError:
        return None
    return f"{commit}+{sha256(text.encode(errors='surrogateescape')).hexdigest()[:8]}" if text else commit


def load(path: Path) -> tuple[SuiteRun, ...]:
    """Returns the runs in a file, the oldest first. Raises `StorageError` if the file cannot be read."""
    with _storage(f"read {path}"):
        try:
            return _decoded(path, path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            makes = f"`pytest --tilewright --tilewright-save {path}` creates it"
            raise StorageError(f"no such file: {path}; {makes}") from None


def appendable(path: Path) -> None:
    """Raises `StorageError` if no run can be appended to ``path``. Called before the tests, so that no run is lost."""
    file = _link_target(path)
    with _storage(f"write {path}"), suppress(FileNotFoundError):
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(f"cannot write {path}: it is not a regular file")
        if status.st_size:  # an append that was killed may leave an empty file
            load(path)
    if not file.parent.is_dir():
        raise StorageError(f"cannot write {path}: no such folder: {file.parent}")
    if not os.access(file.parent, os.W_OK):
        raise StorageError(f"cannot write {path}: no permission to write to its folder")


def append(path: Path, run: SuiteRun) -> tuple[SuiteRun, ...]:
    """Adds ``run`` to the file, which is created if missing. Returns all runs in the file. Raises `StorageError`."""
    with _storage(f"write {path}"), _locked(file := _link_target(path)) as text:
        runs = (*(_decoded(path, text) if text else ()), run)
        data = {"format": FORMAT, "version": VERSION, "runs": to_json(runs)}
        _replace(file, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return runs


@contextmanager
def _storage(what: str) -> Iterator[None]:
    """Turns errors of the file system into `StorageError`. ``what``: the failed action, such as "write runs.json"."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise StorageError(f"cannot {what}: {reason}") from error


def _link_target(path: Path) -> Path:
    """Returns the target of a symbolic link, because a rename over the link would replace the link."""
    return Path(os.path.realpath(path))


def _decoded(path: Path, text: str) -> tuple[SuiteRun, ...]:
    fix = "move it away, or name another file"
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path} is not JSON ({error}); {fix}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise StorageError(f"{path} has no latency runs; {fix}")
    if data.get("version") != VERSION:
        versions = f"(format {data.get('version')}, this one reads {VERSION})"
        raise StorageError(f"{path} was written by another version of Tilewright {versions}; {fix}")
    try:
        return from_json(tuple[SuiteRun, ...], data.get("runs"), defaults=True)
    except ValueError as error:
        raise StorageError(f"{path} is damaged ({error}); {fix}") from error


@contextmanager
def _locked(path: Path) -> Iterator[str]:
    """Locks the file, which is created if missing, and yields its text.

    Inside the ``with`` block no other process replaces the file.
    """
    while True:
        with path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                same = os.path.samestat(os.fstat(file.fileno()), path.stat())
            except FileNotFoundError:
                same = False
            if same:  # no other process replaced the file during the wait
                file.seek(0)
                yield file.read()
                return


def _replace(path: Path, text: str) -> None:
    """Writes a new file and renames it to ``path``, so that ``path`` is always a complete file."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, path.stat().st_mode & 0o777)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
