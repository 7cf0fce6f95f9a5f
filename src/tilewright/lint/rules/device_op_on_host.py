"""TW304: an operation of tile code in host code (rule 6)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.source.cutile import launches, searches
from tilewright.source.source_file import SourceFile, returned

DEVICE_ONLY = {
    "bid", "num_blocks", "num_tiles", "load", "store", "gather", "scatter", "full", "zeros", "ones", "arange",
    "minimum", "maximum", "min", "max", "sum", "where", "mma", "astype", "exp", "exp2", "log", "log2", "sqrt",
    "rsqrt", "floor", "ceil", "floordiv", "truediv", "mod", "mul", "add", "sub", "pow",
}  # fmt: skip


class DeviceOpOnHost:
    about = About(
        code="TW304",
        name="device-op-on-host",
        level="error",
        title="an operation of tile code computes a grid",
        why="Grids are plain Python integers: of cuda.tile's operations only cdiv works on the host (rule "
        "6), the others raise 'Device functions can only be called from device code'.",
        fix="use Python's own arithmetic, or ct.cdiv",
        sources=("rule 6",),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        grids = [(launch.grid, launch.call) for launch in launches(file)]
        for search in searches(file):
            function = file.function(search.grid_fn)
            grids += [(value, search.call) for value in returned(function)] if function is not None else []
        seen = set()
        for grid, _ in grids:
            for value in file.values(grid) if grid is not None else ():
                for call in file.every(ast.Call, value):
                    prefix, _, name = file.dotted(call.func).rpartition(".")
                    if prefix == "cuda.tile" and name in DEVICE_ONLY and call not in seen:
                        seen.add(call)
                        yield self.about.at(file, call, f"{name} of cuda.tile does not work on the host")


RULE = DeviceOpOnHost()
