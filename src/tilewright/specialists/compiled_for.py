"""The architectures for which Tilewright compiles each kernel language, as recorded by bench/compiled_for.py.

The table comes from compiling, not from documents. A test compiles again and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tilewright.hardware.architectures import ARCHITECTURES

SOURCE = "compiled with tileiras 13.4.92, triton 3.9.0 and nvidia-cutlass-dsl 4.8.1, 2026-11-28"

COMPILED_FOR: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "cutile": tuple(ARCHITECTURES),
    "triton": tuple(name for name in ARCHITECTURES if name != "sm_88"),
    "tileir": tuple(ARCHITECTURES),
    "cute-dsl": tuple(name for name in ARCHITECTURES if name not in ("sm_88", "sm_107", "sm_110")),
})  # fmt: skip
"""The architectures of each specialist, by name. Tilewright has no compiler for a specialist that is not listed."""


def compiles(specialist: str, arch: str) -> bool | None:
    """Returns whether the specialist's language compiles for an architecture. Returns None if Tilewright has no
    compiler for it."""
    return arch in COMPILED_FOR[specialist] if specialist in COMPILED_FOR else None
