"""Reads Tile IR 13.1 to 13.4: disassembles bytecode with ``tileirdisasm``, and reads the text into a `tree.TileModule`.

`syntax` describes how each operation is written. Any other text raises `ReadError`, which names the line. Every type in
the text is compared with the type of its value, to make sure that no operand is mistaken for another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from tilewright.errors import ToolFailed, first_line
from tilewright.languages.cutile.toolchain import REINSTALL, find_tileiras
from tilewright.tileir.read import literals
from tilewright.tileir.read.operations import Draft, Reading, Value, read_plain, read_tile
from tilewright.tileir.read.places import Places
from tilewright.tileir.read.scanner import ReadError, Scanner
from tilewright.tileir.read.syntax import TABLE
from tilewright.tileir.read.tree import Global, KernelEntry, Op, Region, TileModule, Type
from tilewright.tileir.read.type_reader import read_type
from tilewright.tools import child

TERMINATORS = frozenset({"break", "continue", "return", "yield"})
_COUNT = re.compile(r":(\d{1,4})(?!\w)")
_HINTED = re.compile(r"\A *entry @.*\)( optimization_hints(=<.*>)) \{$", re.MULTILINE)


@lru_cache(256)  # a kernel's code is read by the check, the count and the screen
def read_bytecode(code: bytes) -> TileModule:
    """Reads bytecode. Raises ReadError if it is no Tile IR of a known version, ToolFailed without tileirdisasm.

    Codes of one kernel that differ only in the entry's hints share their operations, which are read once.
    """
    text = disassemble(code)
    if (hinted := _HINTED.search(text)) is None:
        return read(text)
    module = _read_once(text[: hinted.start(1)] + text[hinted.end(1) :])
    first, *others = module.entries
    return replace(module, entries=(replace(first, hints=literals.read_hints(Scanner(hinted[2]))), *others))


@lru_cache(64)
def _read_once(text: str) -> TileModule:
    return read(text)


def read(text: str) -> TileModule:
    """Reads a disassembly, with or without source locations. Raises ReadError, which names the line."""
    try:
        return _module(text)
    except RecursionError:
        raise ReadError("line 1: regions, lists or places are nested too deeply to be read") from None


def _module(text: str) -> TileModule:
    places = Places(text)
    places.check()
    scanner = Scanner(places.body)
    inside = scanner.accept("cuda_tile.module") or scanner.accept("module")
    if inside:
        scanner.symbol()
        scanner.expect("{")
    entries: list[KernelEntry] = []
    globals_: list[Global] = []
    while not (scanner.done or (inside and scanner.sees("}"))):
        scanner.begin()
        scanner.accept("cuda_tile.")
        if scanner.accept("global"):
            globals_.append(_global(scanner, places))
        elif scanner.accept("entry"):
            entries.append(_entry(scanner, places))
        else:
            raise scanner.error("expected an entry or a global")
    if inside:
        scanner.expect("}")
        places.read(scanner)
    if not scanner.done:
        raise scanner.error("text after the module's end", scanner.at)
    return TileModule(tuple(entries), tuple(globals_))


def _entry(scanner: Scanner, places: Places) -> KernelEntry:
    reading = Reading(scanner, places)
    name = scanner.symbol()
    parameters = _parameters(reading)
    hints = literals.read_hints(scanner) if scanner.accept("optimization_hints") else {}
    region = _body(reading, parameters, "return")
    return KernelEntry(name, region.arguments, region.body, hints, places.read(scanner))


def _global(scanner: Scanner, places: Places) -> Global:
    """Reads ``global private constant @name alignment = 16 <f32: …> : type``. The visibility is not kept."""
    if not scanner.accept("private"):
        scanner.accept("public")
    scanner.accept("constant")
    name, alignment = scanner.symbol(), 0
    if scanner.accept("alignment"):
        scanner.expect("=")
        alignment = scanner.integer()
    value, type_ = literals.read_constant(scanner, lambda: read_tile(scanner))
    places.read(scanner)
    return Global(name, type_, value, alignment)


def _body(reading: Reading, arguments: Sequence[tuple[str, Type]], terminator: str) -> Region:
    """Reads ``{ … }``. The arguments are defined only inside. Adds ``terminator`` if the text omits the terminator."""
    scanner = reading.scanner
    reading.scopes.append({})
    named = tuple((reading.define(name, type_, scanner.at), type_) for name, type_ in arguments)
    scanner.expect("{")
    body: list[Op] = []
    while not scanner.sees("}"):
        if scanner.done:
            raise scanner.error("the text ends inside a region")
        if body and body[-1].name in TERMINATORS:
            raise scanner.error(f"an operation after '{body[-1].name}'", scanner.at)
        body.append(_operation(reading))
    if not body or body[-1].name not in TERMINATORS:
        body.append(Op(terminator, (), (), {"operands": ()}, {"operands": ()}, text_line=scanner.line))
    scanner.expect("}")
    reading.scopes.pop()
    return Region(named, tuple(body))


def _operation(reading: Reading) -> Op:
    """Reads ``%0, %1 = name …`` with its regions. Results may be written as a group: ``%0:2`` is ``%0#0, %0#1``."""
    scanner = reading.scanner
    scanner.begin()
    line = scanner.line
    names: list[str] = []
    if scanner.sees("%"):
        while not names or scanner.accept(","):
            name = scanner.value()
            group = scanner.match(_COUNT)
            names.extend([f"{name}#{n}" for n in range(int(group[1]))] if group else [name])
        scanner.expect("=")
    start = scanner.at
    if scanner.sees('"'):
        raise scanner.error("operations in MLIR's generic form are not supported")
    scanner.accept("cuda_tile.")
    draft = Draft(scanner.word(), names, start, line)
    if draft.name not in _WITH_REGIONS:
        return read_plain(reading, draft)
    _WITH_REGIONS[draft.name](reading, draft)
    return draft.finish(reading)


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
    draft.regions.append(_body(reading, [(induction, type_), *carried], "continue"))


