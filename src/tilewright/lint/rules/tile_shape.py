"""TW307: a tile extent that is no power of two."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.lint.tile_code import operation, tile_functions
from tilewright.source.cutile import configurations, searches
from tilewright.source.source_file import SourceFile, argument

SHAPE_AT = {
    "load": (2, "shape"), "full": (0, "shape"), "zeros": (0, "shape"), "ones": (0, "shape"), "arange": (0, "size"),
    "reshape": (1, "shape"),
}  # fmt: skip
TILE = re.compile(r"^(TILE|BLOCK)(_SIZE)?_[A-Z]+$|^(BLOCK|TILE)_SIZE$")


class TileShape:
    about = About(
        code="TW307",
        name="tile-not-power-of-two",
        level="error",
        title="a tile extent is no power of two",
        why="The compiler refuses it with a type error. A text on FP8 says that tiles of 48 or 96 'will not "
        "error'; they do (X-19).",
        fix="round up to a power of two, and pad or mask what is too much",
        sources=("X-19", "K8"),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        seen: set[ast.AST] = set()
        for function in tile_functions(file):
            for call in file.every(ast.Call, function):
                position, keyword = SHAPE_AT.get(operation(file, call), (0, ""))
                shape = argument(call, position, keyword) if keyword else None
                for extent in _extents(shape):
                    if _wrong(extent.value) and extent not in seen:
                        seen.add(extent)
                        yield self.about.at(file, extent, f"a tile cannot have an extent of {extent.value!r}")
        for search in searches(file):
            for record in configurations(file, search.space):
                for name, value in record.items():
                    for extent in _extents(value) if TILE.match(name) else ():
                        if _wrong(extent.value) and extent not in seen:
                            seen.add(extent)
                            yield self.about.at(file, extent, f"{name}={extent.value!r} cannot be a tile's extent")


def _extents(shape: ast.AST | None) -> Iterator[ast.Constant]:
    if isinstance(shape, ast.Constant):
        yield shape
    elif isinstance(shape, (ast.Tuple, ast.List)):
        yield from (one for one in shape.elts if isinstance(one, ast.Constant))


def _wrong(extent: object) -> bool:
    return type(extent) is int and extent > 0 and extent & (extent - 1) != 0


RULE = TileShape()
