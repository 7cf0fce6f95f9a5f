"""Types in the text of Tile IR: tiles, pointers, tokens and the four kinds of view."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tilewright.tileir.read.scanner import Scanner
from tilewright.tileir.read.tree import (
    GatherScatterViewType,
    PartitionViewType,
    PointerType,
    StridedViewType,
    TensorViewType,
    TileType,
    TokenType,
    Type,
)

PADDINGS = frozenset(("zero", "neg_zero", "nan", "pos_inf", "neg_inf"))

_EXTENT = re.compile(r"(\d{1,19}|\?)x")
_ELEMENT = re.compile(r"(?:i(?:1|4|8|16|32|64)|b?f16|t?f32|f64|f8E4M3FN|f8E5M2|f8E8M0FNU|f4E2M1FN|fnv8E5M3FNU)(?!\w)")
_TILE_SHAPE = re.compile(r"\(((?:\d{1,19}(?:x\d{1,19})*)?)\)")
_NUMBER = re.compile(r"\d{1,19}|\?")


def read_type(scanner: Scanner) -> Type:
    """The type that is next. Raises ReadError for one that this version does not know."""
    start = scanner.at
    scanner.accept("!cuda_tile.")
    kind = scanner.word()
    if kind == "token":
        return TokenType()
    if kind not in _READINGS:
        raise scanner.error(f"unknown type '{kind}'", start)
    scanner.expect("<")
    type_ = _READINGS[kind](scanner)
    scanner.expect(">")
    return type_


def read_element(scanner: Scanner) -> str:
    return scanner.need(_ELEMENT, "an element type")[0]


def _tile(scanner: Scanner) -> TileType:
    start = scanner.at
    extents = _known(scanner, start, _shape(scanner), "the extents of a tile are known numbers")
    scanner.accept("!cuda_tile.")
    if not scanner.accept("ptr"):
        return TileType(extents, read_element(scanner))
    scanner.expect("<")
    pointee = read_element(scanner)
    scanner.expect(">")
    return TileType(extents, PointerType(pointee))


def _tensor_view(scanner: Scanner) -> TensorViewType:
    start = scanner.at
    shape = _shape(scanner)
    element = read_element(scanner)
    strides: tuple[int | None, ...] = ()
    if scanner.accept(","):
        scanner.expect("strides", "=")
        strides = _numbers(scanner)
    if len(strides) != len(shape):
        raise scanner.error(f"{len(shape)} extents, but {len(strides)} strides", start)
    return TensorViewType(shape, element, strides)


def _partition_view(scanner: Scanner) -> PartitionViewType:
    tile, padding, tensor = _tile_shape(scanner), _padding(scanner), _viewed(scanner)
    return PartitionViewType(tile, _dim_map(scanner, tile), padding, tensor)


def _strided_view(scanner: Scanner) -> StridedViewType:
    tile = _tile_shape(scanner)
    scanner.expect("traversal_strides", "=")
    steps = _list(scanner)
    scanner.expect(",")
    padding, tensor = _padding(scanner), _viewed(scanner)
    return StridedViewType(tile, steps, _dim_map(scanner, tile), padding, tensor)


def _gather_scatter_view(scanner: Scanner) -> GatherScatterViewType:
    tile, padding, tensor = _tile_shape(scanner), _padding(scanner), _viewed(scanner)
    scanner.expect(",", "sparse_dim", "=")
    return GatherScatterViewType(tile, scanner.integer(), padding, tensor)


def _shape(scanner: Scanner) -> tuple[int | None, ...]:
    shape = []
    while found := scanner.match(_EXTENT):
        shape.append(None if found[1] == "?" else int(found[1]))
    return tuple(shape)


def _tile_shape(scanner: Scanner) -> tuple[int, ...]:
    scanner.expect("tile", "=")
    found = scanner.need(_TILE_SHAPE, "a tile's shape")[1]
    scanner.expect(",")
    return tuple(int(extent) for extent in found.split("x") if extent)


def _padding(scanner: Scanner) -> str | None:
    if not scanner.accept("padding_value"):
        return None
    scanner.expect("=")
    start, padding = scanner.at, scanner.word()
    if padding not in PADDINGS:
        raise scanner.error(f"unknown padding value '{padding}'", start)
    scanner.expect(",")
    return padding


def _viewed(scanner: Scanner) -> TensorViewType:
    start, found = scanner.at, read_type(scanner)
    if not isinstance(found, TensorViewType):
        raise scanner.error("a view is of a tensor_view", start)
    return found


def _dim_map(scanner: Scanner, tile: tuple[int, ...]) -> tuple[int, ...]:
    """Which of the tensor's axes each of the tile's lies along; not written where they are in order."""
    if not scanner.accept(","):
        return tuple(range(len(tile)))
    scanner.expect("dim_map", "=")
    return _list(scanner)


def _known(scanner: Scanner, start: int, numbers: tuple[int | None, ...], otherwise: str) -> tuple[int, ...]:
    known = tuple(number for number in numbers if number is not None)
    if len(known) != len(numbers):
        raise scanner.error(otherwise, start)
    return known


def _list(scanner: Scanner) -> tuple[int, ...]:
    return _known(scanner, scanner.at, _numbers(scanner), "numbers that are known")


def _numbers(scanner: Scanner) -> tuple[int | None, ...]:
    texts = scanner.several("[]", lambda: scanner.need(_NUMBER, "a number or '?'")[0])
    return tuple(None if text == "?" else int(text) for text in texts)


_READINGS: Mapping[str, Callable[[Scanner], Type]] = {
    "tile": _tile,
    "tensor_view": _tensor_view,
    "partition_view": _partition_view,
    "strided_view": _strided_view,
    "gather_scatter_view": _gather_scatter_view,
}
