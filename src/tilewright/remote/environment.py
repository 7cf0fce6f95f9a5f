"""The packages that the other machine needs, with the versions that are installed here."""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Collection, Sequence
from importlib import metadata
from pathlib import Path

from tilewright.errors import MachineError, first_line
from tilewright.hardware.machine import installed_version

EXTRAS = ("gpu",)
"""The extras that a machine with a GPU needs, whether or not they are installed here."""
IF_HERE = ("torch", "triton", "nvidia-cutlass-dsl")
"""Packages that tasks may need. They are needed over there if they are installed here."""
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
_NAME = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?\s*([^;]*)")


def requirements() -> tuple[str, ...]:
    """Returns the requirements for pip: Tilewright's dependencies and theirs.

    Raises MachineError if Tilewright was not installed with pip.
    """
    if installed_version("tilewright") is None:
        raise MachineError("the versions to bring are not known, because Tilewright is not installed with pip here")
    found: dict[str, str] = {}
    _walk("tilewright", EXTRAS, found)
    for name in IF_HERE:
        if (version := installed_version(name)) is not None:
            found[name] = f"{name}=={version.partition('+')[0]}"
    if "torch" in found:  # a build of torch for CUDA needs a version of Triton of its own
        found.pop("triton", None)
    return tuple(sorted(found.values()))


def _walk(package: str, extras: Collection[str], found: dict[str, str]) -> None:
    """Adds the dependencies of an installed package to ``found``, by name."""
    for line in metadata.requires(package) or ():
        condition = line.partition(";")[2]
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", condition)
        matched = _NAME.match(line)
        if matched is None or (extra is not None and extra[1] not in extras):
            continue
        name, more, limits = matched[1], matched[2] or "", matched[3].strip()
        version = installed_version(name)
        if version is None and (condition and extra is None):
            continue  # it is for another version of Python
        named = f"{name}[{more}]" if more else name
        new = name not in found
        if new or more:
            found[name] = f"{named}{limits}" if version is None else f"{named}=={version.partition('+')[0]}"
        if version is not None and (new or more):
            _walk(name, [part.strip() for part in more.split(",") if part.strip()], found)


def key(wanted: Sequence[str], python: Sequence[int], machine: str) -> str:
    """Returns the key of an environment: equal keys are equal environments."""
    text = "\n".join([*wanted, f"{python[0]}.{python[1]}", machine])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def wheels(wanted: Sequence[str], python: Sequence[int], machine: str) -> bytes:
    """Downloads the wheels for a machine that reaches no package index. Returns them as a tar.

    Raises MachineError if this machine reaches none either.
    """
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-input", "--disable-pip-version-check"]
        command += ["--dest", folder, "--only-binary=:all:", "--python-version", f"{python[0]}.{python[1]}"]
        for platform in PLATFORMS:
            command += ["--platform", f"{platform}_{machine}"]
        done = subprocess.run([*command, *wanted], capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            said = lines[-1] if lines else first_line(done.stderr, "no message")
            raise MachineError(f"the packages for the other machine cannot be downloaded here either: {said}")
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as tar:
            for wheel in sorted(Path(folder).iterdir()):
                tar.add(wheel, wheel.name)
        return out.getvalue()
