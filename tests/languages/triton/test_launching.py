"""What the worker needs to launch a Triton kernel through the driver: its program, and the cubin that was stored."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.compile.compile import Compiled, Unit, compile_all, lower, remember
from tilewright.hardware.architectures import default_board
from tilewright.languages.base import Lowered
from tilewright.languages.cubins import folder
from tilewright.languages.triton import LANGUAGE
from tilewright.race.rules import Policy
from tilewright.records import Built
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.worker.messages import PackedNumber, Pointer, Program, RaceField, decode, encode
from tilewright.worker.programs import program_of

pytest.importorskip("triton")

EXAMPLE = Path(__file__).parents[3] / "examples" / "triton" / "softmax.py"


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(str(EXAMPLE))


@pytest.fixture(scope="module", params=["ptx", "tileir"])
def compiled(request: pytest.FixtureRequest, task: Task) -> Compiled:
    config = task.space.shipped.replace(route=request.param)
    return compile_all(task, [Unit(task.workload("odd"), config, default_board("sm_90"))])[0]


def lowered_again(task: Task, compiled: Compiled) -> Lowered:
    lowered = lower(task, compiled.unit)
    assert isinstance(lowered, tuple)
    return lowered[1]


def test_the_program_has_addresses_and_packed_numbers(task: Task, compiled: Compiled) -> None:
    program = program_of(task, compiled)
    number = PackedNumber(struct.pack("<i", 3000).hex())
    assert program.parameters == (Pointer("out"), Pointer("x"), number, number)
    assert isinstance(compiled.built, Built) and program.facts == compiled.built.facts and program.grid == (1024,)
    if compiled.unit.configuration["route"] == "ptx":  # a pointer each for global and profile scratch
        assert (program.facts.threads, len(program.facts.scratch)) == (128, 2)
    else:
        assert program.facts.threads is None and program.facts.scratch == ()


def test_a_program_keeps_its_facts_on_the_way_to_the_worker(task: Task, compiled: Compiled) -> None:
    program: Program = program_of(task, compiled)
    step = RaceField((program,), ((1,),), None, Policy())
    assert decode(encode(step)) == step


def test_a_stored_cubin_is_found_by_its_code(task: Task, compiled: Compiled) -> None:
    lowered = lowered_again(task, compiled)
    assert LANGUAGE.found(lowered) is None
    assert remember(task, [compiled]) == 1
    found = LANGUAGE.found(lowered)
    assert isinstance(compiled.built, Built) and found is not None
    assert (found.cubin, found.symbol, found.facts) == (
        compiled.built.cubin,
        compiled.built.symbol,
        compiled.built.facts,
    )
    assert LANGUAGE.found(replace(lowered, code=lowered.code + b" ")) is None
    next(folder().glob("*.json")).write_text("{}")
    assert LANGUAGE.found(lowered) is None
