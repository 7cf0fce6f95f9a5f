"""How a compiled configuration reaches the worker: as a program, except where only its language knows the launch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import cuda.tile as ct
import numpy as np
import pytest

from tilewright.compile.compile import Compiled, Unit, compile_all, lower
from tilewright.hardware.architectures import default_board
from tilewright.languages.base import Language
from tilewright.languages.cutile.cutile import CuTile
from tilewright.race.rules import Policy
from tilewright.records import Built, Configuration, Failed
from tilewright.task.loading import load_task
from tilewright.task.task import Launch, Task
from tilewright.task.tensors import ArraySpec
from tilewright.worker import programs
from tilewright.worker.messages import Configured, PackedNumber, Pointer, Program

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("*.py")) + sorted((EXAMPLES / "naive").glob("*.py"))


def compiled(task: Task) -> Compiled:
    workload = min(task.selected(None), key=lambda one: task.work(one.dims))
    (one,) = compile_all(task, [Unit(workload, task.space.shipped, default_board("sm_90"))], seconds=60)
    return one


@pytest.fixture(scope="module")
def rms_norm() -> tuple[Task, Compiled]:
    task = load_task(str(EXAMPLES / "rms_norm.py"))
    return task, compiled(task)


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    seen: list[Any] = []
    monkeypatch.setattr(CuTile, "remember", lambda self, built: (seen.extend(built), len(built))[1])
    return seen


def test_a_configuration_is_launched_as_a_program(rms_norm: tuple[Task, Compiled], remembered: list[Any]) -> None:
    """So the worker runs no front end and no launch function for it."""
    task, one = rms_norm
    source = programs.source_of(task, one, Policy())
    assert isinstance(source, Program) and source == programs.program_of(task, one)
    assert [each.tensor for each in source.parameters if isinstance(each, Pointer)] == ["x", "weight", "y"]
    assert not remembered, "nobody looks for the cubin in cuTile's cache"


def test_an_eager_launch_is_the_languages_own(rms_norm: tuple[Task, Compiled], remembered: list[Any]) -> None:
    """Its host time counts. The launch finds the cubin, so that the worker compiles nothing."""
    task, one = rms_norm
    assert programs.source_of(task, one, Policy(launch="eager")) == Configured(one.unit.configuration)
    assert remembered == [one.built]


def test_arrays_that_may_share_memory_get_the_languages_own_launch(remembered: list[Any]) -> None:
    """Which of them share memory is part of the signature that cuda-tile compiles for."""
    task = load_task(str(EXAMPLES / "rope.py"))
    one = compiled(task)
    assert any(output.in_place_of for output in task.outputs.values())
    assert programs.source_of(task, one, Policy()) == Configured(one.unit.configuration)
    assert remembered == [one.built]


def test_a_launch_that_only_its_language_knows(
    rms_norm: tuple[Task, Compiled], remembered: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    task, one = rms_norm

    def unknown(task: Task, unit: Unit) -> Any:
        language, lowered, launch = lower(task, unit)  # type: ignore[misc]
        return language, replace(lowered, code=b"// text of another compiler", parameters=None), launch

    monkeypatch.setattr(programs, "lower", unknown)
    assert programs.source_of(task, one, Policy()) == Configured(one.unit.configuration)


# The parameters' bytes, without reading the code


@ct.kernel
def every_kind(
    x, many: list, wide: ct.IndexedWithInt64, flag, small, large: ct.ScalarInt64, real, TILE: ct.Constant[int]
):
    value = ct.load(x, (0, 0), (1, TILE)).astype(ct.float32) + ct.load(many[0], (0, 0), (1, TILE)).astype(ct.float32)
    number = ct.where(flag, real, 1.0) + small + large
    ct.store(wide, (0, 0), (value + number).astype(wide.dtype))


def same_parameters(language: Language, launch: Launch, lowered: Any) -> Program:
    """The program of a launch, which is the same if the parameters are read from the code."""
    built = language.assemble(lowered, 60)
    assert isinstance(built, Built), built
    named, read = (
        programs.program("any", language.arguments(launch), launch.grid, each, built)
        for each in (lowered, replace(lowered, parameters=None))
    )
    assert lowered.parameters is not None and named == read
    return named


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_the_front_end_names_the_parameters_that_the_code_has(file: Path) -> None:
    if file.stem == "cute_gemm":
        pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed: pip install 'tilewright[cutedsl]'")
    task = load_task(str(file))
    workload = min(task.selected(None), key=lambda one: task.work(one.dims))
    lowered = lower(task, Unit(workload, task.space.shipped, default_board("sm_90")))
    assert not isinstance(lowered, Failed), lowered
    if lowered[0].name == "cutile":
        same_parameters(lowered[0], lowered[2], lowered[1])


@pytest.mark.parametrize("flag", [False, True])
def test_parameters_of_every_kind(flag: bool) -> None:
    shape = (64, 128)
    arrays = [ArraySpec(name, shape, dtype) for name, dtype in (("x", "bfloat16"), ("a", "float8_e4m3fn"))]
    args = (arrays[0], [arrays[1]] * 3, ArraySpec("wide", shape, "float32"), flag, -7, 1 << 40, -2.5, 16)
    launch = Launch(every_kind, (1,), args)
    lowered = CuTile().lower(launch, {}, Configuration.of({}), "sm_90")
    assert not isinstance(lowered, Failed), lowered
    parameters = same_parameters(CuTile(), launch, lowered).parameters
    assert [programs.size_of(each) for each in parameters[5:]] == [8, 4, 8, 8, 8, 8, 8, 1, 4, 8, 4]
    numbers = [bytes.fromhex(each.data) for each in parameters[-4:] if isinstance(each, PackedNumber)]
    assert numbers[0] == bytes([flag]) and numbers[2] == (1 << 40).to_bytes(8, "little")
    assert np.frombuffer(numbers[3], np.float32) == -2.5
