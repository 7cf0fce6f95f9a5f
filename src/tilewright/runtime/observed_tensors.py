"""Keeps a digest of all bits, and values at evenly spaced places, for each tensor of an observed program.

All is computed on the tensor's device, in blocks. So a large tensor on a GPU needs little memory and no copy.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

SAMPLE, BLOCK = 1024, 1 << 20
MOST_TENSORS, MOST_VALUES = 4000, 1 << 21
"""Limits for one run: the number of tensors, and the number of values of all tensors (16 MiB)."""


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
    """Collects tensors by name. ``rows``: facts about each tensor; ``values``: the sampled values of all tensors, one
    tensor after another."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.values = array("d")

    def add(self, name: str, tensor: Any) -> None:
        """Adds a tensor. If a limit is reached, the tensor is left out."""
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
    """Returns at most `SAMPLE` values as float64, at evenly spaced places from the first element to the last."""
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
    if flat.element_size() == 1:  # isfinite is not defined for 8-bit types
        return sum(int((~torch.isfinite(flat[at : at + BLOCK].to(torch.float32))).sum()) for at in _blocks(flat))
    return sum(int((~torch.isfinite(flat[at : at + BLOCK])).sum()) for at in _blocks(flat))


def _digest(tensor: Any) -> int:
    """Returns a sum modulo 2^64: the bits of each element times an odd number that depends on its position. If one
    element changes, the sum changes. The order of the additions does not matter."""
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