def _carried(reading: Reading, draft: Draft) -> list[tuple[str, Type]]:
    """Reads ``iter_values(%a = %x, …)``, the values that a loop carries. ``%a`` starts as ``%x``. Returns the names
    (``%a``) and types."""
    scanner = reading.scanner

    def pair() -> tuple[str, Value]:
        name = scanner.value()
        scanner.expect("=")
        return name, reading.value()

    pairs = scanner.several("()", pair) if scanner.accept("iter_values") else ()
    draft.operands["initValues"] = [start for _, start in pairs]
    return [(name, type_) for name, (_, type_) in pairs]


def _results(reading: Reading, draft: Draft, carried: Sequence[tuple[str, Type]] | None = None) -> None:
    """Reads ``(type, …)``, the types of the results. They must be the types of ``carried``, if given."""
    scanner, start = reading.scanner, reading.scanner.at
    scanner.expect("(")
    types = reading.types()
    scanner.expect(")")
    if carried is not None and types != [type_ for _, type_ in carried]:
        raise scanner.error("the results have other types than the carried values", start)
    draft.results.update(enumerate(types))


def _loop(reading: Reading, draft: Draft) -> None:
    """Reads ``iter_values(…) : carried types -> result types``, or ``: result types`` if the loop carries no values."""
    scanner = reading.scanner
    carried = _carried(reading, draft)
    if carried:
        scanner.expect(":")
        start = scanner.at
        if reading.types() != [type_ for _, type_ in carried]:
            raise scanner.error("the types differ from the types of the carried values", start)
    if scanner.accept("->" if carried else ":"):
        draft.results.update(enumerate(reading.types()))
    draft.regions.append(_body(reading, carried, "continue"))


def _if(reading: Reading, draft: Draft) -> None:
    draft.operands["condition"] = [reading.value()]
    if reading.scanner.accept("->"):
        _results(reading, draft)
    draft.regions.append(_body(reading, [], "yield"))
    if reading.scanner.accept("else"):
        draft.regions.append(_body(reading, [], "yield"))


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
        raise scanner.error("the types differ from the types of the operands", start)
    scanner.expect("->")
    draft.results.update(enumerate(reading.types()))
    start, arguments = scanner.at, _parameters(reading)
    if not len(draft.results) * 2 == len(draft.operands["operands"]) * 2 == len(arguments):
        raise scanner.error("a region takes two arguments for each operand and result", start)
    draft.regions.append(_body(reading, arguments, "yield"))


def _parameters(reading: Reading) -> list[tuple[str, Type]]:
    """Reads the parameters ``(%a: type, …)``."""
    scanner = reading.scanner

    def parameter() -> tuple[str, Type]:
        name = scanner.value()
        scanner.expect(":")
        type_ = read_type(scanner)
        reading.places.read(scanner)
        return name, type_

    return list(scanner.several("()", parameter))


_WITH_REGIONS = {"for": _for, "loop": _loop, "if": _if, "reduce": _reduce, "scan": _reduce}

OPERATIONS = frozenset(TABLE) | frozenset(_WITH_REGIONS) | {"constant", "make_tensor_view"}
"""The names of all operations that can be read."""


DISASSEMBLY_SECONDS = 10.0
"""Limit of processor time for one kernel. Usual kernels take 0.01 to 0.3 s."""


def disassemble(bytecode: bytes) -> str:
    """Returns the text of ``bytecode``, with source locations.

    Raises ReadError with the message of the disassembler. Raises ToolFailed if the disassembler crashes, hangs or is
    not installed beside tileiras. A disassembler that hung is not run again.
    """
    tool = find_tileiras()
    program = str(tool.path.with_name("tileirdisasm"))
    with child.workplace() as folder:
        source = folder / "kernel.tileirbc"
        source.write_bytes(bytecode)
        command, environment = [program, "-g", str(source)], tool.environment()
        done = child.run(command, DISASSEMBLY_SECONDS, folder, env=environment, fix=REINSTALL, once=True)
    if done.returncode > 0 and "error:" in done.stderr:
        raise ReadError(done.complaint("tileirdisasm"))
    if done.returncode:
        raise ToolFailed(f"{done.complaint('tileirdisasm')}; fix: {REINSTALL}")
    if not any(word in done.stdout for word in ("entry", "module")):
        raise ToolFailed(f"tileirdisasm printed no Tile IR but '{first_line(done.stdout)[:60]}'; fix: {REINSTALL}")
    return done.stdout
