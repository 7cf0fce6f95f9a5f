"""Reads types in the text of Tile IR: tiles, pointers, tokens and the four kinds of view."""

from __future__ import annotations

import re
from collections.abc import Callable

from tilewright.tileir.read import tree
from tilewright.tileir.read.scanner import Scanner

PADDINGS = frozenset(("zero", "neg_zero", "nan", "pos_inf", "neg_inf"))

_EXTENT = re.compile(r"(\d{1,19}|\?)x")
_ELEMENT = re.compile(r"(?:i(?:1|4|8|16|32|64)|b?f16|t?f32|f64|f8E4M3FN|f8E5M2|f8E8M0FNU|f4E2M1FN|fnv8E5M3FNU)(?!\w)")
_TILE_SHAPE = re.compile(r"\(((?:\d{1,19}(?:x\d{1,19})*)?)\)")
_NUMBER = re.compile(r"\d{1,19}|\?")


def read_type(scanner: Scanner) -> tree.Type:
    """Reads a type. Raises ReadError if it is unknown."""
    start = scanner.at
    scanner.accept("!cuda_tile.")
    kind = scanner.word()
    if kind == "token":
        return tree.TokenType()
    if kind not in ("tile", "tensor_view", "partition_view", "strided_view", "gather_scatter_view"):
        raise scanner.error(f"unknown type '{kind}'", start)
    scanner.expect("<")
    readers: dict[str, Callable[[Scanner], tree.Type]] = {"tile": _tile, "tensor_view": _tensor_view}
    type_ = readers[kind](scanner) if kind in readers else _view(scanner, kind)
    scanner.expect(">")
    return type_


def read_element(scanner: Scanner) -> str:
    return scanner.need(_ELEMENT, "an element type")[0]


def _tile(scanner: Scanner) -> tree.TileType:
    start = scanner.at
    extents = _known(scanner, start, _shape(scanner), "the extents of a tile must be known numbers")
    scanner.accept("!cuda_tile.")
    if not scanner.accept("ptr"):
        return tree.TileType(extents, read_element(scanner))
    scanner.expect("<")
    pointee = read_element(scanner)
    scanner.expect(">")
    return tree.TileType(extents, tree.PointerType(pointee))


def _tensor_view(scanner: Scanner) -> tree.TensorViewType:
    start = scanner.at
    shape = _shape(scanner)
    element = read_element(scanner)
    strides: tuple[int | None, ...] = ()
    if scanner.accept(","):
        scanner.expect("strides", "=")
        strides = _numbers(scanner)
    if len(strides) != len(shape):
        raise scanner.error(f"{len(shape)} extents, but {len(strides)} strides", start)
    return tree.TensorViewType(shape, element, strides)


def _view(scanner: Scanner, kind: str) -> tree.ViewType:
    scanner.expect("tile", "=")
    tile = tuple(int(extent) for extent in scanner.need(_TILE_SHAPE, "a tile's shape")[1].split("x") if extent)
    scanner.expect(",")
    steps: tuple[int, ...] = ()
    if kind == "strided_view":
        scanner.expect("traversal_strides", "=")
        steps = _list(scanner)
        scanner.expect(",")
    padding, start, tensor = _padding(scanner), scanner.at, read_type(scanner)
    if not isinstance(tensor, tree.TensorViewType):
        raise scanner.error("a view must be of a tensor_view", start)
    if kind == "gather_scatter_view":
        scanner.expect(",", "sparse_dim", "=")
        return tree.GatherScatterViewType(tile, scanner.integer(), padding, tensor)
    dim_map = tuple(range(len(tile)))  # omitted in the text if the axes of the tile are the tensor's, in order
    if scanner.accept(","):
        scanner.expect("dim_map", "=")
        dim_map = _list(scanner)
    if kind == "strided_view":
        return tree.StridedViewType(tile, steps, dim_map, padding, tensor)
    return tree.PartitionViewType(tile, dim_map, padding, tensor)


def _shape(scanner: Scanner) -> tuple[int | None, ...]:
    shape = []
    while extent := scanner.match(_EXTENT):
        shape.append(None if extent[1] == "?" else int(extent[1]))
    return tuple(shape)


def _padding(scanner: Scanner) -> str | None:
    if not scanner.accept("padding_value"):
        return None
    scanner.expect("=")
    start, padding = scanner.at, scanner.word()
    if padding not in PADDINGS:
        raise scanner.error(f"unknown padding value '{padding}'", start)
    scanner.expect(",")
    return padding


def _known(scanner: Scanner, start: int, numbers: tuple[int | None, ...], otherwise: str) -> tuple[int, ...]:
    if None in numbers:
        raise scanner.error(otherwise, start)
    return tuple(number for number in numbers if number is not None)


def _list(scanner: Scanner) -> tuple[int, ...]:
    return _known(scanner, scanner.at, _numbers(scanner), "the numbers must be known")


def _numbers(scanner: Scanner) -> tuple[int | None, ...]:
    texts = scanner.several("[]", lambda: scanner.need(_NUMBER, "a number or '?'")[0])
    return tuple(None if text == "?" else int(text) for text in texts)
