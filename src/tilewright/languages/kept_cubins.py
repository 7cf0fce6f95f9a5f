"""Keeps the cubins of a tuning run until it ends, so that an interrupted run does not compile them again."""

from __future__ import annotations

import hashlib
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path

from tilewright.languages.base import Lowered
from tilewright.languages.cubins import read, write
from tilewright.records import Built


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
        return read(self._file(lowered), lowered)

    def put(self, lowered: Lowered, built: Built) -> None:
        with suppress(OSError):  # it is then compiled again
            self._make_parent()
            write(self._file(lowered), built)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):
            self.folder.parent.rmdir()  # if it is empty

    def _file(self, lowered: Lowered) -> Path:
        code = repr((lowered.identity, lowered.symbol)).encode()
        return self.folder / f"{hashlib.sha256(code).hexdigest()}.json"
