"""Runs a program's source before and after a change, with real torch on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tilewright.program.changes.base import ProgramChange
from tilewright.program.reading.module import ReadModule


def read(text: str) -> ReadModule:
    module = ReadModule(Path("/program/model.py"), text)
    assert not module.unreadable
    return module


def rewritten(change: ProgramChange, text: str) -> str:
    """The text with the change at all of its sites. Fails if there is none."""
    module = read(text)
    sites = change.sites(module)
    assert sites, [miss.reason for miss in change.near_misses(module)]
    new = change.rewrite(module, *sites)
    compile(new, "model.py", "exec")
    assert new != text
    return new


def outputs(text: str, call: str, inputs: Mapping[str, tuple[int, ...]]) -> list[torch.Tensor]:
    """The value of a call, and the gradients of the inputs and of the layers' parameters that it reaches."""
    torch.manual_seed(0)
    space: dict[str, Any] = {"torch": torch}
    tensors = {n: torch.randn(*shape, dtype=torch.float64, requires_grad=True) for n, shape in inputs.items()}
    exec(compile(text, "model.py", "exec"), space)
    space.update(tensors)
    result = eval(call, space)
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view(result.shape)
    (result * weights).sum().backward()
    return [result.detach(), *(t.grad for t in tensors.values() if t.grad is not None)]


def same(old: list[torch.Tensor], new: list[torch.Tensor], tolerance: float = 1e-10) -> bool:
    return len(old) == len(new) and all(
        torch.allclose(a, b, rtol=0, atol=tolerance) for a, b in zip(old, new, strict=True)
    )
