"""Answers a question for a new kernel, such as "Write a TileIR kernel for fused SiLU-mul". No program is involved.

The specialists of its route work in turn. Each continues with the file that the previous one wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.coordinate.facts import arch_here, execution_context
from tilewright.coordinate.routing import route
from tilewright.specialists import specialist_of
from tilewright.specialists.delegation import Delegation, SpecialistAnswer, handed_on
from tilewright.specialists.writing.named import operation_in

METRICS = ("latency in µs",)
_REFERENCE = re.compile(r"[\w./~-]+\.py:[A-Za-z_]\w*")
_WRITE = re.compile(r"\b(write|generate|create|make|new|need|want)\b", re.IGNORECASE)


@dataclass(frozen=True)
class KernelQuestion:
    """A question for a new kernel, with a delegation to each specialist. ``why``: the reason of the route."""

    question: str
    why: str
    delegations: tuple[Delegation, ...]

    def __str__(self) -> str:
        names = ", then ".join(each.specialist for each in self.delegations)
        return f"{self.question}: by {names} ({self.why})"


def kernel_question(question: str) -> KernelQuestion | None:
    """Returns the delegations for a question that asks for a new kernel. Returns None for other questions.

    Such a question asks to write a kernel. It names an operation, or a reference as ``FILE.py:FUNCTION``. It names no
    program.
    """
    reference = next(iter(_REFERENCE.findall(question)), "")
    without = _REFERENCE.sub("", question)
    named = reference or operation_in(without) or "kernel" in without.lower()
    if not _WRITE.search(without) or ".py" in without or not named:
        return None
    chosen = route(without, None, arch_here)
    if not chosen.specialists or not all(specialist_of(name).writes_kernels for name in chosen.specialists):
        return None
    context = execution_context()
    delegations = [
        Delegation(name, question, "one call of the kernel", METRICS, file="" if n else reference, context=context)
        for n, name in enumerate(chosen.specialists)
    ]
    return KernelQuestion(question, chosen.why, tuple(delegations))


def answers(asked: KernelQuestion) -> Iterator[tuple[Delegation, SpecialistAnswer]]:
    """Yields each specialist's result when it arrives. Ends early if a specialist wrote no file for the next one.

    Raises RequestError for a reference that cannot be read, MachineError if a specialist cannot work on this machine.
    """
    before: SpecialistAnswer | None = None
    for each in asked.delegations:
        if before is not None and not before.file:
            return
        delegation = each if before is None else handed_on(each, before)
        before = specialist_of(delegation.specialist).answer(delegation)
        yield delegation, before
