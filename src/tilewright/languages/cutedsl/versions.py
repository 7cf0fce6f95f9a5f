"""States the supported versions of nvidia-cutlass-dsl and its licence. Does not import the package."""

from __future__ import annotations

from tilewright.hardware.machine import installed_version

PACKAGE = "nvidia-cutlass-dsl"
TESTED = "4.8"
"""The tested version. Its interface to the compiler changes between versions."""
EXTRA = "tilewright[cutedsl]"
FIX = f"pip install '{EXTRA}'"
LICENCE = "NVIDIA Software License: proprietary, only for systems with NVIDIA GPUs"
"""The licence that the package's own files name. Tilewright contains no part of the package."""


def untested(version: str) -> str | None:
    """Returns a warning about a version other than the tested one; None for the tested version."""
    if version.split(".")[:2] == TESTED.split("."):
        return None
    return f"{PACKAGE} {version} is not the tested version ({TESTED}); if it fails: {FIX}"


def needs() -> tuple[bool | None, str, str]:
    """Returns whether CuTe DSL kernels can be compiled, the version and licence in words, and the fix.

    The first value is None if the package is not installed or not tested.
    """
    version = installed_version(PACKAGE)
    if version is None:
        return None, "not installed: only kernels in CuTe DSL need it", ""
    if caution := untested(version):
        what, _, fix = caution.partition("; if it fails: ")
        return None, what, fix
    return True, f"{version}, tested; {LICENCE}", ""
