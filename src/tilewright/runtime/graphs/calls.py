"""One call of a model that a program made, with copies of its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelCall:
    """One call of a model: its inputs (copies), and the modes of autograd in which it was made."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    gradients: bool
    inference: bool


def copies(value: Any) -> Any:
    """Returns nested inputs with copies of their tensors."""
    import torch
    from torch.utils._pytree import tree_map

    def copy(each: Any) -> Any:
        return each.detach().clone().requires_grad_(each.requires_grad) if isinstance(each, torch.Tensor) else each

    with torch.inference_mode(False):
        return tree_map(copy, value)
