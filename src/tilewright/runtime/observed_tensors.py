"""Keeps a digest of all bits, and values at evenly spaced places, for each tensor of an observed program.

Both are computed on the tensor's device, in blocks. So a large tensor on a GPU needs little memory and no copy. The
module also changes parameters by their rounding error (`nudge`), which shows how much an output may differ.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from tilewright.runtime.seeding import SEED

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter

    from tilewright.records import Json

SAMPLE, BLOCK = 1024, 1 << 20
MOST_TENSORS, MOST_VALUES = 4000, 1 << 21
"""Limits for one run: the number of tensors, and the number of values of all tensors (16 MiB)."""


def tensors_in(value: Any) -> Iterator[Tensor]:
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
        self.rows: list[dict[str, Json]] = []
        self.values = array("d")

    def add(self, name: str, tensor: Tensor) -> None:
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
        row: dict[str, Json] = {
            "name": name,
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
        }
        self.rows.append(row | {"digest": digest, "not_finite": not_finite, "sampled": len(sample)})
        self.values.extend(sample)


def _real(tensor: Tensor) -> Tensor:
    import torch

    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _sample(tensor: Tensor) -> list[float]:
    """Returns at most `SAMPLE` values as float64, at evenly spaced places from the first element to the last."""
    import torch

    real = _real(tensor)
    count = real.numel()
    if count > SAMPLE:
        steps = torch.arange(SAMPLE, dtype=torch.int64, device=real.device)
        real = real.reshape(-1)[steps * (count - 1) // (SAMPLE - 1)]
    values: list[float] = real.reshape(-1).to("cpu").to(torch.float64).tolist()
    return values


def _not_finite(tensor: Tensor) -> int:
    import torch

    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0
    flat = _real(tensor).reshape(-1)
    if flat.element_size() == 1:  # isfinite is not defined for 8-bit types
        return sum(int((~torch.isfinite(flat[at : at + BLOCK].to(torch.float32))).sum()) for at in _blocks(flat))
    return sum(int((~torch.isfinite(flat[at : at + BLOCK])).sum()) for at in _blocks(flat))


def _digest(tensor: Tensor) -> int:
    """Returns a sum modulo 2^64: the bits of each element times an odd number that depends on the element's position.
    If one element changes, the sum changes. The order of the additions does not matter."""
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


def _blocks(flat: Tensor) -> range:
    return range(0, flat.numel(), BLOCK)


def eps_of(parameter: Parameter) -> float:
    """Returns the machine epsilon of the type in which products with a parameter are computed."""
    import torch

    kind = parameter.device.type
    types = [parameter.dtype]
    if torch.is_autocast_enabled(kind):
        types.append(torch.get_autocast_dtype(kind))
    tf32 = kind == "cuda" and parameter.dtype is torch.float32 and torch.backends.cuda.matmul.allow_tf32
    return max([2.0**-10 if tf32 else 0.0, *(float(torch.finfo(each).eps) for each in types)])


def nudge(parameter: Parameter) -> None:
    """Multiplies each element by 1 + eps or 1 - eps (`eps_of`), at random. The generator is our own, so the program's
    random numbers stay the same."""
    import torch

    if not parameter.is_floating_point() or parameter.element_size() == 1:
        return
    generator = torch.Generator(parameter.device).manual_seed(SEED)
    with torch.no_grad():
        signs = torch.empty_like(parameter).bernoulli_(generator=generator).mul_(2.0).sub_(1.0)
        parameter.data.mul_(signs.mul_(eps_of(parameter)).add_(1.0))  # `data`: the graph may hold the version
