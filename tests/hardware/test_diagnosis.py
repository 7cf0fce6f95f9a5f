"""The resource that limits a launch: made-up machine codes that miss one resource each, and planted kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.hardware.architectures import board
from tilewright.hardware.diagnosis import Diagnosis, diagnose
from tilewright.hardware.executions import Work
from tilewright.inspect.work import classify
from tilewright.records import CodeLoop, MachineCode

H200 = board("H200")
COPY = MachineCode(
    symbol="k", sm=90, registers=32, stack_bytes=0, shared_bytes=0, threads=128, cluster=1, local_loads=0,
    local_stores=0, tensor_path="none", tensor_instructions=0, copies={"LDG.128": 2, "STG.128": 2}, instructions=40,
    code_hash="x", mix={"global load": 2, "global store": 2, "integer": 20, "float32": 16}, load_chain=1,
)  # fmt: skip
"""A copy of 4 KiB a CTA."""
WORK = Work(flops=1e6, bytes=8192.0 * 65536, dtype="bfloat16", written=4096.0 * 65536)
GRID = (65536,)


def of(code: MachineCode, grid: tuple[int, ...] = GRID, work: Work = WORK, **known: float) -> Diagnosis:
    bound = classify(work.flops, work.bytes, work.dtype, H200)
    return diagnose(bound, code, grid, work, H200, **known)


def with_mix(code: MachineCode, **more: int) -> MachineCode:
    return replace(code, mix={**code.mix, **{name.replace("_", " "): count for name, count in more.items()}})


def test_a_copy_has_no_limit_but_the_bandwidth() -> None:
    found = of(COPY, measured_us=125.0)
    assert found.at_the_bound and found.limit.resource == "memory bandwidth"
    assert found.share == pytest.approx(8192 * 65536 / 4.8e6 / 125)
    assert found.rung == "machine code and measured time"


def test_loads_that_the_compiler_made_one_are_no_traffic() -> None:
    found = of(COPY, measured_us=170.0, moved=5 * WORK.bytes)
    assert "traffic" not in [each.resource for each in (found.limit, *found.others)]


def test_a_kernel_as_fast_as_a_copy_is_at_the_bandwidth() -> None:
    """TileGym's softmax of 16384×8192 bfloat16 on an H200: 134.8 µs, 83 % of the speed of light."""
    found, slower = of(COPY, measured_us=134.8), of(COPY, measured_us=145.0)
    assert (
        found.share < 0.85 and found.at_the_bound and "a copy of as many bytes takes about 129" in found.limit.evidence
    )
    assert not slower.at_the_bound
    small = replace(WORK, bytes=WORK.bytes / 16, written=WORK.written / 16)
    assert not of(COPY, (4096,), small, measured_us=12.0).at_the_bound, "the launch takes a large part"


@pytest.mark.parametrize(
    ("resource", "code", "grid", "known"),
    [
        ("issue slots", with_mix(COPY, float32=3000), GRID, {}),
        ("conversions and special functions", with_mix(COPY, special_function=300), GRID, {}),
        ("access path", replace(COPY, copies={"LDG.8": 32, "STG.8": 32}, mix={"global load": 256, "global store": 256}),
         GRID, {}),
        ("dependent loads", replace(COPY, load_chain=60), GRID, {}),
        ("too few blocks", replace(COPY, registers=255), (40,), {}),
        ("last wave", replace(COPY, registers=255), (140,), {}),
        ("traffic", replace(COPY, copies={"LDG.128": 18, "STG.128": 2}), GRID, {"moved": 5 * WORK.bytes}),
        ("residency", replace(with_mix(COPY, float32=700), registers=255, threads=256), GRID, {}),
        ("tensor path", with_mix(COPY, float32=4000), GRID, {"products": 4e12}),
        ("spills", with_mix(replace(COPY, stack_bytes=4096, local_loads=900, local_stores=900),
                            local_load=900, local_store=900), GRID, {}),
    ],
)  # fmt: skip
def test_each_resource_is_named(
    resource: str, code: MachineCode, grid: tuple[int, ...], known: dict[str, float]
) -> None:
    share = grid[0] / GRID[0]
    work = replace(WORK, bytes=WORK.bytes * share, written=WORK.written * share)
    if resource in ("too few blocks", "last wave"):  # long blocks, so that the launch is not the limit
        work = replace(WORK, bytes=WORK.bytes / 8, written=WORK.written / 8)
        loop = CodeLoop(None, {"global load": 16, "float32": 32}, {"LDG.128": 16}, 0.0)
        code = replace(code, loops=(loop,), mix={**code.mix, **loop.mix}, copies=loop.copies)
    if resource == "tensor path":
        work = replace(work, flops=4e12)
    found = of(code, grid, work, **known)
    assert found.limit.resource == resource, [found.limit, *found.others]
    assert found.limit.lost_us > 0 and any(character.isdigit() for character in found.limit.evidence)
    assert "predicted" in found.rung


