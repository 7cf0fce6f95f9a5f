"""A tile extent is no power of two.

The compiler of cuda-tile 1.7 refuses it with a type error, also with FP8: tiles of 48 or 96 do not work.

Fix: round up to a power of two, and pad or mask what is too much.

Sources: cuda-tile 1.7.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.lint.tile_code import extents, shape_of, tile_functions
from tilewright.source.cutile import configurations, searches
from tilewright.source.source_file import SourceFile
from tilewright.space.knobs import is_power_of_two

TILE = re.compile(r"^(TILE|BLOCK)(_SIZE)?_[A-Z]+$|^(BLOCK|TILE)_SIZE$")


class TileNotPowerOfTwo(Rule):
    code = "TW307"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for function in tile_functions(file):
            for call in file.every(ast.Call, function):
                for extent in _wrong(shape_of(file, call)):
                    yield self.at(file, extent, f"a tile cannot have an extent of {extent.value!r}")
        records = (record for search in searches(file) for record in configurations(file, search.space))
        for name, value in (pair for record in records for pair in record.items()):
            for extent in _wrong(value) if TILE.match(name) else ():
                yield self.at(file, extent, f"{name}={extent.value!r} cannot be a tile's extent")


def _wrong(shape: ast.expr | None) -> Iterator[ast.Constant]:
    for node in extents(shape):
        extent = node.value if isinstance(node, ast.Constant) else None
        if isinstance(node, ast.Constant) and type(extent) is int and extent > 0 and not is_power_of_two(extent):
            yield node


RULE = TileNotPowerOfTwo()
