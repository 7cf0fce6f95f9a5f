"""Finds causes of lost time in a profile: numbers beyond a threshold, their meaning, and advice.

Each rule is one function. A rule takes a GPU and its trace, and yields findings. `hot_kernels` yields one finding for
each hot kernel. Every other rule yields at most one finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tilewright.profile import thresholds as limits
from tilewright.profile.figures import Figure, GpuProfile, Level, ProfileFinding, TraceFacts, percent
from tilewright.profile.kinds import LAUNCH


@dataclass(frozen=True)
class Found:
    """The result of a rule. `findings` adds id and level."""

    kind: str
    impact: float
    text: str
    evidence: tuple[Figure, ...]
    threshold: str
    advice: str
    specialist: str
    tag: str


Rule = Callable[[GpuProfile, TraceFacts], Iterator[Found]]


def findings(gpus: Iterable[GpuProfile], traces: Iterable[TraceFacts]) -> tuple[ProfileFinding, ...]:
    """Returns the findings of all GPUs. The finding with the greatest impact is first."""
    of = {trace.file: trace for trace in traces}
    every = []
    for gpu in gpus:
        trace = of[gpu.trace]
        for rule in RULES:
            for number, found in enumerate(rule(gpu, trace)):
                more = f"-{number + 1}" if number else ""
                name = f"{trace.digest[:8]}-{found.kind}{more}-gpu{gpu.device}"
                every.append(ProfileFinding(id=name, level=level(found.impact), **vars(found)))
    return tuple(sorted(every, key=lambda finding: -finding.impact))


def level(impact: float) -> Level:
    if impact >= limits.HIGH_IMPACT.limit:
        return "High"
    return "Medium" if impact >= limits.IMPACT.limit else "Low"


def late_host(gpu: GpuProfile, _: TraceFacts) -> Iterator[Found]:
    idle, late, of_idle = gpu.figures["idle"], gpu.figures["host late"], gpu.figures["host late of idle"]
    if _over(idle, limits.IDLE) and _over(of_idle, limits.HOST_LATE):
        yield Found(
            kind="host-late", impact=late.value or 0.0,
            text=f"{gpu.label} is idle for {_of(idle)} of its time; in {_of(of_idle)} of that it waits for the host",
            evidence=(idle, late, of_idle), threshold=f"idle: {limits.IDLE}; host late: {limits.HOST_LATE}",
            advice="launch less often: capture the step as a CUDA graph, fuse small kernels, or batch more work",
            specialist="cuda-graph", tag="batching",
        )  # fmt: skip


def idle_in_dependencies(gpu: GpuProfile, _: TraceFacts) -> Iterator[Found]:
    idle, of_idle = gpu.figures["idle"], gpu.figures["host late of idle"]
    if _over(idle, limits.IDLE) and not _over(of_idle, limits.HOST_LATE):
        waits = gpu.figures["dependency"]
        yield Found(
            kind="idle", impact=idle.value or 0.0,
            text=f"{gpu.label} is idle for {_of(idle)} of its time, mostly not because of the host",
            evidence=(idle, waits, of_idle), threshold=f"idle: {limits.IDLE}",
            advice="overlap what waits: run independent work on other streams, or fuse dependent kernels",
            specialist="profiling", tag="pipeline",
        )  # fmt: skip


def waiting_host(gpu: GpuProfile, _: TraceFacts) -> Iterator[Found]:
    waited, calls = gpu.figures["host waited"], gpu.figures["host waits"]
    if _over(waited, limits.IMPACT):
        yield Found(
            kind="host-sync", impact=waited.value or 0.0,
            text=f"for {_of(waited)} of its time {gpu.label} has no work because the host waited for it",
            evidence=(waited, calls), threshold=str(limits.IMPACT),
            advice="do not wait in the loop: no .item(), .cpu(), print or synchronize; read results some steps later",
            specialist="profiling", tag="async",
        )  # fmt: skip


def communication(gpu: GpuProfile, _: TraceFacts) -> Iterator[Found]:
    exposed, whole = gpu.figures["exposed communication"], gpu.figures["communication"]
    if _over(exposed, limits.COMMUNICATION):
        yield Found(
            kind="communication", impact=exposed.value or 0.0,
            text=f"{gpu.label} communicates for {_of(exposed)} of its time while nothing computes",
            evidence=(exposed, whole), threshold=str(limits.COMMUNICATION),
            advice="overlap communication with computation: buckets, prefetch, or another partition",
            specialist="distributed", tag="parallelism",
        )  # fmt: skip


def exposed_copies(gpu: GpuProfile, _: TraceFacts) -> Iterator[Found]:
    exposed = gpu.figures["exposed copy"]
    if _over(exposed, limits.IMPACT):
        yield Found(
            kind="copies", impact=exposed.value or 0.0,
            text=f"{gpu.label} only copies for {_of(exposed)} of its time",
            evidence=(exposed,), threshold=str(limits.IMPACT),
            advice="prefetch the next batch on another stream, from pinned memory with non_blocking=True",
            specialist="profiling", tag="pipeline",
        )  # fmt: skip


def pageable_copies(gpu: GpuProfile, _: TraceFacts) -> Iterator[Found]:
    copies, count = gpu.figures["pageable copies"], gpu.figures["pageable copy count"]
    if _over(copies, limits.PAGEABLE):
        yield Found(
            kind="pageable-copies", impact=copies.value or 0.0,
            text=f"{count.value:.0f} copies of {gpu.label} are from or to pageable memory, {_of(copies)} of its time",
            evidence=(copies, count), threshold=str(limits.PAGEABLE),
            advice="pin the host's memory (pin_memory=True) and copy with non_blocking=True",
            specialist="profiling", tag="async",
        )  # fmt: skip


def short_kernels(gpu: GpuProfile, _: TraceFacts) -> Iterator[Found]:
    share, time, count = (gpu.figures[n] for n in ("short kernels of all", "time of short kernels", "short kernels"))
    if _over(share, limits.SHORT_KERNELS):
        yield Found(
            kind="short-kernels", impact=time.value or 0.0,
            text=f"{count.value:.0f} kernels of {gpu.label}, {_of(share)} of all, take less than "
            f"{limits.SHORT_KERNEL_US.limit:g} µs",
            evidence=(count, share, time), threshold=f"{limits.SHORT_KERNEL_US}; {limits.SHORT_KERNELS}",
            advice="fuse chains of element-wise kernels into one, or launch them in a CUDA graph",
            specialist="triton", tag="fusion",
        )  # fmt: skip


def launching_calls(gpu: GpuProfile, trace: TraceFacts) -> Iterator[Found]:
    rows = [row for row in trace.calls if LAUNCH.match(row.name)]
    share = sum(row.total_us for row in rows) / trace.span_us if trace.span_us else 0.0
    lines = tuple(line for row in rows for line in row.lines)
    how = "time in calls that launch kernels and graphs, over the time of the trace"
    figure = Figure(name="launching calls", value=share, unit="share", how=how, lines=lines)
    if _over(figure, limits.LAUNCH_CALLS):
        yield Found(
            kind="launch-calls", impact=share,
            text=f"the host spends {_of(figure)} of the time of the trace in {sum(row.count for row in rows)} launches",
            evidence=(figure,), threshold=str(limits.LAUNCH_CALLS),
            advice="capture the step as a CUDA graph, or fuse small kernels",
            specialist="cuda-graph", tag="batching",
        )  # fmt: skip


def hot_kernels(gpu: GpuProfile, _: TraceFacts) -> Iterator[Found]:
    for row in gpu.kernels:
        how = f"{row.count} runs, {row.total_us:.1f} µs in all, over the summed time of all activities"
        share = Figure(name="share of kernel", value=row.share, unit="share", how=how, lines=row.lines)
        if row.kind == "compute" and _over(share, limits.HOT_KERNEL):
            time = gpu.value("time") or 0.0
            yield Found(
                kind="hot-kernel", impact=min(1.0, row.total_us / 1e3 / time) if time else 0.0,
                text=f"the kernel {row.name} takes {_of(share)} of the time of all activities of {gpu.label}",
                evidence=(share,), threshold=str(limits.HOT_KERNEL),
                advice="look at this kernel alone with Nsight Compute, then tune or rewrite it",
                specialist="profiling", tag="locality",
            )  # fmt: skip


def single_precision(gpu: GpuProfile, _: TraceFacts) -> Iterator[Found]:
    products = gpu.figures["float32 products"]
    if _over(products, limits.IMPACT):
        yield Found(
            kind="float32-products", impact=products.value or 0.0,
            text=f"{gpu.label} multiplies float32 matrices without tensor cores for {_of(products)} of its time",
            evidence=(products,), threshold=str(limits.IMPACT),
            advice="if the accuracy allows it: bfloat16 autocast, or torch.set_float32_matmul_precision('high')",
            specialist="profiling", tag="precision",
        )  # fmt: skip


RULES: tuple[Rule, ...] = (
    late_host, idle_in_dependencies, waiting_host, communication, exposed_copies, pageable_copies, short_kernels,
    launching_calls, hot_kernels, single_precision,
)  # fmt: skip


def _over(figure: Figure, threshold: limits.Threshold) -> bool:
    return figure.value is not None and figure.value > threshold.limit


def _of(figure: Figure) -> str:
    return "an unknown part" if figure.value is None else percent(figure.value)
