"""Compiles one small kernel in each language for every architecture: the source of the specialists' hardware table.

    python bench/compiled_for.py

Needs no GPU. tests/specialists/test_compiled_for.py compares its result with `specialists/compiled_for.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from tilewright.compile.compile import Unit, compile_all
from tilewright.hardware.architectures import ARCHITECTURES, default_board
from tilewright.records import Configuration, MachineCode
from tilewright.specialists.writing.writing import source_of, write_task
from tilewright.task.loading import load_task

EXAMPLES = Path(__file__).parents[1] / "examples"
WRITTEN = "silu mul"
"""The operation whose kernel in CuTe DSL is written for the survey: its example is for one architecture."""
KERNELS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "cutile": ("swiglu.py", {}),
    "triton": ("triton/softmax.py", {"route": "ptx"}),
    "tileir": ("triton/softmax.py", {"route": "tileir"}),
    "cute-dsl": (WRITTEN, {}),
}
"""Specialist → the example that is compiled, and the values that it has instead of the shipped ones."""


def compiled_for(specialist: str) -> tuple[str, ...]:
    """Returns the architectures for which the example of a specialist compiles to machine code."""
    name, values = KERNELS[specialist]
    with TemporaryDirectory() as folder:  # a kernel is compiled from its file
        file = EXAMPLES / name
        if name == WRITTEN:
            file = Path(folder) / "written.py"
            file.write_text(write_task(source_of(WRITTEN), "cutedsl", file.name).text)
        task = load_task(str(file))
        configuration = Configuration.of({**task.space.shipped, **values})
        workload = task.selected(None)[0]
        units = [Unit(workload, configuration, default_board(arch)) for arch in ARCHITECTURES]
        done = compile_all(task, units, seconds=120)
    return tuple(one.unit.board.arch for one in done if isinstance(one.code, MachineCode))


if __name__ == "__main__":
    for specialist in KERNELS:
        sys.stdout.write(f"{specialist}: {', '.join(compiled_for(specialist))}\n")
