"""Kernels made at random (`programs`) give what NumPy gives, whichever way their blocks run together."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from tileir.programs import LENGTH, OUTPUTS, ROW, SCATTERED, SIZE, Program, programs

from tilewright.languages.cutile.cutile import CuTile
from tilewright.records import Configuration, Failed
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec
from tilewright.tileir.read.reader import read_bytecode
from tilewright.tileir.read.tree import TileModule
from tilewright.tileir.run import interpreter
from tilewright.tileir.run.counting import Counts
from tilewright.tileir.run.interpreter import Executed
from tilewright.tileir.run.memory import Memory
from tilewright.tileir.run.registry import NeedsData

GRID = (3, 2)
BLOCKS = GRID[0] * GRID[1]
NAMES = {"int32": np.int32, "float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
EXAMPLES = 12


def drawn() -> dict[str, Any]:
    """Inputs, and outputs of zeros."""
    rng = np.random.default_rng(7)
    x = rng.integers(-20, 60, LENGTH).astype(np.int32)
    x[[5, 20]] = 2**31 - 1, -(2**31)
    return {
        "x": x,
        "f": (rng.integers(-64, 64, LENGTH) / 8).astype(np.float32),
        "h": (rng.integers(-64, 64, LENGTH) / 8).astype(ml_dtypes.bfloat16),
        "oi": np.zeros((BLOCKS, ROW), np.int32),
        "of": np.zeros((BLOCKS, 2 * SIZE), np.float32),
        "oh": np.zeros((BLOCKS, 2 * SIZE), ml_dtypes.bfloat16),
        "sc": np.zeros((BLOCKS, SCATTERED), np.int32),
    }


def specification(name: str, array: Any) -> ArraySpec:
    return ArraySpec(name, array.shape, next(n for n, dtype in NAMES.items() if array.dtype == dtype))


def lowered(program: Program, directory: Path, n: int) -> tuple[TileModule, list[Any]]:
    """The module, and the arguments of its entry with names of arrays for addresses."""
    file = directory / "kernel.py"
    file.write_text(program.source)
    found = importlib.util.spec_from_file_location("generated_kernel", file)
    assert found and found.loader
    made = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)
    specs = tuple(specification(name, array) for name, array in drawn().items())
    launch = Launch(made.kernel, GRID, (*specs, n))
    code = CuTile().lower(launch, {}, Configuration({}), "sm_90")
    assert not isinstance(code, Failed), code
    arguments = [one.name if isinstance(one, ArraySpec) else one for one in CuTile().arguments(launch)]
    return read_bytecode(code.code), arguments


def interpreted(module: TileModule, arguments: list[Any], **options: Any) -> tuple[dict[str, Any], Executed]:
    arrays, memory = drawn(), Memory()
    places = {name: memory.allocate(name, array, written=True).address for name, array in arrays.items()}
    bound = [places[one] if isinstance(one, str) else one for one in arguments]
    return arrays, interpreter.run(module, bound, GRID, memory, **options)


def assert_equal(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Bit for bit, but for NaN."""
    for name in OUTPUTS:
        nan = wanted[name] != wanted[name]
        bits = f"u{wanted[name].dtype.itemsize}"
        assert np.array_equal(got[name] != got[name], nan), name
        assert np.array_equal(got[name].view(bits)[~nan], wanted[name].view(bits)[~nan]), name


def work(counts: Counts) -> tuple[Any, ...]:
    """All that is counted, whatever ran first."""
    rows = sorted(
        (one.op.text_line, one.op.name, one.executed, one.iterations, one.loaded_bytes, one.stored_bytes)
        for one in counts.ops
    )
    return rows, counts.loaded_runs.tolist(), counts.stored_runs.tolist()


# No shrinking: it would take longer than a test may.
@settings(max_examples=EXAMPLES, phases=[Phase.generate], derandomize=True, deadline=None, database=None,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(program=programs())
def test_programs_give_what_numpy_gives(program: Program, tmp_path_factory: pytest.TempPathFactory) -> None:
    note(program.source)
    wanted = drawn()
    program.run(wanted, 5, GRID)
    module, arguments = lowered(program, tmp_path_factory.mktemp("generated"), 5)
    got, whole = interpreted(module, arguments, seed=None)
    assert not whole.findings
    assert_equal(got, wanted)

    for seed in (1, 2):
        got, again = interpreted(module, arguments, seed=seed)
        assert_equal(got, wanted)
        assert work(again.counts) == work(whole.counts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "BATCH_ELEMENTS", 1)
        got, alone = interpreted(module, arguments, seed=3)
    assert_equal(got, wanted)
    assert work(alone.counts) == work(whole.counts)

    try:
        dry = interpreted(module, arguments, dry=True)[1]
    except NeedsData:
        assert not program.decided
    else:
        assert work(dry.counts) == work(whole.counts)
