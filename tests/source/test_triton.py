"""Triton kernels, their tuners and their launches, read from the text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.source.source_file import SourceFile
from tilewright.source.triton import TritonKernel, kernels, launches

TEXT = """\
import triton
from triton import jit
import triton.language as tl

MANY = [triton.Config({"BLOCK": block}, num_warps=4) for block in (64, 128)]
NAMES = ["x"]


@triton.heuristics({"WHOLE": lambda args: args["n"] % 64 == 0})
@triton.autotune(CONFIGS, ["n"], None, NAMES, restore_value=KEPT)
@triton.heuristics(values={"LATE": lambda args: 1})
@triton.jit(do_not_specialize=["n"])
def tuned(x, n, WHOLE: tl.constexpr, LATE: "tl.constexpr", BLOCK: tl.constexpr = 64):
    helper(x)


@jit
def helper(x):
    pass


def plain(x):
    pass


def run(x, args, more):
    tuned[(1,)](x, 3)
    tuned[(1,)](x, *args, **more)
    plain[(1,)](x)
"""


def read(configs: str = "MANY") -> SourceFile:
    return SourceFile(Path("k.py"), TEXT.replace("CONFIGS", configs))


def kernel(file: SourceFile) -> TritonKernel:
    return next(iter(kernels(file).values()))


def test_kernels_are_found_with_their_decorators() -> None:
    file = read()
    assert [kernel.node.name for kernel in kernels(file).values()] == ["tuned", "helper"]
    found = kernel(file)
    assert found.constants == {"WHOLE", "LATE", "BLOCK"}
    assert (set(found.computed), found.computed_late) == ({"WHOLE"}, {"LATE"})
    tuner = found.tuner
    assert tuner is not None
    assert set(tuner.names(file, 1, "key") or ()) == {"n"}
    assert set(tuner.names(file, 3, "reset_to_zero") or ()) == {"x"}
    assert tuner.names(file, 4, "restore_value") is None, "the text does not show KEPT"
    assert tuner.names(file, 9, "other") == {}
    assert tuner.fields == {"BLOCK", "num_warps"}


@pytest.mark.parametrize(
    ("configs", "takes_trials"),
    [
        ("MANY", True),
        ("[triton.Config({'BLOCK': 64})]", False),
        ("[triton.Config({'BLOCK': 64}, num_warps=WARPS)]", True),
        ("made()", True),
    ],
)
def test_one_configuration_is_never_timed(configs: str, takes_trials: bool) -> None:
    tuner = kernel(read(configs)).tuner
    assert tuner is not None
    assert tuner.takes_trials == takes_trials


def test_launches_are_found_with_their_arguments() -> None:
    first, second = launches(read())
    assert set(first.passed) == {"x", "n"}
    assert first.is_whole
    assert set(second.passed) == {"x"}
    assert not second.is_whole
