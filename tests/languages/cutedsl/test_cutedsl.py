"""CuTe DSL keeps the contract of languages, and says in one line what is wrong with a launch."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright.compile.compile import Unit, compile_all, remember
from tilewright.hardware.architectures import default_board
from tilewright.inspect.compare import compare, versions
from tilewright.languages.base import Lowered
from tilewright.languages.cutedsl import LANGUAGE
from tilewright.records import Built, Configuration, Failed, MachineCode
from tilewright.task.loading import load_task
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec
from tilewright.testing.languages import LanguageContract
from tilewright.verify.check import check

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed: pip install 'tilewright[cutedsl]'")

from tests.languages.cutedsl import kernels

EXAMPLE = Path(__file__).parents[3] / "examples" / "cute_gemm.py"
NONE = Configuration.of({})
TENSORS = tuple(ArraySpec(name, (1000,), "float32") for name in ("a", "b", "out"))

UNKNOWN = tuple(replace(each, dtype="float8_e9") for each in TENSORS)


def launch(kernel: Any = kernels.add, grid: tuple[int, ...] = (8,), args: tuple[Any, ...] = (*TENSORS, 2.0)) -> Launch:
    return Launch(kernel, grid, args)


class TestCuteDsl(LanguageContract):
    language = LANGUAGE

    def launch(self) -> Launch:
        return launch()


@pytest.mark.parametrize(
    ("given", "arch", "reason"),
    [
        (launch(grid=(7,)), "sm_90", "the task's grid is (7, 1, 1), but the host function launches (8, 1, 1) CTAs in "
         "clusters of (1, 1, 1); fix: grid=(8, 1, 1), which counts clusters"),
        (launch(kernels.added), "sm_90", "'added' is a device function (@cute.kernel); fix: launch the @cute.jit"),
        (launch(kernels.add_twice), "sm_90", "the host function launches 2 kernels; fix: launch exactly one, always"),
        (launch(kernels.add_in_a_loop), "sm_90", "launches a kernel in a loop or in a branch; fix: launch exactly one"),
        (launch(kernels.no_stream), "sm_90", "fix: pass all but the last parameter, which is `stream: CUstream`"),
        (launch(args=TENSORS), "sm_90", "the launch passes 3; fix: pass all but the last parameter"),
        (launch(args=(*TENSORS, [2.0])), "sm_90", "the launch passes a list, or another value that may change"),
        (launch(args=(*UNKNOWN, 2.0)), "sm_90", "CuTe DSL has no type for float8_e9; known: bool, bfloat16"),
        (launch(kernels.wrong), "sm_90", "kernels.py:44: NameError in `wrong`: name 'misspelled' is not defined"),
        (launch(), "sm_110", "CuTe DSL does not compile for sm_110; known: sm_80, sm_86"),
    ],
)  # fmt: skip
def test_a_wrong_launch_is_one_line(given: Launch, arch: str, reason: str) -> None:
    failed = LANGUAGE.lower(given, {}, NONE, arch)
    assert isinstance(failed, Failed) and reason in failed.reason and "\n" not in failed.reason
    assert isinstance(LANGUAGE.lower(launch(), {}, NONE, "sm_90"), Lowered), "the next launch is traced as before"


def test_many_threads_trace_the_same_code() -> None:
    """CuTe DSL itself ends the process when two threads trace at a time."""
    sizes = [ArraySpec("a", (size,), "float32") for size in (128, 256, 384, 512)]

    def traced(size: ArraySpec) -> Lowered | Failed:
        return LANGUAGE.lower(launch(grid=(size.shape[0] // 128,), args=(size, size, size, 3.0)), {}, NONE, "sm_90")

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(traced, sizes * 4))
    codes = {each.code for each in made if isinstance(each, Lowered)}
    assert len(codes) == len(sizes) and len(made) == 16 and all(isinstance(each, Lowered) for each in made)


def test_the_values_of_arguments_are_told_apart_by_type() -> None:
    codes = [LANGUAGE.lower(launch(args=(*TENSORS, value)), {}, NONE, "sm_90") for value in (1, 1.0, True)]
    assert len({each.code for each in codes if isinstance(each, Lowered)}) > 1


def test_the_cubin_is_that_of_cute_compile(tmp_path: Path) -> None:
    """The package's own entry compiles in one step. It is asked in a process of its own."""
    script = f"""
import sys; sys.path[:0] = {[str(EXAMPLE.parents[1])]!r}
import cutlass, cutlass.cute as cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
from tests.languages.cutedsl import kernels
tensors = [make_fake_tensor(cutlass.Float32, (1000,), (1,), assumed_align=16) for _ in range(3)]
options = "--gpu-arch sm_90a --keep-cubin --dump-dir ."
made = cute.compile(kernels.add, *tensors, 2.0, make_fake_stream(), options=options)
open("cubin", "wb").write(made.artifacts.CUBIN)
"""
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    lowered = LANGUAGE.lower(launch(), {}, NONE, "sm_90")
    assert isinstance(lowered, Lowered)
    built = LANGUAGE.assemble(lowered, 60)
    assert isinstance(built, Built) and built.cubin == (tmp_path / "cubin").read_bytes()


def test_hints_are_options_of_the_compiler() -> None:
    lowered = [LANGUAGE.lower(launch(), hints, NONE, "sm_90") for hints in ({}, {"maxnreg": 24}, {"opt_level": 0})]
    assert len({each.identity for each in lowered if isinstance(each, Lowered)}) == 3
    built = [LANGUAGE.assemble(each, 60) for each in lowered if isinstance(each, Lowered)]
    assert all(isinstance(each, Built) for each in built)
    assert len({each.cubin for each in built if isinstance(each, Built)}) > 1


def test_a_stored_cubin_keeps_its_host_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    task, board = load_task(str(EXAMPLE)), default_board("sm_90")
    unit = Unit(task.workload("odd"), task.space.shipped, board)
    compiled = compile_all(task, [unit])
    built = compiled[0].built
    given = task.launched(unit.configuration, unit.workload.dims, task.arrays(unit.workload.dims), board)
    lowered = LANGUAGE.lower(given, {}, unit.configuration, "sm_90")
    assert isinstance(built, Built) and isinstance(lowered, Lowered) and LANGUAGE.found(lowered) is None
    assert remember(task, compiled) == 1
    found = LANGUAGE.found(lowered)
    assert found is not None and found.files == built.files and found.facts == built.facts
    assert "object" in found.files and found.cubin == built.cubin


def test_a_check_without_a_gpu_is_unverified() -> None:
    (verdict,) = check(str(EXAMPLE), engine="interpreter", quick=True, workloads="odd")
    assert verdict.verdict == "unverified" and "CuTe DSL kernels run on a GPU only" in verdict.reason


def test_two_versions_are_compared_by_machine_code() -> None:
    task = load_task(str(EXAMPLE))
    sides = versions((str(EXAMPLE),) * 2, (task, task), (None, "SCHEDULE=pingpong,TILE_N=128"), "odd")
    result = compare(*sides, default_board("sm_90"))
    assert result.tile_ir == Failed("tool", "CuTe DSL kernels run on a GPU only (they have no Tile IR)")
    assert isinstance(result.code_before, MachineCode) and result.same_code is False and not result.identical
    same = compare(sides[0], sides[0], default_board("sm_90"))
    assert isinstance(same.tile_ir, Failed) and same.identical
    assert same.to_json()["tile_ir"] == {"failed": {"stage": "tool", "reason": same.tile_ir.reason}}
