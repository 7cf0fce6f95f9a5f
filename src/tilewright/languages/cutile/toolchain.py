"""Finds tileiras where cuda-tile looks for it: in the pip package, then on PATH, then in CUDA_HOME.

It must be the compiler that cuTile's launches use, or they would not find Tilewright's cubins in the cache.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib import util
from pathlib import Path

from tilewright.errors import CompilerMissing
from tilewright.hardware.machine import installed_version

PIP_PACKAGES = ("nvidia-cuda-tileiras", "nvidia-cuda-nvcc", "nvidia-nvvm")
"""cuda-tile uses these packages only if all three have the same major.minor version."""
FIX = "pip install 'cuda-tile[tileiras]'"


@dataclass(frozen=True)
class Tool:
    path: Path
    version: tuple[int, int]
    version_text: str
    """The exact output of ``--version``, which is part of cuTile's cache key."""
    from_pip: bool

    def environment(self) -> dict[str, str]:
        """The environment to run the compiler in. The pip compiler brings its own toolkit, and fails with return code 5
        if CUDA_HOME names one of another version."""
        hidden = ("CUDA_HOME", "CUDA_PATH") if self.from_pip else ()
        return {name: value for name, value in os.environ.items() if name not in hidden}


@cache
def find_tileiras() -> Tool:
    if pip := _from_pip():
        return _tool(pip, from_pip=True)
    homes = [os.path.join(os.environ[name], "bin") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    for place in (None, *homes, "/usr/local/cuda/bin"):
        if path := shutil.which("tileiras", path=place):
            return _tool(Path(path), from_pip=False)
    versions, disagree = _pip_versions(), ""
    if len(set(map(major_minor, versions.values()))) > 1:
        listed = ", ".join(f"{name} {text}" for name, text in versions.items())
        disagree = f" (installed packages disagree in version: {listed})"
    raise CompilerMissing(f"tileiras, the cuTile compiler, is not installed; {FIX}{disagree}")


def tileiras_version() -> str:
    """The version of the compiler that `find_tileiras` finds, such as ``13.4.92``. Raises `CompilerMissing`.

    The pip package's metadata gives it without starting the compiler, which takes 0.1 s.
    """
    if _from_pip() is not None:
        return _pip_versions()[PIP_PACKAGES[0]]
    text = find_tileiras().version_text
    match = re.search(r"V(\d+\.\d+\.\d+)", text) or re.search(r"(\d+\.\d+[.\d]*)", text)
    return match[1] if match else text.strip()


def _from_pip() -> Path | None:
    versions = _pip_versions()
    if len(versions) != len(PIP_PACKAGES) or len({major_minor(text) for text in versions.values()}) != 1:
        return None
    spec = util.find_spec("nvidia.cu13")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        if path := shutil.which("tileiras", path=os.path.join(root, "bin")):
            return Path(path)
    return None


def _pip_versions() -> dict[str, str]:
    return {name: version for name in PIP_PACKAGES if (version := installed_version(name)) is not None}


def major_minor(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def _tool(path: Path, from_pip: bool) -> Tool:
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise CompilerMissing(f"{path} does not run ({error}); {FIX}") from None
    match = re.search(r"V?(\d+)\.(\d+)\.\d+", text) or re.search(r"(\d+)\.(\d+)", text)
    return Tool(path, (int(match[1]), int(match[2])) if match else (0, 0), text, from_pip)
