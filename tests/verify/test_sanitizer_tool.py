"""compute-sanitizer's reports, in the form that its manual documents, and a stand-in for the program."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.task.loading import load_task
from tilewright.tileir.read.tree import Location
from tilewright.tileir.watch.findings import MISALIGNED, OUT_OF_BOUNDS, RACE, UNINITIALISED
from tilewright.verify import sanitizer_tool
from tilewright.verify.images import images_for
from tilewright.verify.sanitizer_tool import ABSENT, TOOLS, command, find, read, sanitize
from tilewright.worker.messages import RunOnce, decode

MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at beyond_Kt1_A1f32_1t1_p16+0x1f0 in /home/me/ops.py:21
=========     by thread (5,0,0) in block (3,0,0)
=========     Address 0x7f0000001010 is out of bounds
=========     and is 17 bytes after the nearest allocation at 0x7f0000000000 of size 4,096 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernelEx [0x2c3f2f] in libcuda.so.1
=========         Host Frame: /usr/bin/python3.12:71 [0x1]
=========
========= Invalid __global__ write of size 4 bytes
=========     at beyond_Kt1_A1f32_1t1_p16+0x1f0 in /home/me/ops.py:21
=========     by thread (6,0,0) in block (3,0,0)
=========     Address 0x7f0000001014 is out of bounds
=========
========= Invalid __global__ read of size 16 bytes
=========     at beyond_Kt1_A1f32_1t1_p16+0x80
=========     by thread (0,0,0) in block (0,1,2)
=========     Address 0x7f0000002002 is misaligned
=========
========= ERROR SUMMARY: 3 errors
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at turn_Kt1(float *)+0xf0 in /home/me/ops.py:12
=========     and Read access at turn_Kt1(float *)+0xd0 in /home/me/ops.py:13 [32 hazards]
=========     and Write access at turn_Kt1(float *)+0xf0 in /home/me/ops.py:12 [4 hazards]
=========
========= Error: Potential RAW hazard detected at __shared__ 0x10 in block (2,0,0) :
=========     Write Thread (0,0,0) at 0x150 in /home/me/ops.py:12:turn
=========     Read Thread (1,0,0) at 0x170 in /home/me/ops.py:13:turn
=========
========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)
"""
INITCHECK = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at 0x70 in adds_Kt1_A1f32(float *)
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f00000020fc
=========
========= ERROR SUMMARY: 1 error
"""
PLACES = {"x": (0x7F0000000000, 0x1000), "y": (0x7F0000002000, 0x200)}


def test_memcheck_names_kind_place_block_and_tensor() -> None:
    """trust.md 9."""
    found = read("memcheck", MEMCHECK, PLACES)
    assert found.reason is None
    write, other = found.findings
    assert (write.kind, write.block, write.tensor, write.count) == (OUT_OF_BOUNDS, (3, 0, 0), "x", 2)
    assert write.location == Location("/home/me/ops.py", 21)
    assert write.message == (
        "write of 4 bytes of global memory by beyond_Kt1_A1f32_1t1_p16, 16 bytes after 'x' (memcheck)"
    )
    assert (other.kind, other.block, other.tensor, other.location) == (MISALIGNED, (0, 1, 2), "y", None)
    assert "at byte 2 of 'y'" in other.message


def test_racecheck_names_both_accesses() -> None:
    """trust.md 11."""
    found = read("racecheck", RACECHECK)
    assert [one.kind for one in found.findings] == [RACE, RACE] or found.findings[0].count == 2
    assert found.findings[0].location == Location("/home/me/ops.py", 12)
    assert found.findings[0].message == "write and read of shared memory by turn_Kt1 (racecheck)"


def test_initcheck_names_the_kernel() -> None:
    (found,) = read("initcheck", INITCHECK, PLACES).findings
    assert (found.kind, found.tensor, found.block) == (UNINITIALISED, "y", (1, 0, 0))
    assert "by adds_Kt1_A1f32" in found.message and "at byte 252 of 'y'" in found.message


@pytest.mark.parametrize(
    "log",
    ["========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n",
     "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"],
)  # fmt: skip
def test_a_clean_report_has_no_findings(log: str) -> None:
    found = read("memcheck", log)
    assert (found.findings, found.reason) == ((), None)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", "no summary: nothing at all"),
        ("========= Error: Device not supported. Please refer to the manual\n", "Device not supported"),
        ("========= COMPUTE-SANITIZER\n========= Something new\n========= ERROR SUMMARY: 2 errors\n",
         "counts 2 errors of unknown form: Something new"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_no_clean_bill(log: str, words: str) -> None:
    """trust.md 13."""
    found = read("memcheck", log)
    assert found.findings == () and found.reason is not None and words in found.reason


TASK = """
import tilewright as tw

