"""Profiling: how a program spends its time, and which resource limits it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.errors import RequestError
from tilewright.specialists.base import Need, Specialist
from tilewright.specialists.changing import proposed_changes
from tilewright.specialists.delegation import Delegation, Measure, SpecialistAnswer
from tilewright.specialists.needs import need_of_gpu, need_of_package, need_of_program
from tilewright.specialists.proposal import NoProposal, ProgramProposal

if TYPE_CHECKING:
    from tilewright.profile.figures import Profile


class Profiling(Specialist):
    name = "profiling"
    order = 10
    aliases = ("perf-profiling-specialist",)
    domain = (
        "where the time or the memory of a program goes, and how to spend less: profiles, traces, benchmarks, latency, "
        "throughput, utilization, roofline; also techniques that name no kernel language, such as FlashAttention, "
        "fusion, checkpointing, memory pooling, lower precision, batching, data loading, torch.compile"
    )
    returns = (
        "the time of a step, with its spread; its split into compute, communication, copies and idle; the longest "
        "kernels; each finding with its raw line"
    )
    examples = (
        "Speed up train.py",
        "Why is my GPU idle half of the time?",
        "Benchmark train.py and report latency",
        "Enable FlashAttention for self-attention layers",
    )

    def needs(self) -> tuple[Need, ...]:
        ncu = need_of_program("ncu", "only for counters of hot kernels: install NVIDIA Nsight Compute")
        return (need_of_package("torch"), need_of_gpu(), ncu)

    def answer(self, delegation: Delegation) -> SpecialistAnswer:
        """Profiles the program of the delegation, or reads its trace. A trace needs neither torch nor a GPU."""
        if not delegation.file:
            raise RequestError("profiling needs a program or a trace: name the file")
        found = _profiled(Path(delegation.file))
        worst = found.bottleneck
        return SpecialistAnswer(
            outcome="analysed",
            summary=worst.text if worst else "no number is beyond its limit",
            measures=tuple(_measures(found)),
            findings={finding.id: finding.text for finding in found.findings},
        )

    def propose(self, delegation: Delegation) -> tuple[ProgramProposal, ...] | NoProposal:
        """Proposes the changes of `program.changes` that the delegation's task or findings name."""
        return proposed_changes(delegation)


MEASURED = ("time", "compute", "exposed communication", "exposed copy", "idle", "host late")


def _profiled(file: Path) -> Profile:
    from tilewright.profile.profile import profile
    from tilewright.runtime.started import SECONDS, STEPS, recorded, trace_folder, traced

    if file.suffix != ".py":
        return profile(file)
    if not file.is_file():
        raise RequestError(f"no such program: {file}")
    folder, command = trace_folder(), [sys.executable, str(file)]
    code = subprocess.run(command, env=traced(os.environ, folder, STEPS[1], SECONDS), stdout=2).returncode
    traces, times = recorded(folder, code)
    return profile(*traces, steps=STEPS, command=command, steps_us=times)


def _measures(found: Profile) -> Iterator[Measure]:
    """Yields the split of each GPU's time. The evidence of a number is the hash of the trace and the line in it."""
    digests = {trace.file: trace.digest for trace in found.traces}
    for gpu in found.gpus:
        for name in MEASURED:
            figure = gpu.figures[name]
            if figure.value is not None:
                evidence = " ".join((f"trace {digests[gpu.trace]}", *figure.lines[:1]))
                yield Measure(f"{name}, {gpu.label}", figure.unit, figure.value, None, evidence)


SPECIALIST = Profiling()
