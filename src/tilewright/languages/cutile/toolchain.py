"""Finding tileiras: the pip package first, then PATH, then CUDA_HOME, as cuda-tile itself does.

The same compiler must serve us and cuTile's own launches, or the launch would miss our cubins.
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
"""They must share major.minor; otherwise cuda-tile ignores them, and so do we."""

FIX = "pip install 'cuda-tile[tileiras]'"


@dataclass(frozen=True)
class Tool:
    path: Path
    version: tuple[int, int]
    version_text: str
    """What ``--version`` prints, to the letter: part of cuTile's cache key."""
    from_pip: bool

    def environment(self) -> dict[str, str]:
        """The child's environment. The pip compiler brings its own toolkit: a system toolkit of another version named
        by CUDA_HOME would make it fail with return code 5."""
        hidden = ("CUDA_HOME", "CUDA_PATH") if self.from_pip else ()
        return {name: value for name, value in os.environ.items() if name not in hidden}


@cache
def find_tileiras() -> Tool:
    if pip := _from_pip():
        return _tool(pip, from_pip=True)
    homes = [os.path.join(os.environ[name], "bin") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    for place in (None, *homes, "/usr/local/cuda/bin"):
        if found := shutil.which("tileiras", path=place):
            return _tool(Path(found), from_pip=False)
    versions, disagree = _pip_versions(), ""
    if len(set(map(major_minor, versions.values()))) > 1:
        listed = ", ".join(f"{name} {text}" for name, text in versions.items())
        disagree = f" (installed packages disagree in version: {listed})"
    raise CompilerMissing(f"tileiras, the cuTile compiler, is not installed; {FIX}{disagree}")


def tileiras_version() -> str:
    """``13.4.92``, of the compiler that `find_tileiras` finds. That of the pip package is known without starting it,
    which takes 0.1 s. Raises `CompilerMissing`."""
    if _from_pip() is not None:
        return _pip_versions()[PIP_PACKAGES[0]]
    text = find_tileiras().version_text
    found = re.search(r"V(\d+\.\d+\.\d+)", text) or re.search(r"(\d+\.\d+[.\d]*)", text)
    return found[1] if found else text.strip()


def _from_pip() -> Path | None:
    versions = _pip_versions()
    if len(versions) != len(PIP_PACKAGES) or len({major_minor(text) for text in versions.values()}) != 1:
        return None
    spec = util.find_spec("nvidia.cu13")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        if found := shutil.which("tileiras", path=os.path.join(root, "bin")):
            return Path(found)
    return None


def _pip_versions() -> dict[str, str]:
    found = {name: installed_version(name) for name in PIP_PACKAGES}
    return {name: version for name, version in found.items() if version is not None}


def major_minor(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def _tool(path: Path, from_pip: bool) -> Tool:
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise CompilerMissing(f"{path} does not run ({error}); {FIX}") from None
    found = re.search(r"V?(\d+)\.(\d+)\.\d+", text) or re.search(r"(\d+)\.(\d+)", text)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    return Tool(path, version, text, from_pip)
