"""Refuses measured times that are too short for the counted work on this GPU.

The reason for such a time may be skipped work, a launch that failed, or a wrong clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.hardware.boards import Board
from tilewright.race.rules import Policy
from tilewright.task.task import Task
from tilewright.worker.client import Contestant
from tilewright.worker.messages import Configured

if TYPE_CHECKING:
    from tilewright.inspect.work import CountedWork

MARGIN = 0.9
"""Times below ``MARGIN`` × the limit are refused. The factor is below 1 because real clocks can be higher than stated.
For example, NVIDIA states the tensor rate of an H200 at 1830 MHz, and the clock reaches 1980 MHz."""


def fastest_tflops(task: Task, board: Board) -> float:
    """Returns the highest rate at which products of the task's dtypes can run, in TFLOP/s."""
    return highest_tflops({task.compute_dtype, *(declared.dtype for declared in task.inputs.values())}, board)


def highest_tflops(dtypes: Iterable[str], board: Board) -> float:
    """Returns the highest rate at which products of ``dtypes`` can run, in TFLOP/s.

    Products of float32 may use tfloat32. The table in `hardware.boards` states the rates with float32 accumulation.
    With 16-bit accumulation, 16-bit floats can reach half the rate of int8, and 8-bit floats the full rate of int8.
    """
    tensor = board.tensor_tflops
    others = {2: tensor.get("int8", 0) / 2, 1: tensor.get("int8", 0), 4: tensor.get("tfloat32", 0)}
    bytes_of = {dtype: 2 if dtype.endswith("16") else 1 if "float8" in dtype else 4 for dtype in dtypes}
    return max(max(board.tflops(dtype), others[size]) for dtype, size in bytes_of.items())


@dataclass(frozen=True)
class Roofline:
    """Computes the shortest possible times on one GPU model. ``policy``: whether the L2 is cold or warm at a timed
    launch."""

    board: Board
    policy: Policy

    def least_us(self, bytes_: float, flops: float, tflops: float) -> float:
        return max(bytes_ / (self.board.bandwidth_gbs * 1e3), flops / (tflops * 1e6))

    def cold(self, bytes_: float, stored: float) -> float:
        """Returns the bytes that must move between L2 and memory during a timed launch.

        With a warm L2 the number is 0. With a cold L2, the ``stored`` bytes do not count if they may stay in the L2.
        """
        return 0.0 if self.policy.l2 == "warm" else max(0.0, bytes_ - min(stored, self.board.l2_bytes))

    def counted(self, work: CountedWork) -> tuple[float, float] | None:
        """Returns the bytes (see `cold`) and FLOP of ``work``.

        Returns None if the work was not counted, or if addresses depend on data.
        """
        if work.counts is None or not work.static:
            return None
        return self.cold(work.bytes, work.written), work.flops

    def refused(self, us: float, works: Iterable[tuple[float, float]], tflops: float) -> str | None:
        """Returns the reason why ``us`` (µs) is too short even for the least of ``works``; None if it is possible.

        On an unknown GPU model, whose rates are estimates, no time is too short.

        works: pairs of bytes and FLOP.
        tflops: the rate for the FLOP.
        """
        bytes_, flops = map(min, zip(*works, strict=True))
        limit = self.least_us(bytes_, flops, tflops)
        if us >= MARGIN * limit or self.board.sources["bandwidth_gbs"].startswith("assumed"):
            return None
        name, bandwidth = self.board.name, self.board.bandwidth_gbs
        return (
            f"measured {us:.4g} µs, but {name} needs at least {limit:.4g} µs for its work: {bytes_ / 1e6:.3g} MB at "
            f"{bandwidth:g} GB/s, {flops / 1e9:.3g} GFLOP at {tflops:g} TFLOP/s"
        )

    def refusal(self, us: float, works: Sequence[CountedWork]) -> str | None:
        """Returns the reason why ``us`` (µs) is too short for a launch; None if it is long enough.

        The launch must do at least one of ``works``. If no work is counted, no time is too short.
        """
        counted = [work for work in map(self.counted, works) if work is not None]
        dtypes = {dtype for work in works for dtype in work.dtypes} or {"float32"}
        return self.refused(us, counted, highest_tflops(dtypes, self.board)) if counted else None


@dataclass(frozen=True)
class SpeedLimit:
    """Checks the measured times of one task on one GPU model."""

    task: Task
    board: Board
    policy: Policy

    def refusal(self, workload: str, contestant: Contestant, us: float) -> str | None:
        """Returns the reason why the time ``us`` (µs) of a contestant is impossible; None if the time is possible.

        The limit follows from the smallest of three amounts of work: the work that the task declares, the work of the
        shipped code, and the work of the contestant's code. Work whose addresses depend on data is not counted. If no
        work is counted, no time is impossible. Counting is slow, so work is counted only if ``us`` is too short for the
        declared work.
        """
        case, tflops = self.task.workload(workload), fastest_tflops(self.task, self.board)
        roofline, arrays = Roofline(self.board, self.policy), self.task.arrays(case.dims)
        written = sum(arrays[name].nbytes for name in self.task.outputs)
        declared = roofline.cold(self.task.traffic(case.dims), written), self.task.work(case.dims)
        if roofline.refused(us, [declared], tflops) is None:
            return None
        from tilewright.inspect.work import count  # loads the interpreter

        configuration = contestant.source.configuration if isinstance(contestant.source, Configured) else None
        own = count(contestant.task or self.task, case, self.board, configuration)
        works = [roofline.counted(work) for work in (own, count(self.task, case, self.board))]
        counted = [work for work in works if work is not None]
        reason = roofline.refused(us, [declared, *counted], tflops) if counted else None
        return reason and f"{reason}; if less work is enough, fix: declare it as flops= and bytes_moved= of the task"
