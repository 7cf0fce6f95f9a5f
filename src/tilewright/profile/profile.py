"""Implements `tilewright.profile`: reads traces and shows how the GPUs spend their time.

The steps are: read the traces, split each GPU's time, find the causes of its gaps, make tables, and find lost time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tilewright.errors import RequestError
from tilewright.profile import trace as traces
from tilewright.profile.figures import Figure, GpuProfile, Profile, TraceFacts
from tilewright.profile.findings import findings
from tilewright.profile.gpu import gpu_profile
from tilewright.profile.ladder import COUNTERS, TRACE
from tilewright.profile.rows import by_name
from tilewright.profile.sources import RawLine, Sources
from tilewright.profile.split import within_steps
from tilewright.profile.thresholds import HOT_KERNEL
from tilewright.profile.trace import KinetoTrace
from tilewright.progress import Progress, silent


def profile(
    *paths: Path | str, steps: tuple[int, int] | None = None, command: Sequence[str] = (),
    steps_us: Sequence[float] = (), progress: Progress = silent,
) -> Profile:  # fmt: skip
    """Returns the profile of one trace, or of the traces of several processes of one program.

    steps: a pair (first, end). Only the steps from ``first`` to before ``end`` are used. A program with fewer steps is
        shown whole.
    command, steps_us: the program and its step times, if Tilewright ran it (see `figures.Profile`).
    Raises RequestError if a file cannot be read, or is not a trace with activities of a GPU.
    """
    facts: list[TraceFacts] = []
    gpus: list[GpuProfile] = []
    raw: list[RawLine] = []
    for path in map(Path, paths):
        if path.name in {each.file for each in facts}:
            raise RequestError(f"two traces are named {path.name}; rename one, so that sources name one file each")
        trace = _chosen(traces.read(path, progress), steps, lenient=bool(command))
        sources = Sources(path)
        gpus += filter(None, (gpu_profile(trace, device, sources) for device in trace.devices()))
        facts.append(_facts(trace, sources))
        raw += sources.lines()
    if not gpus:
        names = " and ".join(each.file for each in facts)
        raise RequestError(f"no activity in {names} took any time; record again, with a newer torch")
    hot = [row.name for gpu in gpus for row in gpu.kernels if row.kind == "compute" and row.share > HOT_KERNEL.limit]
    return Profile(
        traces=tuple(facts),
        gpus=tuple(gpus),
        findings=findings(gpus, facts),
        rung=COUNTERS if any(each.counters for each in facts) else TRACE,
        why_not_higher=_why_not_higher(hot),
        command=tuple(command),
        steps_us=tuple(steps_us),
        raw=tuple(raw),
    )


def _chosen(trace: KinetoTrace, steps: tuple[int, int] | None, lenient: bool) -> KinetoTrace:
    """Returns the part of a trace that the chosen steps launched. Raises RequestError if the trace lacks these
    steps."""
    chosen = within_steps(trace, *steps) if steps else trace
    if chosen is not None and len(chosen.activities):
        return chosen
    if lenient:
        return trace
    known = ", ".join(str(step.number) for step in trace.steps) or "none"
    wanted = ":".join(map(str, steps or ()))
    raise RequestError(f"{trace.path} has no activity of steps {wanted} (its steps: {known}); leave out --steps")


def _why_not_higher(hot: list[str]) -> str:
    if not hot:
        return f"no kernel takes more than {HOT_KERNEL.limit * 100:.0f} % of the time: counters would explain little"
    return "Nsight Compute says why a hot kernel is slow: tilewright profile --counters -- PROGRAM"


def _facts(trace: KinetoTrace, sources: Sources) -> TraceFacts:
    both = (trace.activities, trace.calls)
    begin = min(int(table.start.min()) for table in both if len(table))
    end = max(int(table.end.max()) for table in both if len(table))
    return TraceFacts(
        file=trace.path.name, digest=trace.digest, rank=trace.rank, events=trace.events, steps=len(trace.steps),
        span_us=(end - begin) / 1e3, calls=by_name(trace.calls, sources, kinds=False),
        counters=tuple(_counters(trace, sources)),
    )  # fmt: skip


def _counters(trace: KinetoTrace, sources: Sources) -> list[Figure]:
    """Returns one figure for each hardware counter of each range of kernels."""
    return [
        Figure(
            name=f"{counted.name}: {name}" if counted.name else name,
            value=value,
            unit="",
            how="counted by CUPTI" if value is not None else "not measured: the trace has no finite number",
            lines=sources.cite(counted.place),
        )
        for counted in trace.counted
        for name, value in counted.counters.items()
    ]
