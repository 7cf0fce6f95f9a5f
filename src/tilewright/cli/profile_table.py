"""The output of `tilewright profile`: the split of each GPU's time, the findings and the top kernels."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from tilewright.cli.terminal_table import Column, TerminalTable
from tilewright.profile.figures import GpuProfile, Profile, ProfileFinding
from tilewright.report import profile_views as views

SPLIT = (Column("GPU", always=True), *(Column(name, right=True, always=True) for name in views.SPLIT_HEADER[1:]))
KERNELS = (
    Column("#", right=True), Column("kernel", always=True), Column("instances", right=True, always=True),
    Column("total ms", right=True, always=True), Column("avg µs", right=True), Column("median µs", right=True, spare=1),
    Column("min µs", right=True, spare=2), Column("max µs", right=True, spare=2), Column("%", right=True, always=True),
    Column("line", spare=3),
)  # fmt: skip


def profiled(profile: Profile, top: int | None) -> RenderableType:
    """Returns the tables. ``top``: the number of kernels that are shown; None shows all."""
    split = TerminalTable(*SPLIT)
    for row in views.split_rows(profile):
        split.add(row)
    findings = [Text(line) for finding in profile.findings for line in _finding(finding)]
    return Group(
        split,
        Text(f"\n{views.outcome(profile)}"),
        *findings,
        *(part for gpu in profile.gpus for part in _kernels(gpu, top)),
        Text(f"\nsteps: {views.iterations(profile)}"),
        Text(f"measured by {views.rung(profile)}"),
    )


def _finding(finding: ProfileFinding) -> Iterator[str]:
    yield f"[{finding.level}] {finding.text} ({finding.id})"
    yield f"    {finding.advice}"
    if finding.places:
        yield f"    in the source: {', '.join(finding.places)}"


def _kernels(gpu: GpuProfile, top: int | None) -> Iterator[RenderableType]:
    launches = f"{gpu.value('kernels'):.0f} kernels, {gpu.value('short kernels'):.0f} of them short, "
    yield Text(f"\n{gpu.label}: {launches}{gpu.value('graph launches'):.0f} launches of CUDA graphs")
    table = TerminalTable(*KERNELS)
    for row in views.kernel_rows(gpu.kernels, len(gpu.kernels) if top is None else top):
        table.add(row)
    yield table
    if top is not None and len(gpu.kernels) > top:
        yield Text(f"{len(gpu.kernels) - top} more; --all shows them")
