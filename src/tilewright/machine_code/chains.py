"""Finds chains of dependent loads in machine code: loads whose address needs the value of an earlier load.

Each load of a chain waits for the load before it, so a chain of n loads takes at least n times the latency of memory.
Only registers are followed. A chain through shared memory or through a predicate is not found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from tilewright.machine_code.loops import Instruction

LOADS = ("LDG", "LD", "ATOMG", "ATOM")
_STORES = ("STG", "ST", "STS", "STL", "RED", "REDG")
_REGISTER = re.compile(r"\b(U?R)(\d+)(?:\.reuse)?(\.64)?")
_TARGET = re.compile(r"(U?R)(\d+)")
_PAIR = re.compile(r"\.(?:WIDE|64)\b")


def longest(code: Iterable[Instruction]) -> int:
    """Returns the number of loads in the longest chain of code without loops."""
    return max(_depths(code, {}).values(), default=0)


def growth(body: Sequence[Instruction]) -> int:
    """Returns by how many loads one iteration of a loop lengthens a chain; 0 if no load waits for the iteration before.

    body: the instructions of one iteration.
    """
    once = _depths(body, {})
    first = max(once.values(), default=0)
    return max(_depths(body, once).values(), default=0) - first


def _depths(code: Iterable[Instruction], before: dict[str, int]) -> dict[str, int]:
    """Returns the number of loads in the longest chain that ends in each register. Leaves out registers without one."""
    depth = dict(before)
    for each in code:
        if not each.operands:
            continue
        loads = each.base in LOADS
        if not (loads or depth):
            continue
        written, _, read = each.operands.partition(",")
        if each.base in _STORES or not (target := _TARGET.fullmatch(written)):
            continue
        found = max((depth.get(name, 0) for name in _registers(read)), default=0) + loads
        words = 4 if ".128" in each.opcode else 2 if _PAIR.search(each.opcode) else 1
        for name in _numbered(target.group(1), int(target.group(2)), words):
            if found:
                depth[name] = found
            else:
                depth.pop(name, None)
    return depth


def _registers(text: str) -> Iterator[str]:
    """Yields the registers in ``text``. ``R4.64`` is a pair of registers."""
    for kind, number, pair in _REGISTER.findall(text):
        yield from _numbered(kind, int(number), 2 if pair else 1)


def _numbered(kind: str, first: int, count: int) -> Iterator[str]:
    return (f"{kind}{first + more}" for more in range(count))
