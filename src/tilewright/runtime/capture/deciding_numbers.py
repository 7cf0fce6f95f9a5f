"""Finds the numbers by which a kernel may decide about an index, in its Tile IR.

A kernel compares an index with such a number, or divides the index by it: as integers, by a shift, with a mask of bits,
or in floating point. Smaller indices than the number do not show what the kernel does with larger ones.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

from tilewright.tileir.read.tree import KernelEntry, Op
from tilewright.tileir.run.dependence import reached

DIVIDING = frozenset({"divi", "remi", "for", "divf", "remf"})
"""Operations of Tile IR, as all names below. A loop (``for``) has a start, an end and a step."""
COMPARING = frozenset({"cmpi", "mini", "maxi", "cmpf", "minf", "maxf"})
BITS = frozenset({"andi", "ori", "xori"})
IN_FLOATS = frozenset({"divf", "remf", "cmpf", "minf", "maxf", "mulf", "fma"})
"""Operations that count only if they compute with an index. All others of these kinds compute with data."""
SAME_VALUE = frozenset({"broadcast", "reshape", "exti", "trunci", "itof", "ftof", "assume"})
COMPUTED: Mapping[str, Callable[[float, float], float | None]] = {
    "addi": operator.add, "subi": operator.sub, "muli": operator.mul, "mulf": operator.mul,
    "divi": lambda a, b: a // b if b else None, "divf": lambda a, b: a / b if b else None,
}  # fmt: skip
"""Maps an operation to its result on known numbers; None if it has none."""


def deciding_numbers(entry: KernelEntry, known: Mapping[str, float]) -> tuple[list[int], list[int]]:
    """Returns the numbers, computed from constants and from the parameters in ``known``, as indices.

    The second list leaves out numbers with which only tiles are compared. Most of these comparisons are masks of the
    columns of a row.
    """
    ops, known = list(entry.walk()), dict(known)
    from_integers = reached(ops, {name for op in ops if op.name == "itof" for name in op.results})
    every, certain, factors = list[float](), list[float](), {1.0}
    for op in ops:
        operands = [known.get(values[0]) for values in op.operands.values() if values]
        if (value := _computed(op, operands)) is not None:
            known[op.results[0]] = value
        elif op.name not in IN_FLOATS or not from_integers.isdisjoint(op.results):
            numbers = [number for number in operands if number is not None]
            factors.update(_factors(op, numbers))
            every += (found := [*_numbers(op, numbers)])
            certain += found if op.name not in COMPARING or not op.tile().shape else ()
    return _indices(every, factors), _indices(certain, factors)


def _computed(op: Op, operands: Sequence[float | None]) -> float | None:
    """Returns the result of an operation; None if it is not known."""
    if op.name == "constant":
        values = op.attributes["value"].values
        return values[0] if len(values) == 1 and type(values[0]) in (int, float) else None
    if op.name in SAME_VALUE:
        return operands[0]
    if op.name in COMPUTED and len(operands) == 2 and None not in operands:
        return COMPUTED[op.name](*operands)  # type: ignore[arg-type]
    return None


def _numbers(op: Op, numbers: Sequence[float]) -> Iterator[float]:
    if op.name in DIVIDING | COMPARING:
        yield from numbers
    elif op.name in BITS:  # smaller indices do not differ in the lowest bit that is 1, or that is 0
        yield from (bit for number in map(int, numbers) for bit in (number & -number, ~number & -~number))
    elif op.name == "shri":
        yield from (1 << int(number) for number in numbers if 0 <= number < 64)
    elif op.name in ("mulf", "fma"):
        yield from (1 / abs(number) for number in numbers if 0 < abs(number) < 1)


def _factors(op: Op, numbers: Sequence[float]) -> Iterator[float]:
    """Yields the numbers by which an operation multiplies an index before the kernel may divide it."""
    if op.name in ("muli", "mulf", "fma"):
        yield from (abs(number) for number in numbers if abs(number) > 1)
    elif op.name == "shli":
        yield from (1 << int(number) for number in numbers if 0 <= number < 64)


def _indices(numbers: Sequence[float], factors: set[float]) -> list[int]:
    """Returns the indices at which the kernel may decide: each number divided by each factor of the index."""
    quotients = {number / factor for number in numbers for factor in factors}
    return [math.ceil(index) for index in quotients if math.isfinite(index)]
