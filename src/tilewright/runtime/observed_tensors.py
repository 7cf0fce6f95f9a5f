"""What an observed program's tensors are reduced to: a digest of all bits, and values at evenly spaced places.

All is computed where the tensor is, in blocks, so a large tensor on a GPU needs little memory and no copy.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

SAMPLE, BLOCK = 1024, 1 << 20
MOST_TENSORS, MOST_VALUES = 4000, 1 << 21
"""Bounds of what a run keeps: tensors, and values of all tensors (16 MiB)."""


def tensors_in(value: Any) -> Iterator[Any]:
    """Yields the tensors in nested tuples, lists, dictionaries and dataclasses, in their order."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from (tensor for each in value.values() for tensor in tensors_in(each))
    elif isinstance(value, (tuple, list)):
        yield from (tensor for each in value for tensor in tensors_in(each))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from (tensor for each in fields(value) for tensor in tensors_in(getattr(value, each.name, None)))


class ObservedTensors:
    """Collects tensors under names. ``rows``: their facts; ``values``: their samples, one after the other."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.values = array("d")

    def add(self, name: str, tensor: Any) -> None:
        """Adds a tensor. Beyond the bounds it is left out."""
        import torch

        if len(self.rows) >= MOST_TENSORS or len(self.values) >= MOST_VALUES:
            return
        with torch.no_grad():
            plain = tensor.detach()
            if plain.layout is not torch.strided or plain.is_quantized:
                plain = plain.to_dense() if plain.layout is not torch.strided else plain.dequantize()
            sample, not_finite = _sample(plain), _not_finite(plain)
            digest = _digest(plain)
        row = {"name": name, "shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
        self.rows.append(row | {"digest": digest, "not_finite": not_finite, "sampled": len(sample)})
        self.values.extend(sample)


def _real(tensor: Any) -> Any:
    import torch

    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _sample(tensor: Any) -> list[float]:
    """Returns at most `SAMPLE` values, the first and the last among them, as float64."""
    import torch

    real = _real(tensor)
    count = real.numel()
    if count > SAMPLE:
        steps = torch.arange(SAMPLE, dtype=torch.int64, device=real.device)
        real = real.reshape(-1)[steps * (count - 1) // (SAMPLE - 1)]
    values: list[float] = real.reshape(-1).to("cpu").to(torch.float64).tolist()
    return values


def _not_finite(tensor: Any) -> int:
    import torch

    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0
    flat = _real(tensor).reshape(-1)
    if flat.element_size() == 1:  # the types of 8 bits lack the functions
        return sum(int((~torch.isfinite(flat[at : at + BLOCK].to(torch.float32))).sum()) for at in _blocks(flat))
    return sum(int((~torch.isfinite(flat[at : at + BLOCK])).sum()) for at in _blocks(flat))


def _digest(tensor: Any) -> int:
    """Returns the sum of all elements' bits, each times an odd number that depends on its place, modulo 2^64. A change
    of one element always changes it, and the order of the sum does not."""
    import torch

    flat = _real(tensor).reshape(-1)
    if flat.dtype is torch.bool:
        flat = flat.to(torch.uint8)
    bits = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
    total = 0
    for at in _blocks(bits):
        block = bits[at : at + BLOCK].to(torch.int64)
        places = torch.arange(at, at + block.numel(), dtype=torch.int64, device=block.device)
        total += int(((places * 0x9E3779B97F4A7C1 ^ (places >> 7)) * 2 + 1).mul_(block).sum())
    return total % (1 << 64)


def _blocks(flat: Any) -> range:
    return range(0, flat.numel(), BLOCK)
