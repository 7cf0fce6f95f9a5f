"""Measures the communication between the GPUs of one host: collectives, overlap, and settings of NCCL."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilewright.errors import ToolFailed
from tilewright.profile.collectives import ProgramMessage
from tilewright.program.distributed.collectives import COLLECTIVES, SIZES, MeasuredCollectives, measured_by
from tilewright.program.distributed.ranks import Backend, started_ranks
from tilewright.program.distributed.settings import (
    RacedSettings,
    RecommendedSetting,
    launch_lines,
    main_messages,
    race_settings,
    recommended,
)
from tilewright.program.distributed.training import MeasuredOverlap, measure_overlap
from tilewright.progress import Progress, silent

SWEEP, OVERLAP = 0.4, 0.2
"""The shares of the time for the collectives and for the overlap. The rest is for the settings."""
TYPICAL = (ProgramMessage("all_reduce", 64 << 10, 1), ProgramMessage("all_reduce", 25 << 20, 1))
"""The messages for which settings are raced, and none is recommended, if those of the program are not known: a small
one, and DDP's bucket."""


@dataclass(frozen=True)
class HostCommunication:
    """What was measured. ``overlap``, ``settings``: None if they were not measured; ``failed`` says why.

    recommended: settings that were faster, with the variables for the launch in ``lines``.
    """

    collectives: MeasuredCollectives
    overlap: MeasuredOverlap | None
    settings: RacedSettings | None
    recommended: tuple[RecommendedSetting, ...]
    lines: tuple[str, ...]
    failed: tuple[str, ...]


def measure_host(
    backend: Backend, messages: Iterable[ProgramMessage] = (), *, ranks: int = 2, sizes: Sequence[int] = SIZES,
    seconds: float = 60.0, progress: Progress = silent,
) -> HostCommunication:  # fmt: skip
    """Measures collectives, the overlap of a small training step, and, with NCCL, settings for ``messages``.

    Raises MachineError without enough GPUs, and ToolFailed if no collective could be measured.
    """
    until, failed, overlap, settings = time.monotonic() + seconds, list[str](), None, None
    with started_ranks(backend, ranks) as job:
        job.begin(seconds)
        measured = measured_by(job, sizes, COLLECTIVES, time.monotonic() + SWEEP * (until - time.monotonic()), progress)
        try:
            overlap = measure_overlap(job, seconds=max(10.0, OVERLAP * seconds))
        except ToolFailed as error:
            failed.append(f"overlap: {error}")
    messages = tuple(messages)
    if backend == "nccl":
        left = max(10.0, until - time.monotonic())
        try:
            cells = [(each.collective, each.bytes) for each in main_messages(messages) or TYPICAL]
            settings = race_settings(backend, cells, ranks=ranks, seconds=left, progress=progress)
        except ToolFailed as error:
            failed.append(f"settings of NCCL: {error}")
    found = recommended(settings, messages) if settings is not None else ()
    return HostCommunication(measured, overlap, settings, found, launch_lines(measured.facts, found), tuple(failed))
