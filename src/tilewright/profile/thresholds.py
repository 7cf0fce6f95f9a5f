"""The limits beyond which a number becomes a finding, with their sources."""

from __future__ import annotations

from dataclasses import dataclass

SKILLS = "NVIDIA TensorRT-LLM, performance analysis skills, 2026"
OURS = "Tilewright; a round number, not fitted"


@dataclass(frozen=True)
class Threshold:
    """A limit of a number. ``limit``: a share from 0 to 1, a time in µs, or a size in KiB. ``of``: the quantity of
    which it is a share, or the unit, ``µs`` or ``KiB``."""

    limit: float
    of: str
    source: str

    def __str__(self) -> str:
        shown = f"{self.limit:g} {self.of}" if self.of in ("µs", "KiB") else f"{self.limit * 100:.0f} % of {self.of}"
        return f"limit {shown} ({self.source})"


IDLE = Threshold(0.30, "the GPU's time", SKILLS)
HOST_LATE = Threshold(0.50, "the idle time", SKILLS)
COMMUNICATION = Threshold(0.20, "the GPU's time", SKILLS)
WAITING_RANKS = Threshold(0.20, "the time of communication", OURS)
SMALL_MESSAGE_KIB = Threshold(256.0, "KiB", OURS)
SMALL_MESSAGES = Threshold(0.10, "the time of communication", OURS)
LAUNCH_CALLS = Threshold(0.10, "the time of the trace", SKILLS)
HOT_KERNEL = Threshold(0.30, "the time of all activities", SKILLS)
SHORT_KERNEL_US = Threshold(10.0, "µs", SKILLS)
SHORT_KERNELS = Threshold(0.50, "the kernels", OURS)
IMPACT = Threshold(0.05, "the GPU's time", SKILLS)
"""A finding with a smaller impact has the level Low."""
HIGH_IMPACT = Threshold(0.20, "the GPU's time", OURS)
PAGEABLE = Threshold(0.01, "the GPU's time", OURS)

NEAR_THE_LIMIT = Threshold(0.60, "the peak", SKILLS)
FAR_FROM_THE_LIMIT = Threshold(0.40, "the peak", SKILLS)
NO_LIMIT = Threshold(0.30, "the peak", SKILLS)
OCCUPIED = Threshold(0.50, "the warps that fit", SKILLS)
