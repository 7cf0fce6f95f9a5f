"""Memory-bound or compute-bound? The roofline's verdict on a workload, with its reason.

Two rules stand side by side. Fixed thresholds (10 and 50 FLOP per byte) name the kind; the name decides only the order
in which optimisations are tried. The roofline of the board decides the speed of light. Where they disagree (60 FLOP per
byte is above 50, but under the ridge of an H200), the reason says both.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from tilewright.errors import RequestError
from tilewright.hardware.boards import Board
from tilewright.records import Bound

BoundKind: TypeAlias = Literal["memory", "balanced", "compute"]

MEMORY_BELOW = 10.0
"""FLOP per byte under which a kernel is called memory-bound."""
COMPUTE_ABOVE = 50.0
"""FLOP per byte over which a kernel is called compute-bound."""


def classify(
    flops: float,
    bytes_: float,
    dtype: str,
    board: Board,
    *,
    least_flops: float | None = None,
    least_bytes: float | None = None,
    source: str = "",
) -> Bound:
    """The bound of a workload of ``flops`` FLOP that moves at least ``bytes_`` bytes.

    ``dtype`` is that of the products; one without a tensor path is rated at the CUDA cores' float32 rate. ``flops`` may
    be 0 (a pure copy). The rates are the vendor's peaks, so `Bound.speed_of_light_us` is a time that no kernel can
    beat; ``least_flops`` and ``least_bytes`` are what any kernel must do, where one kernel's own work is more than
    that. ``source`` says where the numbers come from. Raises RequestError where ``flops`` is negative, ``bytes_`` is
    not above 0, or either is not finite.
    """
    if not (math.isfinite(flops) and flops >= 0 and math.isfinite(bytes_) and bytes_ > 0):
        raise RequestError(
            f"cannot classify {flops:g} FLOP over {bytes_:g} bytes: FLOP must be 0 or more, bytes above 0"
        )
    intensity = flops / bytes_
    kind, threshold = _named(intensity)
    ridge = board.ridge(dtype)
    work_us = (flops if least_flops is None else least_flops) / (board.tflops(dtype) * 1e6)
    traffic_us = (bytes_ if least_bytes is None else least_bytes) / (board.bandwidth_gbs * 1e3)
    why = (
        f"{_number(intensity)} FLOP/B: {threshold} {_against_ridge(kind, intensity, ridge)} "
        f"{_ridge_in_words(dtype, board)}: {kind}; {_larger_term(work_us, traffic_us)}"
    )
    return Bound(kind, why, intensity, ridge, max(work_us, traffic_us), source, flops, bytes_)


def _named(intensity: float) -> tuple[BoundKind, str]:
    if intensity < MEMORY_BELOW:
        return "memory", f"below {MEMORY_BELOW:g}"
    if intensity > COMPUTE_ABOVE:
        return "compute", f"above {COMPUTE_ABOVE:g}"
    return "balanced", f"between {MEMORY_BELOW:g} and {COMPUTE_ABOVE:g}"


def _against_ridge(kind: BoundKind, intensity: float, ridge: float) -> str:
    """Which side of the ridge it is on, with "but" where that contradicts the name."""
    above = intensity > ridge
    contradicts = (kind == "compute" and intensity < ridge) or (kind == "memory" and above)
    side = "above" if above else "at" if intensity == ridge else "under"
    return f"{'but' if contradicts else 'and'} {side}"


def _ridge_in_words(dtype: str, board: Board) -> str:
    cores = "" if dtype in board.tensor_tflops else " of the CUDA cores"
    rates = f"{_number(board.tflops(dtype))} TFLOP/s{cores} over {board.bandwidth_gbs / 1e3:.3g} TB/s"
    return f"the ridge of {_number(board.ridge(dtype))} ({board.name}, {dtype}: {rates})"


def _larger_term(work_us: float, traffic_us: float) -> str:
    work, traffic = f"work {_number(work_us)} µs", f"traffic {_number(traffic_us)} µs"
    if work_us == traffic_us:
        return f"{work} and {traffic} are equal"
    larger, smaller = (work, traffic) if work_us > traffic_us else (traffic, work)
    return f"{larger} is the larger term ({smaller})"


def _number(value: float) -> str:
    """Three digits, and whole above 100: 1365, 206, 4.37."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
