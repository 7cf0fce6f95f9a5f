"""Compares the machine code of kernels with and without the hints that the compiler is taken to choose by itself.

    python bench/default_hints.py OUT.json [--arch sm_90 …] TASK.py …

`languages.cutile.private.default_hints` says that a configuration with such a hint has the same machine code as one
without it, so only one of them is compiled. Each task's shipped configuration is compiled in seven pairs: each hint
alone, and beside another value of another hint. Needs no GPU.

On sm_90 all pairs were equal. On sm_100 the compiler chooses several CTAs or another occupancy for some kernels.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from common import made_here, write

from tilewright.compile.compile import Unit, compile_all
from tilewright.hardware.architectures import default_board
from tilewright.languages.base import Lowered
from tilewright.languages.cutile.private import DEFAULT_HINTS
from tilewright.records import Configuration
from tilewright.space.space import Space
from tilewright.task.loading import task_of
from tilewright.task.task import Task

OTHERS: tuple[dict[str, int], ...] = ({}, {"occupancy": 4}, {"num_worker_warps": 8})


def pairs(task: Task) -> Iterator[tuple[str, Configuration, Configuration]]:
    """Yields a description, the configuration without the hint, and the one with it."""
    free = dict(task.space.shipped.items()) | dict.fromkeys(DEFAULT_HINTS)
    for other in OTHERS:
        for hint, value in DEFAULT_HINTS.items():
            if hint not in other:
                without = Configuration.of({**free, **other})
                yield f"{hint}={value} beside {other}", without, without.replace(**{hint: value})


def compared(file: str, arch: str) -> dict[str, Any]:
    """Returns the pairs that compiled, and those of them whose machine code differs."""
    Lowered.identity = property(lambda lowered: (lowered.arch, lowered.options, lowered.code))  # type: ignore[assignment]
    board, task = default_board(arch), task_of(file).on(arch)
    workload, every = task.selected(None)[0], list(pairs(task))
    hints = {**task.space.hints} | {name: tuple({None, value, 4, 8}) for name, value in DEFAULT_HINTS.items()}
    space = Space(
        constants={name: (task.space.shipped[name],) for name in task.space.constants}, hints=hints, shipped=every[0][1]
    )
    configurations = list(dict.fromkeys(config for _, *both in every for config in both))
    made = compile_all(replace(task, space=space), [Unit(workload, config, board) for config in configurations])
    hashes = {one.unit.configuration: getattr(one.code, "code_hash", None) for one in made}
    compiled = [(text, one, other) for text, one, other in every if hashes[one] and hashes[other]]
    differ = [text for text, one, other in compiled if hashes[one] != hashes[other]]
    return {"task": task.name, "arch": arch, "pairs": len(compiled), "differ": differ}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("tasks", nargs="+", metavar="TASK")
    parser.add_argument("--arch", nargs="+", default=["sm_90"])
    given = parser.parse_args()
    rows = []
    for arch in given.arch:
        for file in given.tasks:
            rows.append(compared(file, arch))
            print(rows[-1], flush=True)
    write(given.out, {**made_here(), "pairs": sum(row["pairs"] for row in rows), "rows": rows})


if __name__ == "__main__":
    main()
