"""Keeps torch.compile out of a tuned function, and names the tensors without memory that it traces with.

torch.compile cannot trace a launch. Without a mark it tries, and then compiles the frames of Tilewright that a search
runs (3,400 frames with torch 2.13). The mark is the one of `torch.compiler.disable`. The hot path does not use its
wrapper, because that costs more than the look-up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

MARK, REASON = "_torchdynamo_disable", "_torchdynamo_disable_msg"
"""Attributes that torch reads from a function (2.1 to 2.13). Other versions ignore them, and try to trace it."""
WHY = "a tuned kernel launches outside the graph; call it in a torch.library.custom_op to keep one graph"
FAKE = ("FakeTensor", "FunctionalTensor")
"""The names of torch's classes of tensors without memory, and of tensors that stand for them."""


def not_traced(function: Any) -> None:
    """Marks a function: torch.compile breaks the graph at its calls, and says why with ``fullgraph=True``."""
    setattr(function, MARK, True)
    setattr(function, REASON, WHY)


def not_compiled(*codes: CodeType) -> None:
    """Makes torch.compile run these frames as they are. Has no effect before torch.compile is loaded."""
    skip = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
    if skip is not None:
        for code in codes:
            skip(code)


def outside_graphs(function: Callable[..., None], *arguments: object) -> None:
    """Calls a function, and makes torch.compile run all frames below it as they are."""
    compiler = sys.modules.get("torch._dynamo")
    (function if compiler is None else compiler.disable(function))(*arguments)


def without_memory(value: object) -> str | None:
    """Returns what a tensor without memory is called; None for any other value."""
    if not hasattr(value, "data_ptr"):
        return None
    fake = next((base.__name__ for base in type(value).__mro__ if base.__name__ in FAKE), None)
    return fake or ("tensor of the device 'meta'" if getattr(value, "is_meta", False) else None)
