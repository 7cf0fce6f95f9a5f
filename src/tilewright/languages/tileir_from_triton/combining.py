"""Finds the neutral elements of a reduction by evaluating its body, because TTIR does not contain them.

A candidate is neutral if combining it with each sample, on either side, gives the sample. If no candidate is neutral,
finite candidates are tried on finite samples. For example, a = 1 and b = 0 are neutral for a · x + b, but 0 times
infinity is not 0.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tilewright.languages.tileir_from_triton.ttir import Dense, SsaValue, TtirBlock, TtirOp, ValueType

Number: TypeAlias = float
"""A float, an int or a bool."""
FLOATS = (-math.inf, math.inf, 0.0, 1.0, -1.5, 2.25, 1e30, -1e30, 0.75)
MOST_OPERANDS = 4


def _number(choose: Callable[[float, float], float]) -> Callable[[float, float], float]:
    """Returns `min` or `max` of two numbers as a function. If one number is NaN, the result is the other number."""
    return lambda a, b: b if a != a else a if b != b else choose(a, b)


COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
ORDERED = (operator.eq, operator.gt, operator.ge, operator.lt, operator.le, lambda a, b: a < b or a > b)
EVALUATED: dict[str, Callable[..., Number]] = {
    **dict.fromkeys(("arith.addf", "arith.addi"), operator.add),
    **dict.fromkeys(("arith.subf", "arith.subi"), operator.sub),
    **dict.fromkeys(("arith.mulf", "arith.muli"), operator.mul),
    **dict.fromkeys(("arith.maxnumf", "arith.maximumf"), _number(max)),
    **dict.fromkeys(("arith.minnumf", "arith.minimumf"), _number(min)),
    "arith.maxsi": max, "arith.minsi": min, "arith.andi": operator.and_, "arith.ori": operator.or_,
    "arith.xori": operator.xor, "arith.select": lambda condition, a, b: a if condition else b,
    **dict.fromkeys(("arith.extf", "arith.truncf", "arith.extsi"), lambda a: a), "arith.negf": operator.neg,
}  # fmt: skip


def neutral(
    block: TtirBlock, types: Sequence[ValueType], known: Mapping[SsaValue, Number], *, as_first_only: bool = False
) -> tuple[Number, ...] | None:
    """Returns a neutral number for each operand. Returns None if no neutral number is found.

    known: the constants that are defined outside the body.
    as_first_only: the number needs to be neutral only as the first operand, which is enough for a scan.
    """
    if len(types) > MOST_OPERANDS:
        return None
    samples = [tuple(_samples(kind)[(3 * at + step) % 9] for at, kind in enumerate(types)) for step in range(9)]
    candidates = tuple(itertools.product(*map(_candidates, types)))
    finite = [[one for one in numbers if all(map(math.isfinite, one))] for numbers in (candidates, samples)]
    for first_only in (False, True)[: 1 + as_first_only]:
        for some, numbers in ((candidates, samples), finite):
            if (found := _first(block, known, some, numbers, first_only)) is not None:
                return found
    return None


def _first(
    block: TtirBlock,
    known: Mapping[SsaValue, Number],
    candidates: Sequence[Sequence[Number]],
    samples: Sequence[Sequence[Number]],
    first_only: bool,
) -> tuple[Number, ...] | None:
    def keeps(candidate: Sequence[Number], sample: Sequence[Number]) -> bool:
        pairs = ((candidate, sample), (sample, candidate))[: 1 if first_only else 2]
        return all(evaluated(block, (*left, *right), known) == tuple(sample) for left, right in pairs)

    for candidate in candidates:
        try:
            if all(keeps(candidate, sample) for sample in samples):
                return tuple(candidate)
        except (NotImplementedError, ArithmeticError, ValueError):
            continue
    return None


def _candidates(kind: ValueType) -> tuple[Number, ...]:
    if kind.is_float:
        return (0.0, -math.inf, math.inf, 1.0)
    if kind.bits == 1:
        return (False, True)
    high = (1 << (kind.bits - 1)) - 1
    return (0, -high - 1, high, 1, -1)


def _samples(kind: ValueType) -> tuple[Number, ...]:
    if kind.is_float:
        return FLOATS
    high = (1 << (kind.bits - 1)) - 1
    return (False, True) * 5 if kind.bits == 1 else (0, 1, -1, high, -high - 1, 7, 12, -100 % high, 5)


def evaluated(block: TtirBlock, arguments: Sequence[Number], known: Mapping[SsaValue, Number]) -> tuple[Number, ...]:
    """Returns the results of the body for these numbers.

    Raises NotImplementedError for an operation or value that this module does not know.
    """
    values: dict[SsaValue, Number] = {**known, **dict(zip(block.arguments, arguments, strict=True))}
    for op in block.ops:
        if any(one not in values for one in op.operands):
            raise NotImplementedError
        if op.results:
            values[op.results[0]] = _wrapped(_result(op, [values[one] for one in op.operands]), op.type)
    return tuple(values[one] for one in block.ops[-1].operands)


def constant_of(op: TtirOp) -> Number | None:
    """Returns the value of a constant. Returns None if it has several values, or is given by its bits."""
    value = op.attributes["value"]
    value = value.values if isinstance(value, Dense) else value
    number: Number | None = None if isinstance(value, (str, list)) else value
    return number


def _result(op: TtirOp, operands: Sequence[Number]) -> Number:
    if op.name == "arith.constant":
        if (value := constant_of(op)) is None:
            raise NotImplementedError
        return value
    if op.name == "arith.cmpi" and (predicate := int(op.attributes["predicate"])) < 6:
        return bool(COMPARISONS[predicate](*operands))
    if op.name == "arith.cmpf" and (predicate := int(op.attributes["predicate"])) not in (0, 7, 14, 15):
        a, b = operands
        return (predicate > 7 and (a != a or b != b)) or ORDERED[(predicate - 1) % 7](a, b)
    if op.name not in EVALUATED:
        raise NotImplementedError
    return EVALUATED[op.name](*operands)


def _wrapped(value: Number, kind: ValueType) -> Number:
    """Returns an integer reduced to the range of its type."""
    if kind.is_float or kind.bits == 1:
        return value
    half = 1 << (kind.bits - 1)
    return (int(value) + half) % (2 * half) - half
