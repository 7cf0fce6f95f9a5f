"""Lists of arrays on a GPU: our signature is the one that a launch compiles for, so the cubin is found."""

from __future__ import annotations

import itertools

import pytest

from tilewright.languages.cutile.cutile import signature_of
from tilewright.task.tensors import ArraySpec

torch = pytest.importorskip("torch")

SHAPES = {
    "alike": ((64, 32), (64, 32)),
    "unlike": ((64, 32), (17, 48)),
    "ragged": ((17, 15), (33, 15)),
    "one row": ((1, 32), (64, 32)),
}


@pytest.mark.parametrize(("shapes", "dtype"), [*itertools.product(SHAPES, ("float32", "bfloat16"))])
def test_our_signature_of_a_list_is_that_of_a_launch(shapes: str, dtype: str) -> None:
    from tests.languages.test_lists import doubled

    specs = [ArraySpec(f"a{n}", shape, dtype) for n, shape in enumerate(SHAPES[shapes])]
    tensors = [[torch.empty(one.shape, dtype=getattr(torch, dtype), device="cuda") for one in specs] for _ in "st"]
    ours = signature_of(doubled, (specs, specs, 8))
    assert signature_of(doubled, (*tensors, 8)) == ours


def test_a_launch_with_lists_runs() -> None:
    import cuda.tile as ct
    from tests.languages.test_lists import doubled

    sources = [torch.randn(rows, 16, device="cuda") for rows in (32, 17, 48)]
    targets = [torch.zeros_like(one) for one in sources]
    ct.launch(torch.cuda.current_stream(), (2,), doubled, (sources, targets, 8))
    assert all(torch.equal(target, 2 * source) for source, target in zip(sources, targets, strict=True))


@pytest.mark.parametrize("rows", [64, 17, 1])
def test_our_signature_of_a_tuple_is_that_of_a_launch(rows: int) -> None:
    """Arrays, numbers and constants in tuples."""
    from tests.runtime.captured_kernels import summed

    specs = [
        ArraySpec(name, (rows, 32), dtype) for name, dtype in (("a", "float32"), ("b", "bfloat16"), ("y", "float32"))
    ]
    a, b, y = [torch.empty(one.shape, dtype=getattr(torch, one.dtype), device="cuda") for one in specs]
    numbers = (0.5, 2.0)
    ours = signature_of(summed, ((specs[0], specs[1]), numbers, specs[2], (8, 32)))
    assert signature_of(summed, ((a, b), numbers, y, (8, 32))) == ours