task = tw.Task(
    name="double", tensors={"x": tw.Tensor(("N",), "float32"), "y": tw.Output(("N",), "float32")},
    reference=lambda x: 2 * x, launch=lambda x: None, flops=lambda N: N,
    space=tw.Space(constants={"TILE": (16,)}, shipped={"TILE": 16}), workloads={"only": {"N": 9}},
)
"""
STAND_IN = """#!/bin/sh
# --tool NAME --log-file FILE … python -m tilewright.worker.process.once REQUEST
for last; do :; done
folder=$(dirname "$last")
[ "$2" = racecheck ] && { echo "could not start: no device" >&2; exit 3; }
[ "$2" = initcheck ] && exec sleep 3600
echo '{"x": [4096, 36], "y": [8192, 36]}' > "$folder/addresses.json"
cp "$last" "$KEEP"
cat > "$4" <<END
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at k+0x10
=========     Address 0x2024 is out of bounds
========= ERROR SUMMARY: 1 error
END
"""


@pytest.fixture
def case(tmp_path: Path) -> tuple[Any, ...]:
    (tmp_path / "ops.py").write_text(TASK)
    task = load_task(str(tmp_path / "ops.py"))
    images = images_for(task, {"N": 9}, {"x": np.ones(9, np.float32)}, "row-major", 0xFF)
    return task, task.space.shipped, {"N": 9}, images


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "compute-sanitizer"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("KEEP", str(tmp_path / "kept.json"))
    return program


def test_where_it_is_not_installed_every_tool_says_so(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer_tool, "find", lambda: None)
    assert [(one.tool, one.reason) for one in sanitize(*case)] == [(tool, ABSENT) for tool in TOOLS]


def test_a_case_is_run_under_each_tool(case: Any, stand_in: Path, tmp_path: Path) -> None:
    assert find() == stand_in
    before = case[3]["y"].raw.copy()
    memory, race, init = sanitize(*case, seconds=4)
    assert (memory.reason, race.findings, init.findings) == (None, (), ())
    assert memory.findings[0].message == "read of 4 bytes of global memory by k, 0 bytes after 'y' (memcheck)"
    assert race.reason == "under racecheck the case ended before its launch: could not start: no device"
    assert init.reason and init.reason.startswith("compute-sanitizer did not end: it used 0")
    assert np.array_equal(case[3]["y"].raw, before)
    request = decode((tmp_path / "kept.json").read_text())
    assert isinstance(request, RunOnce)
    assert (request.images.exact, request.images.fresh, request.images.launches) == (True, ("y",), 1)
    assert request.task.endswith("ops.py:double")


def test_the_toolkit_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "compute-sanitizer").touch(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    assert find() == tmp_path / "bin" / "compute-sanitizer"


def test_the_options_are_those_of_the_manual(tmp_path: Path) -> None:
    line = command(Path("/cs"), "memcheck", tmp_path)
    assert line[:3] == ["/cs", "--tool", "memcheck"]
    assert line[-4:] == [line[-4], "-m", "tilewright.worker.process.once", str(tmp_path / "request.json")]
    assert "--report-api-errors" in line and "--report-api-errors" not in command(Path("/cs"), "initcheck", tmp_path)
