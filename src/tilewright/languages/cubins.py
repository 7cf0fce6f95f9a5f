"""Stores the cubins of a search in files, for the worker process that launches them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
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
            write(folder() / f"{each.cache_key}.json", each)
        files = sorted(folder().glob("*.json"), key=lambda file: file.stat().st_mtime)
        for file in files[: max(0, len(files) - KEPT)]:
            file.unlink(missing_ok=True)
    return len(keyed)


def stored(lowered: Lowered, package: str) -> Built | None:
    """Returns the cubin of this code; None if there is none, or if its file cannot be read."""
    return read(folder() / f"{key_of(lowered, package)}.json", lowered)


def write(file: Path, built: Built) -> None:
    """Writes a cubin and its facts to a file, and makes the file's folder. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    made = {name: getattr(built, name) for name in ("symbol", "seconds", "processor_seconds", "cache_key")}
    made |= {"cubin": base64.b64encode(built.cubin).decode(), "facts": asdict(built.facts)}
    made |= {"files": {ending: base64.b64encode(data).decode() for ending, data in built.files.items()}}
    new = file.with_name(f"{file.stem}.{os.getpid()}")
    new.write_text(json.dumps({**made, "remarks": [asdict(remark) for remark in built.remarks]}))
    new.replace(file)


def read(file: Path, lowered: Lowered) -> Built | None:
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
