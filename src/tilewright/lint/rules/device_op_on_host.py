"""An operation of tile code computes a grid.

Grids are plain Python integers: of cuda-tile 1.7's operations only cdiv works on the host, the others raise 'Device
functions can only be called from device code'.

Fix: use Python's own arithmetic, or ct.cdiv.

Sources: cuda-tile 1.7.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.lint.tile_code import operation
from tilewright.source.cutile import passed
from tilewright.source.source_file import SourceFile

DEVICE_ONLY = {
    "bid", "num_blocks", "num_tiles", "load", "store", "gather", "scatter", "full", "zeros", "ones", "arange",
    "minimum", "maximum", "min", "max", "sum", "where", "mma", "astype", "exp", "exp2", "log", "log2", "sqrt",
    "rsqrt", "floor", "ceil", "floordiv", "truediv", "mod", "mul", "add", "sub", "pow",
}  # fmt: skip


class DeviceOpOnHost(Rule):
    code = "TW304"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for grid in passed(file, "grid"):
            for call in file.every(ast.Call, grid):
                if (name := operation(file, call)) in DEVICE_ONLY:
                    yield self.at(file, call, f"{name} of cuda.tile does not work on the host")


RULE = DeviceOpOnHost()
