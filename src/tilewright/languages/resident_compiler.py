"""Compiles a kernel in a compiler's long-lived process (`tools.resident`), which gets a folder with the code.

The folder gets the code as ``kernel.ENDING``, and ``job.json``. The compiler writes its results as ``kernel.*``, or the
reason of a failure as ``failed``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import CompilerMissing, ToolFailed, first_line
from tilewright.records import Failed
from tilewright.tools import child
from tilewright.tools.resident import Resident


@dataclass(frozen=True)
class CompiledFiles:
    """The files ``kernel.*`` by their endings, with the code. ``seconds``: wall time of the compilation."""

    files: Mapping[str, bytes]
    seconds: float


def compiled_files(
    process: Resident, ending: str, code: bytes, job: Mapping[str, object], seconds: float,
    failure: Callable[[Path, child.Finished], Failed],
) -> CompiledFiles | Failed:  # fmt: skip
    """Compiles within ``seconds`` of processor time.

    ending: of the file with the code, without a dot.
    failure: returns the reason if the process exits with an error. It gets the folder.
    Raises CompilerMissing if the process cannot be started.
    """
    with child.workplace() as folder:
        (folder / f"kernel.{ending}").write_bytes(code)
        (folder / "job.json").write_text(json.dumps(job))
        started = time.perf_counter()
        try:
            done = process.run(folder, seconds)
        except CompilerMissing:
            raise
        except ToolFailed as error:
            return Failed("tool", str(error))
        elapsed = time.perf_counter() - started
        if done.returncode != 0:
            return failure(folder, done)
        return CompiledFiles({file.suffix[1:]: file.read_bytes() for file in folder.glob("kernel.*")}, elapsed)


def unexplained(done: child.Finished, compiler: str) -> Failed:
    """Returns the failure of a process that named no error: the way in which it ended."""
    said = first_line(done.stderr)
    return Failed("tool", done.complaint(compiler) + (f": {said}" if said and done.returncode < 0 else ""))
