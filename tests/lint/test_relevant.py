"""Which files of a folder are parsed is decided by their bytes, without losing a finding."""

from __future__ import annotations

import pytest
from tests.lint.rule_examples import EXAMPLES
from tests.lint.triton_examples import EXAMPLES as TRITON

from tilewright.lint.relevant import is_relevant, mentions_a_language


@pytest.mark.parametrize("code", sorted(EXAMPLES | TRITON))
def test_each_example_of_a_mistake_is_parsed(code: str) -> None:
    text = (EXAMPLES | TRITON)[code].bad.encode()
    assert is_relevant(text) and mentions_a_language(text)


@pytest.mark.parametrize(
    "text",
    [
        "import triton\n@triton.jit\ndef f(): ...",
        "from triton import jit as compiled\n@compiled\ndef f(): ...",
        "import torch, triton as tr\n@tr.jit\ndef f(): ...",
        "from triton.runtime.jit import jit\n@jit\ndef f(): ...",
        "try: import cuda.tile as ct\nexcept ImportError: pass",
        "def f():\n    from cuda import bindings, tile",
        "from cuda import (\n    tile as ct,\n)",
        "import cuda\nkernel = cuda.tile.kernel(f)",
        "from cuda.tile_experimental import autotune_launch",
        "import os; from tilegym.backend import register_impl",
        "from tilewright import Space",
    ],
)
def test_ways_to_use_a_language(text: str) -> None:
    assert is_relevant(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "import triton\nimport triton.language as tl\ncdiv = triton.cdiv  # no jit",
        "import cutlass.cute as cute\n@cute.jit\ndef f(): ...  # as triton does",
        "from triton.testing import do_bench\njit = None",
        '"""Uses cuda.tile, imported elsewhere."""\nx = 1  # import cuda.tile',
        "from cuda import cudart",
        "tilewright = 1",
    ],
)
def test_a_file_without_kernels_is_not_parsed(text: str) -> None:
    assert not is_relevant(text.encode())
