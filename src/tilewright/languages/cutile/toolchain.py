"""Finds tileiras in the places where cuda-tile searches: in the pip package, then on PATH, then in CUDA_HOME.

Tilewright must use the same compiler as cuTile's launches. Otherwise the launches would not find Tilewright's cubins in
the cache.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from dataclasses import dataclass
from functools import cache
from importlib import util
from pathlib import Path

from tilewright.errors import CompilerMissing, ToolFailed, first_line
from tilewright.hardware.machine import installed_version
from tilewright.tools import child

PIP_PACKAGES = ("nvidia-cuda-tileiras", "nvidia-cuda-nvcc", "nvidia-nvvm")
"""cuda-tile uses these packages only if all three have the same major.minor version."""
FIX = "pip install 'cuda-tile[tileiras]'"
REINSTALL = "pip install --force-reinstall nvidia-cuda-tileiras"
VERSION_SECONDS = 10.0
"""Limit of processor time for ``--version``, which takes 0.01 s."""


@dataclass(frozen=True)
class Tool:
    path: Path
    version: tuple[int, int]
    version_text: str
    """The exact output of ``--version``, which is part of cuTile's cache key."""
    from_pip: bool

    def environment(self) -> dict[str, str]:
        """Returns the environment in which the compiler must run.

        The pip compiler has its own toolkit. It fails with exit code 5 if CUDA_HOME names a toolkit of another version.
        """
        hidden = ("CUDA_HOME", "CUDA_PATH") if self.from_pip else ()
        return {name: value for name, value in os.environ.items() if name not in hidden}


_looking = threading.Lock()


def find_tileiras() -> Tool:
    """Returns the compiler. Raises CompilerMissing, with the fix, if there is none."""
    with _looking:  # a second thread waits for the first thread's result
        return _found()


@cache
def _found() -> Tool:
    if pip := _from_pip():
        return _tool(pip, from_pip=True)
    homes = [os.path.join(os.environ[name], "bin") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    places = (None, *homes, "/usr/local/cuda/bin")
    for place in places:
        if path := shutil.which("tileiras", path=place):
            return _tool(Path(path), from_pip=False)
    for path in (*_pip_folders(), *filter(None, places)):
        there = Path(path, "tileiras")
        if there.is_file() and not os.access(there, os.X_OK):
            raise CompilerMissing(child.not_started(str(there)))
    versions, disagree = _pip_versions(), ""
    if len(set(map(major_minor, versions.values()))) > 1:
        listed = ", ".join(f"{name} {text}" for name, text in versions.items())
        disagree = f" (installed packages disagree in version: {listed})"
    raise CompilerMissing(f"tileiras, the cuTile compiler, is not installed{disagree}; fix: {FIX}")


def tileiras_version() -> str:
    """Returns the version of the compiler that `find_tileiras` finds, such as ``13.4.92``. Raises `CompilerMissing`.

    For the pip package, reads the version from the metadata: starting the compiler would take 0.1 s.
    """
    if _from_pip() is not None:
        return _pip_versions()[PIP_PACKAGES[0]]
    text = find_tileiras().version_text
    match = re.search(r"V(\d+\.\d+\.\d+)", text) or re.search(r"(\d+\.\d+[.\d]*)", text)
    return match[1] if match else text.strip()


def compiler() -> str:
    """Returns the compiler with its version, such as ``tileiras 13.4.92``; ``tileiras none`` if it is missing."""
    try:
        return f"tileiras {tileiras_version()}"
    except CompilerMissing:
        return "tileiras none"


def _from_pip() -> Path | None:
    versions = _pip_versions()
    if len(versions) != len(PIP_PACKAGES) or len({major_minor(text) for text in versions.values()}) != 1:
        return None
    path = shutil.which("tileiras", path=os.pathsep.join(_pip_folders()))
    return Path(path) if path else None


def _pip_folders() -> list[str]:
    spec = util.find_spec("nvidia.cu13")
    return [os.path.join(root, "bin") for root in (spec.submodule_search_locations or ()) if spec] if spec else []


def _pip_versions() -> dict[str, str]:
    return {name: version for name in PIP_PACKAGES if (version := installed_version(name)) is not None}


def major_minor(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def _tool(path: Path, from_pip: bool) -> Tool:
    try:
        done = child.run([str(path), "--version"], VERSION_SECONDS, fix=FIX)
    except ToolFailed as error:
        raise CompilerMissing(str(error)) from None
    text = done.stdout
    match = re.search(r"V?(\d+)\.(\d+)\.\d+", text) or re.search(r"(\d+)\.(\d+)", text)
    if done.returncode or not match:
        said = f"prints no version but '{first_line(text)[:60]}'" if not done.returncode else "does not run"
        raise CompilerMissing(f"{path} {said} ({done.complaint('--version')}); fix: {REINSTALL}")
    return Tool(path, (int(match[1]), int(match[2])), text, from_pip)
