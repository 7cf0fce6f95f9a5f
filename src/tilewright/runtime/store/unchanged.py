"""Checks a stored launch before any code that it names is executed.

A row of the store names a module and a file. Loading a kernel executes them, and the row may be damaged, or be from
somebody else. So the row's key must be the digest of its parts, its configuration must be one that was searched, and
the file must still define the kernel as it was launched. All of this is compared as text (`needed.digest_of_needed`).
"""

from __future__ import annotations

import ast
import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from tilewright.errors import RequestError
from tilewright.runtime.capture.described import MODULE, DescribedLaunch
from tilewright.runtime.capture.rebuilding import PROGRAM
from tilewright.runtime.key import digest
from tilewright.runtime.search.trials import label
from tilewright.runtime.store.winners import Winner
from tilewright.source.needed import digest_of_needed
from tilewright.source.source_file import SourceFile


def unchanged_launches(winner: Winner) -> dict[str, DescribedLaunch]:
    """Returns the stored launches, in the form in which loading executes only the file that was checked. Executes
    nothing. Raises RequestError if the row or a kernel has changed, or if the row does not say what it launched."""
    if winner.launches:
        refuse_changed(winner)
    return {name: _unchanged(DescribedLaunch.from_json(launch)) for name, launch in (winner.launches or {}).items()}


def refuse_changed(winner: Winner) -> None:
    """Raises RequestError if a row was changed: its key is not the digest of its parts, or it has launches of a
    configuration that was not searched."""
    if digest(winner.parts) != winner.key:
        raise RequestError("its key is not the digest of its parts: the entry was changed")
    listed = {outcome.get("label") for outcome in winner.outcomes}
    for config in (winner.config, winner.shipped, winner.runner_up):
        if winner.launches and config is not None and label(config) not in listed:
            raise RequestError(f"{label(config)} is none of the configurations that were searched")


def executed_files(winners: Iterable[Winner]) -> tuple[Path, ...]:
    """Returns the files that loading the kernels of the winners executes, after all checks. The modules that these
    files import are executed, too."""
    files: dict[Path, None] = {}
    for winner in winners:
        with suppress(RequestError, ValueError):
            files.update(dict.fromkeys(Path(launch.file) for launch in unchanged_launches(winner).values()))
    return tuple(files)


def _unchanged(launch: DescribedLaunch) -> DescribedLaunch:
    own, found = _status(launch.file), None if launch.module == PROGRAM else _file_of_module(launch.module)
    if not launch.text:
        raise RequestError("it was stored without the digest of its kernel's text, so nothing is executed for it")
    importable = found is not None and (own is None or found == Path(launch.file).resolve())
    status = _status(str(found)) if importable else own
    if status is None:
        raise RequestError(f"the kernel's file is gone: {launch.file}; no module '{launch.module}' is installed here")
    file = found if importable and found is not None else Path(launch.file)
    text, imported = _read(file, launch.qualname, status.st_mtime_ns, status.st_size)
    if text != launch.text:
        raise RequestError(f"kernel '{launch.qualname}' in {file} has changed since it was launched")
    for name, value in launch.closure.items():
        if isinstance(value, str) and value.startswith(MODULE) and value.removeprefix(MODULE) not in imported:
            raise RequestError(f"'{name}' of {launch.qualname} is {value}, which {file} does not import")
    return launch if importable else replace(launch, file=str(file), module=PROGRAM)


def _status(file: str) -> os.stat_result | None:
    """Returns the status of a file; None if there is no such file."""
    try:
        status = os.stat(file)
    except (OSError, ValueError):
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _file_of_module(module: str) -> Path | None:
    """Returns the file that an import of ``module`` would execute, without an import; None if there is none."""
    origin = _origin(module, tuple(sys.path), module in sys.modules)
    return Path(origin).resolve() if origin and Path(origin).is_file() else None


@lru_cache(maxsize=1024)
def _origin(module: str, path: tuple[str, ...], loaded: bool) -> str | None:
    """Returns where a module is. ``path``, ``loaded``: so that the answer is remembered only while it stays the
    same."""
    origin: str | None = None
    if loaded:
        origin = getattr(sys.modules[module], "__file__", None)
    else:
        parts, within = module.split("."), None
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            specs = (finder.find_spec(name, within) for finder in sys.meta_path)
            spec = next((spec for spec in specs if spec is not None), None)
            if spec is None:
                return None
            origin, within = spec.origin, spec.submodule_search_locations
    return origin


@lru_cache(maxsize=1024)
def _read(file: Path, qualname: str, changed: int, size: int) -> tuple[str, set[str]]:
    """Returns the digest of the kernel's text, and the modules that the file imports. ``changed``, ``size``: of the
    file, so that each version of it is read once for all rows."""
    return digest_of_needed(file, qualname), _imported(file)


def _imported(file: Path) -> set[str]:
    """Returns the names of the modules that the text of a file imports."""
    names: set[str] = set()
    for node in SourceFile.requested(file).nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
    return names | {name.split(".")[0] for name in names}