def test_few_bytes_under_way_are_told_with_littles_law() -> None:
    loop = CodeLoop(None, {"global load": 1, "float32": 4}, {"LDG.128": 1}, 0.0)
    code = replace(COPY, loops=(loop,), mix={"global load": 1, "float32": 4}, copies={"LDG.128": 1})
    found = of(code, (132,), replace(WORK, written=1.0))
    assert found.limit.resource == "bytes in flight"
    assert "1 CTA an SM × 2 KiB = 2 KiB under way, 9% of the 22.3 KiB" in found.limit.evidence


def test_a_measured_time_that_no_estimate_explains_is_unknown() -> None:
    found = of(COPY, measured_us=900.0)
    assert found.limit.resource == "unknown" and "no limit that explains this" in found.limit.evidence


def test_time_that_nothing_explains_is_lost_by_products_without_tensor_instructions() -> None:
    """They read their operands again for each element, which no rate of a unit says."""
    found = of(COPY, products=1e9, measured_us=1000.0)
    assert found.limit.resource == "tensor path" and "1 GFLOP of products without" in found.limit.evidence
    assert found.limit.lost_us > 800 and all(each.resource != "tensor path" for each in found.others)
    assert of(COPY, products=1e9).limit.resource != "tensor path", "a predicted time has nothing that is not explained"


def test_where_no_unit_is_full_too_few_bytes_are_under_way() -> None:
    """By Little's law: at 70 % of the bandwidth, 70 % of what it needs."""
    moving = 8192 * 65536 / H200.achievable_bandwidth() / 1e3
    found = of(COPY, measured_us=moving / 0.7)
    assert found.limit.resource == "bytes in flight" and "15.6 KiB are under way on an SM" in found.limit.evidence
    assert "of 22.3 KiB that bandwidth × latency" in found.limit.evidence
    assert found.limit.lost_us == pytest.approx(moving * (1 / 0.7 - 1))
    assert of(COPY, measured_us=moving / 0.4).limit.resource == "unknown", "most of the time is not explained"


def test_no_estimate_exceeds_the_time_that_was_lost() -> None:
    found = of(with_mix(COPY, float32=3000), measured_us=200.0)
    assert found.limit.resource == "issue slots"
    assert found.limit.lost_us == pytest.approx(200 - 8192 * 65536 / H200.achievable_bandwidth() / 1e3)


def test_code_that_was_not_read_has_no_limit() -> None:
    found = of(replace(COPY, unread="nvdisasm is not installed"), measured_us=900.0)
    assert found.limit.resource == "unknown" and "nvdisasm is not installed" in found.limit.evidence
    found = of(replace(COPY, unread="nvdisasm is not installed"), products=1e9, measured_us=900.0)
    assert found.limit.resource == "unknown", "nobody knows whether it has tensor instructions"
