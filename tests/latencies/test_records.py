"""Records as TileGym's tests leave them (F-3, X-01), the line of P-17, and what is no record."""

from __future__ import annotations

import ast
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.latencies.records import NUMBERS, UNNAMED, Malformed, backend_of, line_of, read

TEST = "tests/ops/test_matmul.py::Test_Matmul::test_perf[cutile-1024]"


def numbers(median: float = 0.0125, **changes: Any) -> dict[str, Any]:
    """One direction, as TileGym's `benchmark_fn_cupti` returns it."""
    return {
        "mean": median * 1.01, "std": median * 0.02, "rel_std": 2.0, "median": median, "min": median * 0.9,
        "max": median * 1.3, "nrep": 57, "peak_mem_mb": 96, "kernel_name": "matmul_kernel",
        "kernel_times": [{"name": "matmul_kernel", "self_time_us": 12.5}], **changes,
    }  # fmt: skip


def problem(value: Any) -> str:
    records, problems = read(TEST, [("benchmark", value)])
    assert not records
    (only,) = problems
    assert only.test == TEST
    assert "\n" not in str(only)
    return only.reason


def test_keyed_by_backend() -> None:
    given_ = {"cutile": {"forward": numbers(0.01), "backward": numbers(0.03)}, "cutile_rs": {"forward": numbers(0.02)}}
    records, problems = read(TEST, [("other", 3), ("benchmark", given_)])
    assert not problems
    assert [(r.backend, d, one.median) for r in records for d, one in r.directions.items()] == [
        ("cutile", "forward", 0.01), ("cutile", "backward", 0.03), ("cutile_rs", "forward", 0.02),
    ]  # fmt: skip
    assert records[0].directions["forward"].extra == {"kernel_name": "matmul_kernel"}


@pytest.mark.parametrize(
    ("test", "backend"),
    [
        ("t.py::test_perf[cutile-1024]", "cutile"),
        ("t.py::test_perf[float16-cutile_rs-1024]", "cutile_rs"),
        ("t.py::test_perf[my_cutile-1]", UNNAMED),
        ("t.py::test_cutile", UNNAMED),
    ],
)
def test_a_plain_record_takes_the_backend_of_its_test(test: str, backend: str) -> None:
    """X-02: the whole word, so cutile_rs is not cutile."""
    assert backend_of(test) == backend
    records, problems = read(test, [("benchmark", {"forward": numbers()})])
    assert (records[0].backend, problems) == (backend, ())


def test_the_line_of_p17() -> None:
    (record,), _ = read(TEST, [("benchmark", {"cutile": {"forward": numbers(0.0123456789)}})])
    text = line_of(record)
    assert text.startswith("Cutile: {")
    assert text.endswith("} ms")
    assert "\n" not in text
    shown = ast.literal_eval(text.removeprefix("Cutile: ").removesuffix(" ms"))
    assert tuple(shown) == ("forward",)
    assert tuple(shown["forward"])[:8] == NUMBERS
    assert shown["forward"]["median"] == 0.0123457
    assert shown["forward"]["rel_std"] == 2.0


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (3, "an int, not a mapping"),
        (None, "NoneType"),
        ({}, "an empty mapping"),
        (numbers(), "names no direction"),
        ({"cutile": 3}, "has no times for cutile"),
        ({"cutile": {}}, "has no times for cutile"),
        ({"cutile": {"forward": {}}}, "cutile forward: mean, std, rel_std"),
        ({"forward": {"median": 1.0}}, "mean, std, rel_std, min, max, nrep, peak_mem_mb missing"),
        ({"forward": numbers(min="0.1")}, "min is a str, not a number"),
        ({"forward": numbers(nrep=True)}, "nrep is a bool, not a number"),
        ({"forward": numbers(nrep=0)}, "nrep is 0"),
        ({"forward": numbers(nrep=math.inf)}, "nrep is inf"),
        ({"forward": numbers(mean=math.nan)}, "mean is nan"),
        ({"forward": numbers(min=0.0)}, "min is 0.0"),
        ({"forward": numbers(std=math.nan)}, "std is nan"),
        ({"forward": numbers(rel_std=-1.0)}, "rel_std is -1.0"),
        ({"forward": numbers(max=0.001)}, "median is not between"),
    ],
)
def test_what_is_no_record_is_one_line(value: Any, reason: str) -> None:
    assert reason in problem(value)


def test_one_sample_has_no_deviation() -> None:
    """torch's std of one sample is NaN."""
    records, problems = read(TEST, [("benchmark", {"forward": numbers(nrep=1, std=math.nan, rel_std=math.nan)})])
    assert len(records) == 1
    assert not problems


def test_a_second_record_replaces_the_first_and_is_said() -> None:
    twice = [("benchmark", {"cutile": {"forward": numbers(m)}}) for m in (0.01, 0.02)]
    (record,), problems = read(TEST, twice)
    assert record.directions["forward"].median == 0.02
    assert [one.reason for one in problems] == ["recorded cutile twice; the last one counts"]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*NUMBERS, "forward", "cutile", "x"]) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(ANYTHING)
def test_nothing_makes_it_crash(value: Any) -> None:
    records, problems = read(TEST, [("benchmark", value)])
    assert records or problems
    assert all(isinstance(one, Malformed) for one in problems)
