"""Compiles TTIR to a cubin, in a fork of a process that has imported triton (`tools.resident`).

The process gets text and options, but not the task. This file runs as a script and imports nothing of tilewright. The
folder of a job contains ``kernel.ttir`` and ``job.json``. The job writes ``kernel.cubin`` and ``kernel.json``
(the metadata), or ``failed``. If ``job.json`` says ``keep``, it writes the output of every stage.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

STAGES = ("ttgir", "llir", "ptx", "cubin")


def prepare() -> None:
    """Imports triton, and asks each ptxas for its version. Triton remembers the versions."""
    from triton.backends.nvidia import compiler as nvidia

    for arch in (80, 90, 100):
        with suppress(Exception):  # a job that needs the version reports the error
            nvidia.get_ptxas(arch).version  # noqa: B018


def work(folder: str) -> None:
    place = Path(folder)
    job = json.loads((place / "job.json").read_text())
    try:
        written = STAGES if job["keep"] else ("cubin",)
        metadata = compiled(place / "kernel.ttir", job["arch"], job["options"], written)
    except Exception as error:
        (place / "failed").write_text(reason(error))
        raise
    (place / "kernel.json").write_text(json.dumps(metadata, default=str))


def compiled(ttir: Path, arch: int, given: dict[str, Any], written: tuple[str, ...]) -> dict[str, Any]:
    """Writes the outputs of the stages ``written`` beside ``ttir``, and returns Triton's metadata. ``given``: all
    options of the compiler."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget, Language
    from triton.compiler.compiler import make_backend

    backend = make_backend(GPUTarget("cuda", arch, 32))
    options = backend.parse_options({name: _tuples(value) for name, value in given.items()})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = ir.parse_mlir_module(str(ttir), context)
    module.context = context
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, Language.TRITON)
    metadata: dict[str, Any] = dict(options.__dict__)
    for stage in STAGES:
        module = stages[stage](module, metadata)
        if stage in written:
            made = module if isinstance(module, bytes) else str(module).encode()
            ttir.with_suffix(f".{stage}").write_bytes(made)
    return metadata


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def reason(error: Exception) -> str:
    """Returns one line: the first error that ptxas printed, or else the exception."""
    text = str(error)
    for line in text.partition("`ptxas` stderr:")[2].splitlines():
        if match := re.search(r"\b(?:error|fatal)\s*:\s*(.+)", line):
            return f"ptxas: {match[1]}"
    said = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
