"""The split of a GPU's time, against arithmetic on single nanoseconds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.profile.made_traces import MadeTrace

from tilewright.profile import intervals
from tilewright.profile.profile import profile
from tilewright.profile.split import split
from tilewright.profile.trace import read

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=8)


def of(spans: list[tuple[int, int]]) -> intervals.Times:
    starts = np.array([start for start, _ in spans], np.int64)
    return intervals.union(starts, starts + np.array([length for _, length in spans], np.int64))


def single(spans: list[tuple[int, int]]) -> set[int]:
    return {at for start, length in spans for at in range(start, start + length)}


def listed(times: intervals.Times) -> set[int]:
    return {at for start, end in times.tolist() for at in range(start, end)}


@given(SPANS, SPANS)
def test_arithmetic_of_sets(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    a, b = of(one), of(other)
    assert listed(a) == single(one)
    assert listed(intervals.both(a, b)) == single(one) | single(other)
    assert listed(intervals.without(a, b)) == single(one) - single(other)
    assert listed(intervals.common(a, b)) == single(one) & single(other)
    assert listed(intervals.gaps(a, 0, 60)) == set(range(60)) - single(one)
    for times in (a, intervals.both(a, b), intervals.without(a, b)):
        assert intervals.total(times) == len(listed(times)), "disjoint"
        assert (times[1:, 0] > times[:-1, 1]).all() or not len(times) or (times[:, 1] > times[:, 0]).all()


KINDS = {"compute": "gemm", "communication": "ncclDevKernel_AllReduce", "copy": ""}
ACTIVITIES = st.lists(
    st.tuples(st.sampled_from(sorted(KINDS)), st.integers(0, 60), st.integers(1, 15), st.integers(-20, 60)),
    min_size=1, max_size=10,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(ACTIVITIES)
def test_split_and_gaps_against_single_nanoseconds(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[str, int, int, int]]
) -> None:
    made = MadeTrace()
    for number, (kind, at, length, launched) in enumerate(drawn):
        called = made.call("cudaLaunchKernel", (launched + 20) / 1000, 0.001)
        if kind == "copy":
            made.copy("Memcpy DtoD (Device -> Device)", (at + 20) / 1000, length / 1000, correlation=called)
        else:
            made.kernel(f"{KINDS[kind]}_{number}", (at + 20) / 1000, length / 1000, correlation=called)
    path = made.write(tmp_path_factory.mktemp("made") / "trace.json")

    running: dict[str, set[int]] = {kind: set() for kind in KINDS}
    for kind, at, length, _ in drawn:
        running[kind] |= set(range(at, at + length))
    start, end = min(at for _, at, _, _ in drawn), max(at + length for _, at, length, _ in drawn)
    busy = set().union(*running.values())
    idle = set(range(start, end)) - busy
    expected = {
        "compute": running["compute"],
        "exposed communication": running["communication"] - running["compute"],
        "exposed copy": running["copy"] - running["compute"] - running["communication"],
        "idle": idle,
        "host late": late(drawn, idle),
    }
    (gpu,) = profile(path).gpus
    assert gpu.value("time") == pytest.approx((end - start) / 1e6)
    for name, times in expected.items():
        assert gpu.value(name) == pytest.approx(len(times) / (end - start)), name
    parts = split(read(path).activities)
    each = [parts.compute, parts.communication, parts.copy, parts.idle]
    assert sum(map(intervals.total, each)) == parts.span, "the parts add up to the whole"


def late(drawn: list[tuple[str, int, int, int]], idle: set[int]) -> set[int]:
    """The idle nanoseconds of each gap whose next activity was launched after the gap began.

    Of several activities that start together, the first of the trace counts.
    """
    found: set[int] = set()
    for begin in (at for at in idle if at - 1 not in idle):
        end = next(at for at in range(begin, max(idle) + 2) if at not in idle)
        launched = next(launched for _, at, _, launched in drawn if at == end)
        found |= set(range(begin, end)) if launched > begin else set()
    return found
