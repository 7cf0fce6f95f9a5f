"""Finds the lines of a program that may be the cause of a profile's findings.

A trace of torch.profiler has no lines of the program, so the lines are found in the source. They are the places of the
changes that answer the kind of finding, and the definitions of the program's own kernels that the finding names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tilewright.profile.figures import Profile, ProfileFinding
from tilewright.program.changes import changes_answering
from tilewright.program.reading.module import ReadModule
from tilewright.program.reading.reach import reached_modules
from tilewright.source.kernels import kernels_by_language

MOST = 4
"""The most places of a finding."""
WAITS = "host_synchronisation"
"""The change whose near misses are causes, too: the host also waits in places that the change must leave as
they are.
"""


def located(profile: Profile, script: Path) -> Profile:
    """Returns the profile with the places of its findings. ``script``: the program's first file."""
    try:
        modules = reached_modules(script)
    except OSError:
        return profile
    findings = tuple(replace(each, places=places_of(each, modules)) for each in profile.findings)
    return replace(profile, findings=findings)


def places_of(finding: ProfileFinding, modules: Iterable[ReadModule]) -> tuple[str, ...]:
    """Returns the places of one finding, such as ``train.py:12 (sum total)``, in the order of the changes."""
    modules = tuple(modules)
    found = dict.fromkeys([*_kernels(finding, modules), *_sites(finding.kind, modules)])
    return tuple(found)[:MOST]


def _sites(kind: str, modules: tuple[ReadModule, ...]) -> Iterator[str]:
    for change in changes_answering(kind):
        if change.never or change.asked_only or change.name.startswith("compiled_"):
            continue  # these fit every program
        for module in modules:
            for site in change.sites(module):
                yield f"{_name(module, modules)}:{site.line} ({site.what})"
            if change.name == WAITS and kind == "host-sync":
                for miss in change.near_misses(module):
                    yield f"{_name(module, modules)}:{miss.line} ({miss.reason})"


def _kernels(finding: ProfileFinding, modules: tuple[ReadModule, ...]) -> Iterator[str]:
    """Yields the definition of each kernel of the program that a finding names."""
    for module in modules:
        with suppress(RecursionError):
            names = {name for each in kernels_by_language(module.file).values() for name in each}
            for node in module.file.functions:
                if node.name in names and re.search(
                    rf"(?<![A-Za-z0-9]){re.escape(node.name)}(?![A-Za-z0-9])", finding.text
                ):
                    yield f"{_name(module, modules)}:{node.lineno} (kernel {node.name})"


def _name(module: ReadModule, modules: tuple[ReadModule, ...]) -> str:
    return os.path.relpath(module.path, modules[0].path.parent)
