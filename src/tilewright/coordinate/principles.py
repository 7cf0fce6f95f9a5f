"""The eight principles by which a change saves time, and the phrases that identify each in a recommendation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Principle:
    """One principle. ``says``: its advice. ``words``: phrases in lower case. A phrase matches at the start of a
    word."""

    says: str
    words: tuple[str, ...]


PRINCIPLES: Mapping[str, Principle] = {
    "pipeline": Principle(
        "overlap compute, memory and communication",
        ("overlap", "prefetch", "another stream", "other stream", "double buffer", "pipelin", "dataloader"),
    ),
    "parallelism": Principle(
        "spread the work over GPUs",
        ("tensor parallel", "data parallel", "expert parallel", "fsdp", "ddp", "shard", "multi-gpu", "several gpus"),
    ),
    "locality": Principle(
        "move less data",
        ("checkpoint", "memory pool", "contiguous", "channels_last", "layout", "in place", "l2 ", "cache", "copies of"),
    ),
    "vectorization": Principle(
        "use wide loads and tensor cores", ("tensor core", "vectoriz", "vectoris", "wide load", "tma", "simd"),
    ),
    "fusion": Principle(
        "combine operations into fewer kernels",
        ("fuse", "fusion", "flash", "scaled_dot_product", "attention", "torch.compile", "foreach", "element-wise"),
    ),
    "precision": Principle(
        "use fewer bits where that is safe",
        ("precision", "bf16", "bfloat16", "fp16", "float16", "fp8", "fp4", "tf32", "autocast", "quantiz", "quantis"),
    ),
    "batching": Principle(
        "spread fixed costs over more work",
        ("cuda graph", "batch", "capture the step", "launch less", "launch overhead"),
    ),
    "async": Principle(
        "remove points where something waits",
        ("sync", ".item()", "non_blocking", "pinned", "pin_memory", "pageable", "do not wait"),
    ),
}  # fmt: skip
"""Name → principle. The ``tag`` of a profile's finding is one of these names."""


def principle_of(text: str) -> str:
    """Returns the principle of a recommendation: the one with the most matching words. Returns "" if no word
    matches."""
    lower = f" {text.lower()} "
    counts = {name: sum(word in lower for word in each.words) for name, each in PRINCIPLES.items()}
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] else ""
