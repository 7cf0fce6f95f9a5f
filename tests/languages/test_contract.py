"""cuTile keeps the contract of every language."""

from __future__ import annotations

import subprocess
import sys

import cuda.tile as ct
import pytest

from tilewright.errors import TaskError
from tilewright.languages import language_of
from tilewright.languages.cutile import LANGUAGE
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec
from tilewright.testing.languages import LanguageContract


@ct.kernel
def copy(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0), 0), ct.load(x, (ct.bid(0), 0), (1, TILE)))


class TestCuTile(LanguageContract):
    language = LANGUAGE

    def launch(self) -> Launch:
        return Launch(copy, (64,), (ArraySpec("x", (64, 16), "bfloat16"), ArraySpec("y", (64, 16), "bfloat16"), 16))


def test_a_plain_function_is_to_be_decorated() -> None:
    with pytest.raises(TaskError, match="; fix: decorate it with @ct.kernel, @triton.jit or @cute.jit"):
        language_of(lambda x: None)


def test_the_language_of_a_kernel_is_found_without_those_after_it() -> None:
    code = """
import sys
import cuda.tile as ct
from tilewright.languages import is_kernel, language_of
@ct.kernel
def nothing():
    pass
assert is_kernel(nothing) and language_of(nothing).name == "cutile"
print([name for name in sys.modules if name.startswith("tilewright.languages.triton")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
