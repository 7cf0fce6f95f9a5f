"""Tensors with extents beyond 32 bits on a GPU: refused as a launch refuses them, right with the annotation."""

from __future__ import annotations

import cuda.tile as ct
import pytest

from tilewright.errors import TaskError
from tilewright.languages.cutile.cutile import signature_of
from tilewright.task.tensors import ArraySpec

torch = pytest.importorskip("torch")

N, TILE = (1 << 31) + 4096, 4096


@ct.kernel
def narrow(x, y, SIZE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (SIZE,)) * 2)


@ct.kernel
def wide(x: ct.IndexedWithInt64, y: ct.IndexedWithInt64, SIZE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (SIZE,)) * 2)


def test_what_a_launch_refuses_is_refused_with_the_remedy() -> None:
    spec, real = ArraySpec("x", (N,), "int8"), torch.ones(N, dtype=torch.int8, device="cuda")
    with pytest.raises(TaskError, match="ct.IndexedWithInt64"):
        signature_of(narrow, (spec, spec, TILE))
    with pytest.raises(Exception, match="too big"):
        ct.launch(torch.cuda.current_stream(), (N // TILE,), narrow, (real, real, TILE))


def test_with_the_annotation_the_whole_tensor_is_right() -> None:
    spec, real = ArraySpec("x", (N,), "int8"), torch.ones(N, dtype=torch.int8, device="cuda")
    out = torch.zeros_like(real)
    assert signature_of(wide, (spec, spec, TILE)).symbol == signature_of(wide, (real, out, TILE)).symbol
    ct.launch(torch.cuda.current_stream(), (N // TILE,), wide, (real, out, TILE))
    assert bool((out == 2).all())
