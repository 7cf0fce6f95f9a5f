"""The text that ``tileirdisasm`` prints → `tree.TileModule`, for bytecode of Tile IR 13.1 to 13.4.

`syntax` says how each operation is written. Whatever is not written that way is a `ReadError` with the line; also where
a value's type is not the one written, so that no operand is taken for another.
"""

from __future__ import annotations

from tilewright.tileir.read import literals
from tilewright.tileir.read.disassemble import disassemble
from tilewright.tileir.read.operations import Names, Reading, read_tile
from tilewright.tileir.read.places import Places
from tilewright.tileir.read.regions import OPERATIONS_WITH_REGIONS, read_body, read_parameters
from tilewright.tileir.read.scanner import ReadError, Scanner
from tilewright.tileir.read.syntax import TABLE
from tilewright.tileir.read.tree import Global, KernelEntry, TileModule

OPERATIONS = frozenset(TABLE) | OPERATIONS_WITH_REGIONS | {"constant", "make_tensor_view"}
"""All that can stand in an entry."""


def read_bytecode(code: bytes) -> TileModule:
    """Raises ReadError for bytes that are no Tile IR of a known version, CompilerMissing without tileirdisasm."""
    return read(disassemble(code))


def read(text: str) -> TileModule:
    """The module of a disassembly, with or without source places. Raises ReadError naming the line."""
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
    reading = Reading(scanner, places, Names())
    name = scanner.symbol()
    parameters = read_parameters(reading)
    hints = literals.read_hints(scanner) if scanner.accept("optimization_hints") else {}
    region = read_body(reading, parameters, "return")
    return KernelEntry(name, region.arguments, region.body, hints, places.read(scanner))


def _global(scanner: Scanner, places: Places) -> Global:
    """``global private constant @name alignment = 16 <f32: …> : type``; visibility does not matter here."""
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


__all__ = ["OPERATIONS", "ReadError", "read", "read_bytecode"]
