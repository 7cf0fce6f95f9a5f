"""Lists the methods of measuring a program, from the lightest to the heaviest. A heavier method shows more and disturbs
the program more. So the lightest method that answers the question is used.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rung:
    """One way to measure a program."""

    name: str
    sees: str
    costs: str


TRACE = Rung("torch.profiler trace", "every kernel, copy and call of CUDA with its time", "some µs a call of the host")
COUNTERS = Rung("CUPTI counters", "hardware counters of ranges of kernels", "kernels run one after the other")
NCU = Rung(
    "Nsight Compute", "the use of each unit of the GPU, for the hot kernels alone", "each kernel runs many times"
)
