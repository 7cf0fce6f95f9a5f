"""Measures the hot kernels with Nsight Compute, the heaviest method of `ladder`.

The program runs again under ``ncu``, which runs each chosen launch several times. ``ncu`` measures the use of the
compute units and of the memory in percent of their peaks. These numbers show which resource limits the kernel.
"""

from __future__ import annotations

import csv
import math
import re
import shutil
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.errors import RequestError, ToolFailed, first_line
from tilewright.profile import thresholds as limits
from tilewright.profile.figures import Figure, Profile
from tilewright.profile.ladder import NCU
from tilewright.profile.sources import RawLine
from tilewright.tools.child import workplace

COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
TIME = "gpu__time_duration.sum"
METRICS = {COMPUTE: "compute", MEMORY: "memory", OCCUPANCY: "occupancy", TIME: "time"}
MOST_KERNELS = 3
SKIP, COUNT = 5, 3
"""Launches of each kernel: how many are skipped as warm-up, and how many are then measured."""

_REASONS = (
    ("ERR_NVGPUCTRPERM", "the driver lets only root read counters; see NVIDIA's page on ERR_NVGPUCTRPERM"),
    ("LibraryNotLoaded", "this sandbox keeps Nsight Compute from the driver; run it on the host"),
    ("No kernels were profiled", "no launch of these kernels was left after the warm-up"),
)


@dataclass(frozen=True)
class Measured:
    """One launch measured by Nsight Compute. The value of a metric is None if the counter is absent or NaN."""

    kernel: str
    values: Mapping[str, float | None]
    source: str
    text: str


def with_counters(profile: Profile) -> Profile:
    """Returns the profile with hardware counters of its hot kernels, if Nsight Compute can measure them.

    Raises RequestError if the profile was read from a trace, because the program is then unknown.
    """
    if not profile.command:
        raise RequestError("--counters runs the program again: tilewright profile --counters -- PROGRAM")
    hot = hot_kernels(profile)
    if not hot:
        return profile
    if shutil.which("ncu") is None:
        return replace(profile, why_not_higher="Nsight Compute (ncu) is not in PATH; it comes with the CUDA toolkit")
    texts = {}
    for n, kernel in enumerate(hot, 1):
        with workplace() as folder:
            log = Path(folder) / "ncu.csv"
            asked = command(kernel, log, profile.command)
            done = subprocess.run(asked, capture_output=True, text=True, errors="replace")
            texts[f"ncu{n}.csv"] = log.read_text(errors="replace") if log.exists() else done.stderr
    try:
        return measured(profile, texts)
    except ToolFailed as error:
        return replace(profile, why_not_higher=str(error))


def hot_kernels(profile: Profile) -> list[str]:
    """Returns the names of the kernels whose share of the time is above the threshold, the longest first."""
    rows = [row for gpu in profile.gpus for row in gpu.kernels if row.kind == "compute"]
    rows = sorted((row for row in rows if row.share > limits.HOT_KERNEL.limit), key=lambda row: -row.total_us)
    return list(dict.fromkeys(row.name for row in rows))[:MOST_KERNELS]


def command(kernel: str, log: Path, program: Sequence[str]) -> list[str]:
    """Returns the command that measures some launches of one kernel."""
    name = re.escape(base_name(kernel))
    return [
        "ncu", "--csv", "--page", "raw", "--log-file", str(log), "--metrics", ",".join(METRICS),
        "--clock-control", "none", "--target-processes", "all", "--kernel-name", f"regex:^{name}$",
        "--launch-skip", str(SKIP), "--launch-count", str(COUNT), *program,
    ]  # fmt: skip


def base_name(kernel: str) -> str:
    """Returns the name by which Nsight Compute filters kernels: without type, namespace, template arguments and
    parameters."""
    plain = kernel.replace("(anonymous namespace)::", "")
    while (shorter := re.sub(r"<[^<>]*>", "", plain)) != plain:
        plain = shorter
    return plain.partition("(")[0].split()[-1].rpartition("::")[2]


