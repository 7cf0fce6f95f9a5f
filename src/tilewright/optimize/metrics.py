"""The metrics of a version on a workload, for the ledger: work, time, machine code and its mix of instructions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tilewright.inspect.work import count
from tilewright.ledger.records import Metrics
from tilewright.machine_code.cubin import MachineCodeError, opcodes
from tilewright.machine_code.instruction_mix import instruction_mix
from tilewright.optimize.attempting import Variant
from tilewright.race.stats import Interval, geometric_mean
from tilewright.records import Bound, Built, MeasuredTime, Workload


def metrics_of(
    variant: Variant,
    workload: Workload,
    bound: Bound,
    measured: MeasuredTime | None = None,
    against_baseline: Interval | None = None,
) -> Metrics:
    """Measured where there is a ``measured``; otherwise predicted."""
    work = count(variant.task, workload, variant.board)
    return Metrics(
        workload=workload.name,
        measured=measured,
        predicted=variant.predicted[workload.name] if measured is None else None,
        against_baseline=against_baseline,
        bound=bound,
        flops=work.flops,
        bytes=work.bytes,
        code=variant.codes[workload.name],
        mix=_mix(variant, workload),
    )


def mean_ms(times_us: Iterable[float]) -> float | None:
    """Geometric mean over workloads, in ms; None if empty."""
    mean = geometric_mean(times_us)
    return None if mean is None else mean / 1e3


def mean_interval_ms(measured: Sequence[MeasuredTime]) -> tuple[float, float] | None:
    """Of `mean_ms`: the geometric means of the bounds, which holds at least where each interval does."""
    low = mean_ms(max(time.interval_us[0], 1e-9) for time in measured)
    high = mean_ms(time.interval_us[1] for time in measured)
    return (low, high) if low is not None and high is not None and math.isfinite(high) else None


def _mix(variant: Variant, workload: Workload) -> dict[str, int]:
    for compiled_unit in variant.compiled:
        if compiled_unit.unit.workload.name == workload.name and isinstance(compiled_unit.built, Built):
            try:
                return instruction_mix(opcodes([compiled_unit.built.cubin])[0])
            except MachineCodeError:
                return {}
    return {}
