"""Lists the supported versions of triton, and the requirements for launching kernels through triton itself.

Does not import triton.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Mapping
from importlib import util
from pathlib import Path

from tilewright.errors import in_one_line
from tilewright.hardware.machine import installed_version

TESTED = ((3, 6), (3, 9))
"""The oldest and the newest version that the tests run. They are the limits of the extra ``triton``."""
FIX = "pip install 'triton>=3.6,<3.10'"
NO_BLOCK_POINTERS = "Block pointers have been removed"
"""Part of the error of Triton 3.9 for a kernel with block pointers."""
PATCH_WITHOUT = "; fix: tilewright optimize writes a patch"
"""The hint that follows this error. `optimize` replaces it by the name of the patch."""


def numbers_of(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def untested(version: str) -> str | None:
    """Returns a warning about a version that is older or newer than the tested ones. Returns None for other
    versions."""
    if TESTED[0] <= numbers_of(version) <= TESTED[-1]:
        return None
    age = "older" if numbers_of(version) < TESTED[0] else "newer"
    return f"triton {version} is {age} than the tested versions ({_tested()}); if it fails: {FIX}"


def failing(version: str, error: BaseException) -> str:
    """Returns the message for a version that lacks parts that Tilewright uses."""
    return f"triton {version} does not work with Tilewright (tested: {_tested()}): {in_one_line(error)}; fix: {FIX}"


def _tested() -> str:
    return ", ".join(f"{major}.{minor}" for major, minor in TESTED)


def needs(environ: Mapping[str, str] = os.environ) -> tuple[bool | None, str, str]:
    """Returns whether Triton kernels can be compiled, the details in words, and the fix.

    The first value is None if triton is not installed or not tested. The details also name missing packages that only
    Triton's own launches need. Tilewright does not need them, because it launches cubins through the driver.
    """
    version = installed_version("triton")
    if version is None:
        return None, "not installed: only kernels in Triton need it", ""
    if caution := untested(version):
        what, _, fix = caution.partition("; if it fails: ")
        return None, what, fix
    named = environ.get("CC") or "gcc"
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    missing = {
        "a C compiler": None if shutil.which(named) or shutil.which("clang") else "install gcc, or set CC",
        "Python.h": None if header.is_file() else f"install the headers of Python ({header} is missing)",
        "torch": None if util.find_spec("torch") else "install torch",
    }
    tested = "tested" if numbers_of(version) in TESTED else f"not tested (tested: {_tested()})"
    if lacks := [name for name, fix in missing.items() if fix]:
        said = f"{version}, {tested}; compiles, but programs cannot launch through triton without {' and '.join(lacks)}"
        return True, said, "; ".join(fix for fix in missing.values() if fix)
    return True, f"{version}, {tested}", ""
