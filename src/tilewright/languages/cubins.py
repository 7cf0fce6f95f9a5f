"""Stores cubins in files: those of a search, for the worker process that launches them, and those of a tuning run until
it ends, so that an interrupted run does not compile them again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from tilewright.languages.base import Lowered
from tilewright.records import Built, LaunchFacts, Remark, TensorMapLayout

KEPT = 2000
"""The most files in the folder. A cubin has 20 to 60 kB."""


def folder() -> Path:
    """Returns the folder for the worker process: ``$TILEWRIGHT_HOME/cubins``."""
    return Path(os.environ.get("TILEWRIGHT_HOME") or ".tilewright") / "cubins"


def key_of(lowered: Lowered, package: str) -> str:
    """Returns the SHA-256 of the code, the options and the compiler's version.

    package: the pip package of the compiler, for code that is not Tile IR.
    """
    compiler = "nvidia-cuda-tileiras" if lowered.is_tile_ir else package
    with suppress(metadata.PackageNotFoundError):  # the compiler was not installed by pip
        compiler += metadata.version(compiler)
    return hashlib.sha256(repr((lowered.identity, lowered.symbol, compiler)).encode()).hexdigest()


def store(built: Sequence[Built]) -> int:
    """Stores cubins that have a key, and removes the oldest files beyond `KEPT`. Returns the number stored."""
    keyed = [each for each in built if each.cache_key]
    with suppress(OSError):  # the worker then compiles again
        for each in keyed:
            _write(folder() / f"{each.cache_key}.json", each)
        files = sorted(folder().glob("*.json"), key=lambda file: file.stat().st_mtime)
        for file in files[: max(0, len(files) - KEPT)]:
            file.unlink(missing_ok=True)
    return len(keyed)


def stored(lowered: Lowered, package: str) -> Built | None:
    """Returns the cubin of this code; None if there is none, or if its file cannot be read."""
    return _read(folder() / f"{key_of(lowered, package)}.json", lowered)


class KeptCubins(ABC):
    """The cubins of one tuning run, which are not compiled again."""

    @abstractmethod
    def get(self, lowered: Lowered) -> Built | None:
        """Returns the cubin of this code; None if there is none."""

    @abstractmethod
    def put(self, lowered: Lowered, built: Built) -> None:
        """Keeps a cubin for the rest of the run."""


class CubinsInMemory(KeptCubins):
    """The cubins of one tuning run that is not in the ledger."""

    def __init__(self) -> None:
        self._built: dict[Hashable, Built] = {}

    def get(self, lowered: Lowered) -> Built | None:
        return self._built.get((lowered.identity, lowered.symbol))

    def put(self, lowered: Lowered, built: Built) -> None:
        self._built[lowered.identity, lowered.symbol] = built


class CubinsOfRun(KeptCubins):
    """The cubins of one tuning run in files, also for the command that resumes it.

    The run's key, of which the folder's name is made, has the versions of all compilers.
    make_parent: makes the folder above the parent of ``folder``.
    """

    def __init__(self, folder: Path, make_parent: Callable[[], None]) -> None:
        self.folder, self._make_parent = folder, make_parent

    def count(self) -> int:
        return sum(1 for _ in self.folder.glob("*.json"))

    def get(self, lowered: Lowered) -> Built | None:
        return _read(self._file(lowered), lowered)

    def put(self, lowered: Lowered, built: Built) -> None:
        with suppress(OSError):  # it is then compiled again
            self._make_parent()
            _write(self._file(lowered), built)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):
            self.folder.parent.rmdir()  # if it is empty

    def _file(self, lowered: Lowered) -> Path:
        code = repr((lowered.identity, lowered.symbol)).encode()
        return self.folder / f"{hashlib.sha256(code).hexdigest()}.json"


def _write(file: Path, built: Built) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    made = {name: getattr(built, name) for name in ("symbol", "seconds", "processor_seconds", "cache_key")}
    made |= {"cubin": base64.b64encode(built.cubin).decode(), "facts": asdict(built.facts)}
    made |= {"files": {ending: base64.b64encode(data).decode() for ending, data in built.files.items()}}
    new = file.with_name(f"{file.stem}.{os.getpid()}")
    new.write_text(json.dumps({**made, "remarks": [asdict(remark) for remark in built.remarks]}))
    new.replace(file)


def _read(file: Path, lowered: Lowered) -> Built | None:
    """Returns the cubin in a file; None if there is none, or if the file cannot be read."""
    try:
        made = json.loads(file.read_text())
        facts = {**made["facts"], "scratch": tuple(map(tuple, made["facts"]["scratch"]))}
        maps = ({**each, "box": tuple(each["box"])} for each in facts["tensor_maps"])
        facts["tensor_maps"] = tuple(TensorMapLayout(**each) for each in maps)
        return Built(
            lowered.configuration, lowered.arch, base64.b64decode(made["cubin"]), made["symbol"], made["seconds"],
            tuple(Remark(**each) for each in made["remarks"]), made["cache_key"], LaunchFacts(**facts),
            made["processor_seconds"], {ending: base64.b64decode(data) for ending, data in made["files"].items()},
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):
        return None
