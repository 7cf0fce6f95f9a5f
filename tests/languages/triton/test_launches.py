"""Our launches are those of Triton's own launcher, byte by byte: on a driver that records, without a GPU.

Triton's launcher is the installed one, compiled from its own C source. Ours runs the worker's code with cuda-bindings.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
from tests.languages.triton import launched_kernels, triton_launches

from tilewright.errors import TaskError, ToolFailed
from tilewright.languages.base import Lowered
from tilewright.languages.triton import LANGUAGE
from tilewright.machine_code import elf
from tilewright.records import Built, Configuration, Failed
from tilewright.task.task import Launch
from tilewright.worker.messages import PackedNumber, TensorMap
from tilewright.worker.programs import program, size_of

CASES = launched_kernels.CASES
RIGHT_DRIVER, WRONG_DRIVER = 13020, 13000
"""Versions above and below the one that `tensor_maps` mends maps for, as Triton 3.9 does and 3.6 does not."""
SHARED_BYTES = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""
needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="Triton's launcher needs a C compiler")
needs_bindings = pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None
    or importlib.util.find_spec("cuda.bindings") is None
    or importlib.util.find_spec("torch") is None,
    reason="our launcher needs cuda-bindings and torch",
)
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Triton's launchers and kernels, which it compiles once for all drivers."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> dict[str, Any]:
    return triton_launches.recorded(tmp_path_factory.mktemp("theirs"), "theirs", RIGHT_DRIVER, cache)


def without_limits(settings: list[dict[str, list[int]]]) -> list[dict[str, list[int]]]:
    """What was set, without how much dynamic shared memory was allowed: Triton always allows all that there is."""
    return [each for each in settings if each.get("attribute", [0])[0] != SHARED_BYTES]


@pytest.mark.long
@needs_compiler
@needs_bindings
def test_our_launcher_tells_the_driver_what_tritons_does(theirs: dict[str, Any], tmp_path: Path) -> None:
    ours = triton_launches.recorded(tmp_path, "ours", RIGHT_DRIVER)
    assert ours.keys() == theirs.keys() == CASES.keys()
    for name, their in theirs.items():
        our = ours[name]
        for what in ("grid", "block", "shared", "stream", "attributes", "sizes", "parameters"):
            assert our[what] == their[what], (name, what)
        assert without_limits(our["settings"]) == without_limits(their["settings"]), name
        allowed = [value for each in our["settings"] for number, value in each.values() if number == SHARED_BYTES]
        assert allowed == ([our["shared"]] if our["shared"] > 48 << 10 else []), name
        assert len(our["scratch"]) == len(their["scratch"])
        for mine, needed in zip(our["scratch"], their["scratch"], strict=True):
            assert needed <= mine <= needed + 128, name


@needs_compiler
@needs_bindings
@pytest.mark.long
@pytest.mark.skipif(triton.__version__.startswith("3.6"), reason="triton 3.6 does not mend tensor maps")
def test_small_tensor_maps_of_older_drivers_are_mended_as_by_triton(tmp_path: Path, cache: Path) -> None:
    their = triton_launches.recorded(tmp_path / "theirs", "theirs", WRONG_DRIVER, cache)
    our = triton_launches.recorded(tmp_path / "ours", "ours", WRONG_DRIVER)
    assert {name: each["parameters"] for name, each in our.items()} == {
        name: each["parameters"] for name, each in their.items()
    }


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_the_parameters_are_tritons(theirs: dict[str, Any], name: str) -> None:
    """Without cuda-bindings: sizes, and all bytes but those of tensor maps and of scratch memory."""
    made, cubin = CASES[name].program()
    their = theirs[name]
    sizes = (*map(size_of, made.parameters), *[8] * len(made.facts.scratch))
    assert list(sizes) == their["sizes"] == list(elf.parse(cubin).parameters)
    for mine, value in zip(made.parameters, their["parameters"], strict=False):
        if isinstance(mine, PackedNumber):
            assert mine.data == value
        elif not isinstance(mine, TensorMap):
            assert struct.pack("<Q", launched_kernels.address_of(mine.tensor)).hex() == value
    assert [made.facts.threads, 1, 1] == their["block"] and made.facts.shared_bytes == their["shared"]
    numbers = [number for number, _ in their["attributes"]]
    assert (made.facts.cooperative, made.facts.overlaps, made.facts.cluster != 1) == tuple(
        k in numbers for k in (2, 6, 4)
    )


@pytest.mark.skipif(
    "TILEWRIGHT_TRITON36" not in os.environ, reason="TILEWRIGHT_TRITON36 names no Python with triton 3.6"
)
def test_the_other_version_launches_so_too() -> None:
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    environment["PYTHONPATH"] += os.pathsep + os.environ.get("PYTHONPATH", "")
    command = [os.environ["TILEWRIGHT_TRITON36"], "-m", "pytest", "-q", str(Path(__file__).relative_to(root))]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


def test_warp_specialisation_adds_warps_to_the_launch() -> None:
    made, _ = CASES["extra warps"].program()
    assert CASES["extra warps"].options["num_warps"] * 32 < (made.facts.threads or 0)


def lowered(launch: Launch, **config: int) -> Lowered | Failed:
    return LANGUAGE.lower(launch, {}, Configuration.of(config), "sm_90")


def test_a_cubin_with_other_parameters_is_refused() -> None:
    launch, other = CASES["plain flag"].launch, CASES["tuples"].program()[1]
    made = lowered(launch)
    assert isinstance(made, Lowered)
    built = LANGUAGE.assemble(made, 60.0)
    assert isinstance(built, Built)
    arguments = LANGUAGE.arguments(launch)
    with pytest.raises(ToolFailed, match=r"plain_flag: the cubin's parameters have \(8, 8, 4, 4, 8, 8\) bytes"):
        program("task", arguments, (1,), made, replace(built, cubin=other))
    with pytest.raises(TaskError, match="plain_flag takes 2 arguments, not 1"):
        program("task", arguments[:1], (1,), made, built)


def test_a_number_from_the_space_must_be_a_constant() -> None:
    failed = lowered(Launch(launched_kernels.plain_flag, (1,), CASES["plain flag"].launch.args[:1]), flag=2, BLOCK=128)
    assert isinstance(failed, Failed)
    assert "'flag' is no tl.constexpr" in failed.reason and "fix: pass it in args" in failed.reason


def test_a_type_that_triton_cannot_pass_is_named() -> None:
    args = (launched_kernels.array("out", 128), 1.0, 128)
    failed = lowered(Launch(launched_kernels.eight_bits, (1,), args))
    assert isinstance(failed, Failed)
    assert failed.reason == "parameter 'scale' is a fp8e5, which triton cannot pass to a kernel"
