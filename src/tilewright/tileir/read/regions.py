"""Operations in their order, and those that have regions: ``for``, ``loop``, ``if``, ``reduce``, ``scan``.

A region that ends without saying so gets its terminator written out: the text leaves out a ``continue`` or ``yield``
without operands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from tilewright.tileir.read import literals
from tilewright.tileir.read.operations import Draft, Reading, Value, read_plain
from tilewright.tileir.read.tree import Op, Region, Type
from tilewright.tileir.read.type_reader import read_type

TERMINATORS = frozenset({"break", "continue", "return", "yield"})
_COUNT = re.compile(r":(\d{1,4})(?!\w)")


def read_body(reading: Reading, arguments: Sequence[tuple[str, Type]], terminator: str) -> Region:
    """``{ … }`` with its arguments, which are known only inside."""
    scanner = reading.scanner
    reading.names.enter()
    named = tuple((reading.define(name, type_, scanner.at), type_) for name, type_ in arguments)
    scanner.expect("{")
    body: list[Op] = []
    while not scanner.sees("}"):
        if scanner.done:
            raise scanner.error("the text ends inside a region")
        if body and body[-1].name in TERMINATORS:
            raise scanner.error(f"an operation after '{body[-1].name}'", scanner.at)
        body.append(read_operation(reading))
    if not body or body[-1].name not in TERMINATORS:
        body.append(Op(terminator, (), (), {"operands": ()}, {"operands": ()}, text_line=scanner.line))
    scanner.expect("}")
    reading.names.leave()
    return Region(named, tuple(body))


def read_operation(reading: Reading) -> Op:
    """``%0, %1 = name …``, with what is nested inside."""
    scanner = reading.scanner
    scanner.begin()
    line, names = scanner.line, _result_names(reading)
    start = scanner.at
    if scanner.sees('"'):
        raise scanner.error("the generic form of operations is not read")
    scanner.accept("cuda_tile.")
    draft = Draft(scanner.word(), names, start, line)
    if draft.name not in _WITH_REGIONS:
        return read_plain(reading, draft)
    _WITH_REGIONS[draft.name](reading, draft)
    return draft.finish(reading)


def _result_names(reading: Reading) -> list[str]:
    """``%0, %1 =`` → both; ``%0:2 =`` → ``%0#0``, ``%0#1``."""
    scanner = reading.scanner
    if not scanner.sees("%"):
        return []
    names: list[str] = []
    while not names or scanner.accept(","):
        name = scanner.value()
        group = scanner.match(_COUNT)
        names.extend([f"{name}#{n}" for n in range(int(group[1]))] if group else [name])
    scanner.expect("=")
    return names


def _for(reading: Reading, draft: Draft) -> None:
    scanner = reading.scanner
    draft.attributes["unsignedCmp"] = scanner.accept("unsigned")
    induction = scanner.value()
    scanner.expect("in", "(")
    bounds = []
    for name, after in (("lowerBound", ["to"]), ("upperBound", [",", "step"]), ("step", [")", ":"])):
        bounds.append(reading.value())
        draft.operands[name] = [bounds[-1]]
        scanner.expect(*after)
    start, type_ = scanner.at, read_type(scanner)
    for bound in bounds:
        reading.check(bound, type_, start)
    carried = _carried(reading, draft)
    if carried:
        scanner.expect("->")
        _results(reading, draft, carried)
    draft.regions.append(read_body(reading, [(induction, type_), *carried], "continue"))


def _carried(reading: Reading, draft: Draft) -> list[tuple[str, Type]]:
    """``iter_values(%a = %x, …)``: the region's arguments, which start from the operands."""
    scanner = reading.scanner

    def pair() -> tuple[str, Value]:
        name = scanner.value()
        scanner.expect("=")
        return name, reading.value()

    pairs = scanner.several("()", pair) if scanner.accept("iter_values") else ()
    draft.operands["initValues"] = [start for _, start in pairs]
    return [(name, type_) for name, (_, type_) in pairs]


def _results(reading: Reading, draft: Draft, carried: Sequence[tuple[str, Type]] | None = None) -> None:
    """``(type, …)``; of a ``for`` they are the types that it carries."""
    scanner, start = reading.scanner, reading.scanner.at
    scanner.expect("(")
    types = reading.types()
    scanner.expect(")")
    if carried is not None and types != [type_ for _, type_ in carried]:
        raise scanner.error("the results have other types than the values carried", start)
    draft.results.update(enumerate(types))


def _loop(reading: Reading, draft: Draft) -> None:
    """``iter_values(…) : carried types -> result types``, or ``: result types`` where nothing is carried."""
    scanner = reading.scanner
    carried = _carried(reading, draft)
    if carried:
        scanner.expect(":")
        start = scanner.at
        if reading.types() != [type_ for _, type_ in carried]:
            raise scanner.error("other types than those of the values carried", start)
    if scanner.accept("->" if carried else ":"):
        draft.results.update(enumerate(reading.types()))
    draft.regions.append(read_body(reading, carried, "continue"))


def _if(reading: Reading, draft: Draft) -> None:
    draft.operands["condition"] = [reading.value()]
    if reading.scanner.accept("->"):
        _results(reading, draft)
    draft.regions.append(read_body(reading, [], "yield"))
    if reading.scanner.accept("else"):
        draft.regions.append(read_body(reading, [], "yield"))


def _reduce(reading: Reading, draft: Draft) -> None:
    scanner = reading.scanner
    draft.operands["operands"] = reading.values()
    scanner.expect("dim", "=")
    draft.attributes["dim"] = scanner.integer()
    if draft.name == "scan":
        scanner.expect("reverse", "=")
        draft.attributes["reverse"] = literals.read_flag(scanner)
    scanner.expect("identities", "=")
    draft.attributes["identities"] = literals.read_identities(scanner)
    scanner.expect(":")
    start = scanner.at
    if reading.types() != [type_ for _, type_ in draft.operands["operands"]]:
        raise scanner.error("other types than those of the operands", start)
    scanner.expect("->")
    draft.results.update(enumerate(reading.types()))
    start, arguments = scanner.at, read_parameters(reading)
    if not len(draft.results) * 2 == len(draft.operands["operands"]) * 2 == len(arguments):
        raise scanner.error("a region takes two arguments for each operand and result", start)
    draft.regions.append(read_body(reading, arguments, "yield"))


def read_parameters(reading: Reading) -> list[tuple[str, Type]]:
    """``(%a: type, …)``."""
    scanner = reading.scanner

    def parameter() -> tuple[str, Type]:
        name = scanner.value()
        scanner.expect(":")
        type_ = read_type(scanner)
        reading.places.read(scanner)
        return name, type_

    return list(scanner.several("()", parameter))


_WITH_REGIONS: Mapping[str, Callable[[Reading, Draft], None]] = {
    "for": _for,
    "loop": _loop,
    "if": _if,
    "reduce": _reduce,
    "scan": _reduce,
}

OPERATIONS_WITH_REGIONS = frozenset(_WITH_REGIONS)
