"""Implements `tilewright inspect`: registers, spills and predicted times of configurations, from machine code.

`inspect` compiles for any architecture and needs no GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.compile.compile import (
    BUDGET_SECONDS,
    Compiled,
    Unit,
    compile_all,
    languages_of,
    launch_of,
    refuse_broken_tools,
)
from tilewright.compile.screen import candidate_of, screen_compiled
from tilewright.hardware.architectures import Board, default_board
from tilewright.hardware.diagnosis import Diagnosis
from tilewright.hardware.gpu import detect
from tilewright.hardware.machine import target_of
from tilewright.hardware.prediction_error import TIME_FACTOR
from tilewright.inspect.work import bound_of, diagnosis_of
from tilewright.ledger.codec import Encodable
from tilewright.progress import Progress, silent
from tilewright.records import Bound, Built, Candidate, Remark, Workload
from tilewright.space.space import Choice
from tilewright.task.loading import task_of
from tilewright.task.task import Task

CODE_FACTS = (
    "registers", "stack_bytes", "shared_bytes", "local_loads", "local_stores", "tensor_path", "tensor_instructions",
    "copies", "threads", "cluster", "code_hash",
)  # fmt: skip
"""The fields of `records.MachineCode` that the JSON contains."""


@dataclass(frozen=True)
class Inspected:
    """One configuration on one architecture and workload. ``remarks``: the compiler's comments on source lines."""

    arch: str
    board: Board
    workload: Workload
    bound: Bound
    candidate: Candidate
    remarks: tuple[Remark, ...] = ()
    diagnosis: Diagnosis | None = None
    """The resource that limits the configuration, without an examination of traffic. None if it did not compile."""

    def __str__(self) -> str:
        candidate = self.candidate
        return f"{candidate.configuration} on {self.arch}: {candidate.status}, {candidate.reason}"

    def to_json(self) -> dict[str, Encodable]:
        """Returns one element of the list that `inspect --json` prints. Scripts rely on these names."""
        candidate, code, predicted = self.candidate, self.candidate.code, self.candidate.predicted
        facts = code.known if code else dict.fromkeys(CODE_FACTS)
        return {
            "config": dict(candidate.configuration), "arch": self.arch, "board": self.board.name,
            "workload": self.workload.name, "status": candidate.status, "reason": candidate.reason,
            **{name: facts[name] for name in CODE_FACTS},
            "remarks": [vars(remark) for remark in self.remarks], "compile_seconds": candidate.compile_seconds,
            "predicted_us": predicted.us if predicted else None, "predicted_why": predicted.why if predicted else None,
            "error_factor": TIME_FACTOR if predicted else None,
            "bound": self.bound.kind, "bound_why": self.bound.why, "bound_source": self.bound.source,
            "speed_of_light_us": self.bound.speed_of_light_us,
            "diagnosis": self.diagnosis.to_json() if self.diagnosis else None,
        }  # fmt: skip


def inspect(
    task: Task | str, arch: Sequence[str] | str | None = None, *, config: Choice | Sequence[Choice] | None = None,
    workload: str | None = None, jobs: int | None = None, seconds: float = BUDGET_SECONDS,
    progress: Progress = silent,
) -> tuple[Inspected, ...]:  # fmt: skip
    """Compiles every configuration of the space, or only ``config``, for each architecture.

    task: a task, or ``FILE[:TASK]``.
    arch: one name or several, such as ``sm_90``; by default this machine's GPU or, without a GPU, the default.
    config: one configuration or several, as strings or as mappings from knob to value.
    workload: the name of the workload to compile for; by default the task's first.
    jobs: the number of compilers at a time.
    seconds: limit of wall time for each compilation.
    Raises UnknownChoice for an architecture or a workload that does not exist, and TaskError if the task's ``flops`` or
    ``bytes_moved`` fails.
    """
    task = task_of(task)
    chosen = task.workload(workload) if workload else task.selected(None)[0]
    archs = (arch,) if isinstance(arch, str) else arch
    boards = [default_board(arch) for arch in archs] if archs else [target_of(None, detect()).board]
    only = task.space.chosen(config)
    task.work(chosen.dims)  # a mistake in these is said before the compilers run, not after
    task.traffic(chosen.dims)
    for board in boards:
        languages_of(task, [chosen], board)
    units = [
        Unit(chosen, configuration, board)
        for board in boards
        for configuration in (only or task.space.on(board.arch).configurations(board.sm, chosen.dims))
    ]
    finished = itertools.count(1)

    def count(done: Compiled) -> None:
        progress("compile", next(finished), len(units), str(done.unit.configuration))

    compiled = compile_all(task, units, jobs=jobs, seconds=seconds, on_done=count)
    refuse_broken_tools(compiled)
    rows = []
    for board in boards:
        bound = bound_of(task, chosen, board)
        on_board = [each for each in compiled if each.unit.board.arch == board.arch]
        screened = screen_compiled(task, chosen, board, bound, on_board)
        for each in on_board:
            candidate = candidate_of(each, screened[each.unit.configuration])
            remarks = each.built.remarks if isinstance(each.built, Built) else ()
            found = None
            if candidate.code is not None:
                launched = candidate.code, launch_of(task, each.unit)[0].grid
                found = diagnosis_of(task, chosen, launched, bound, board)
            rows.append(Inspected(board.arch, board, chosen, bound, candidate, remarks, found))
    return tuple(rows)