def measured(profile: Profile, texts: Mapping[str, str]) -> Profile:
    """Returns the profile with the counters that Nsight Compute measured.

    texts: the output of ``ncu --csv --page raw``, by the name that the figures cite.
    """
    rows = [row for file, text in texts.items() for row in launches(file, text)]
    if not rows:
        text = "\n".join(texts.values())
        known = (why for sign, why in _REASONS if sign in text)
        raise ToolFailed(f"Nsight Compute measured nothing: {next(known, first_line(text, 'it printed nothing'))}")
    figures = tuple(_figures(rows))
    raw = tuple(RawLine(row.source, row.text) for row in rows)
    first = replace(profile.traces[0], counters=(*profile.traces[0].counters, *figures))
    why = "this is the top of the ladder"
    return replace(profile, traces=(first, *profile.traces[1:]), rung=NCU, why_not_higher=why, raw=(*profile.raw, *raw))


def launches(file: str, text: str) -> Iterator[Measured]:
    """Yields each launch in the output of Nsight Compute. The first row of the output has the names, the second the
    units."""
    lines = text.splitlines()
    begin = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    table = list(csv.reader(lines[begin:]))
    for n, row in enumerate(table[2:], begin + 3):
        named = dict(zip(table[0], row, strict=False))
        if named.get("ID", "").isdecimal():
            units = dict(zip(table[0], table[1], strict=False))
            values = {name: _scaled(named.get(name, ""), units.get(name, "")) for name in METRICS}
            yield Measured(named.get("Kernel Name", ""), values, f"{file}:{n}:1", lines[n - 1])


def _scaled(text: str, unit: str) -> float | None:
    """Converts a percentage to a share from 0 to 1, and a time to µs. Returns None if the text is not a finite
    number."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    factors = {"%": 0.01, "nsecond": 1e-3, "ns": 1e-3, "msecond": 1e3, "ms": 1e3, "second": 1e6, "s": 1e6}
    return value * factors.get(unit, 1.0) if math.isfinite(value) else None


def _figures(rows: Sequence[Measured]) -> Iterator[Figure]:
    for kernel in dict.fromkeys(row.kernel for row in rows):
        mine = [row for row in rows if row.kernel == kernel]
        lines = tuple(row.source for row in mine)
        medians: dict[str, float | None] = {}
        for metric, name in METRICS.items():
            known = [value for row in mine if (value := row.values[metric]) is not None]
            medians[metric] = statistics.median(known) if known else None
            how = f"{metric}, median of {len(known)} launches" if known else f"{metric}: not measured"
            unit = "µs" if metric == TIME else "share"
            yield Figure(name=f"{kernel}: {name}", value=medians[metric], unit=unit, how=how, lines=lines)
        how = bound(medians[COMPUTE], medians[MEMORY], medians[OCCUPANCY])
        light = [value for value in (medians[COMPUTE], medians[MEMORY]) if value is not None]
        yield Figure(
            name=f"{kernel}: speed of light", value=max(light) if light else None, unit="share", how=how, lines=lines
        )


def bound(compute: float | None, memory: float | None, occupancy: float | None) -> str:
    """Returns a sentence that names the resource that limits a kernel, from the kernel's shares of the peaks."""
    if compute is None or memory is None:
        return "not measured: a counter is absent"
    near, far = limits.NEAR_THE_LIMIT.limit, limits.FAR_FROM_THE_LIMIT.limit
    if compute > near and memory > near:
        return "near both limits"
    if compute > near and memory < far:
        return "bound by compute"
    if memory > near and compute < far:
        return "bound by memory"
    if compute < limits.NO_LIMIT.limit and memory < limits.NO_LIMIT.limit:
        return "bound by latency or by the launch: both units are far from their peaks"
    if compute < far and memory < far:
        occupied = occupancy is not None and occupancy > limits.OCCUPIED.limit
        return "bound by instructions" if occupied else "bound by latency"
    return "balanced"
