"""Compiles what `triton_figures.py` races by the PTX route, with the Triton that is installed here. Needs no GPU.

    python bench/triton_cubins.py FOLDER [--arch sm_90]

Here may be Triton 3.9 while the machine with the GPU has the Triton that its torch needs. `triton_figures.py --cubins
FOLDER` launches these cubins there, through the driver, in the same rounds as those of its own Triton. FOLDER gets a
compressed file of at most some MB for each task.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from tilewright.compile.compile import Unit, compile_all
from tilewright.hardware.architectures import DEFAULT_ARCH, Board, default_board
from tilewright.ledger.codec import from_json, to_json
from tilewright.records import Failed
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.worker.messages import Program
from tilewright.worker.programs import program_of


def file_of(folder: Path, task: str) -> Path:
    return folder / f"{task}.json.gz"


def keep_programs(folder: Path, task: Task, configurations: Any, board: Board) -> str:
    """Compiles the configurations for the task's first workload and writes those that compile. Returns a sentence."""
    workload, file = next(iter(task.selected(None))), file_of(folder, task.name)
    compiled = compile_all(task, [Unit(workload, each, board) for each in configurations], seconds=30)
    built = [each for each in compiled if not isinstance(each.built, Failed)]
    programs = [{"config": dict(each.unit.configuration), "program": to_json(program_of(task, each))} for each in built]
    made = {"triton": metadata.version("triton"), "board": board.name, "workload": workload.name, "programs": programs}
    with gzip.GzipFile(file, "wb", mtime=0) as out:
        out.write(json.dumps(made, separators=(",", ":")).encode())
    return f"{task.name}: {len(built)} of {len(compiled)} compiled, {file.stat().st_size / 1e6:.2f} MB"


def kept_programs(folder: Path, task: Task, workload: str, board: Board) -> list[tuple[dict[str, Any], Program]]:
    """The programs of a task: what is recorded of each, and how the worker launches it. Empty if the Triton that made
    them is the one that is installed here."""
    file = file_of(folder, task.name)
    if not file.exists():
        sys.exit(f"{file} is missing; fix: python bench/triton_cubins.py {folder}")
    made = json.loads(gzip.decompress(file.read_bytes()))
    if made["board"] != board.name:
        sys.exit(
            f"{file} is for {made['board']}, and the GPU here is {board.name}; fix: make it with --arch {board.arch}"
        )
    if made["workload"] != workload:
        sys.exit(f"{file} is for workload {made['workload']}, not {workload}")
    if made["triton"] == metadata.version("triton"):
        return []
    return [
        ({"config": each["config"], "triton": made["triton"]}, from_json(Program, each["program"]))
        for each in made["programs"]
    ]


def main() -> None:
    from triton_figures import BY_PTX

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arch", default=DEFAULT_ARCH)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for place, configurations in BY_PTX.items():
        task = load_task(place)
        print(keep_programs(given.folder, task, configurations(task), default_board(given.arch)), flush=True)


if __name__ == "__main__":
    main()
