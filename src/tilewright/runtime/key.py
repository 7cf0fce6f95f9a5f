"""The key of a tuned launch: all facts that may change which configuration is the fastest.

A key is a dictionary of named, readable parts. The store looks up the digest of the key. Three facts are left out,
because a launch cannot read them: the values in the arrays, the clock rates of the GPU, and its load by other programs.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING

from tilewright.errors import NoGpu, RequestError
from tilewright.records import Json
from tilewright.runtime.arrays import facts_of

if TYPE_CHECKING:
    from tilewright.hardware.architectures import Board


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


@cache
def toolkit() -> str:
    """Returns the versions of cuda-tile and its compiler as text, such as ``cuda-tile 1.7.0, tileiras 13.4.92``."""
    from tilewright.languages.cutile import LANGUAGE

    return LANGUAGE.toolkit()


@cache
def board_of(device: int) -> str:
    """Returns the GPU's name and architecture, such as ``NVIDIA H200 sm_90``. Raises `NoGpu` if there is none."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(device)
        return f"{gpu.name} sm_{gpu.major}{gpu.minor}"
    from tilewright.hardware.gpu import detect

    detected = detect() if device == 0 else None
    if detected is None:
        raise NoGpu(f"there is no GPU {device} that CUDA can use")
    return f"{detected.name} {detected.arch}"


@cache
def hardware_of(device: int) -> Board:
    """Returns the `Board` of the GPU with this index: its SMs, bandwidth and rates. Raises `NoGpu`."""
    from tilewright.hardware.architectures import board_for_gpu
    from tilewright.hardware.gpu import detect

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(device)
        return board_for_gpu(gpu.name, gpu.multi_processor_count, gpu.total_memory, arch=f"sm_{gpu.major}{gpu.minor}")
    if (detected := detect() if device == 0 else None) is None:
        raise NoGpu(f"there is no GPU {device} that CUDA can use")
    return detected.board


def array_part(tensor: object) -> dict[str, Json]:
    """Returns the part of the key for an array, with strides in elements. Raises `RequestError` for any other value."""
    facts = facts_of(tensor)
    if facts is None:
        raise RequestError(f"{type(tensor).__name__} is not a GPU array; pass a torch tensor")
    return {
        "dtype": facts.dtype,
        "shape": list(facts.shape),
        "strides": list(facts.strides),
        "alignment": facts.alignment,
    }


def flag_part(value: object, by_value: bool = True) -> Json:
    """Returns the part of the key for an argument that is not an array.

    A flag such as ``is_causal`` may change which configuration is fastest. So the part is the value for an integer,
    boolean, string, None, enumeration or dtype, and for a tuple or frozen dataclass of such values. A number such as
    eps does not change the fastest configuration. So the part is the name of the type for a float and for any other
    argument. With ``by_value=False``, the part is always the name of the type.
    """
    kind = type(value).__qualname__
    if not by_value:
        return f"<{kind}>"
    if isinstance(value, Enum):  # tested before int, because an IntEnum is also an int
        return f"{kind}.{value.name}"
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, tuple):
        return [kind, *map(flag_part, value)]
    if is_dataclass(value) and type(value).__hash__ is not None:
        return [kind, *(flag_part(getattr(value, field.name)) for field in fields(value))]
    if kind in ("dtype", "DType"):
        return str(value)
    return f"<{kind}>"


def digest(parts: Mapping[str, Json]) -> str:
    """Returns the SHA-256 (hex) of the parts as canonical JSON. The order of the names does not change it. 1 and True
    give different digests."""
    try:
        text = _canonical(parts)
    except TypeError as error:
        raise RequestError(f"a part of a key is not plain data: {error}") from None
    return hashlib.sha256(text.encode()).hexdigest()
