"""TW310: a tile shape from a run-time number (rule 17)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.lint.rules.element_index import elements
from tilewright.lint.rules.tile_shape import SHAPE_AT
from tilewright.lint.tile_code import annotation, operation
from tilewright.source.cutile import kernels
from tilewright.source.source_file import SourceFile, argument, parameters


class RuntimeShape:
    about = About(
        code="TW310",
        name="runtime-shape",
        level="error",
        title="a tile's shape must be constant",
        why="Shapes of tiles are fixed when the kernel is compiled (rule 17); a plain parameter is known "
        "only at the launch, and the compiler refuses it.",
        fix="annotate the parameter with ct.Constant[int]",
        sources=("rule 17",),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        for kernel in kernels(file):
            plain = {one.arg for one in parameters(kernel.node) if annotation(file, one) == "scalar"}
            plain |= {one.arg for one in parameters(kernel.node) if one.annotation is None}
            for call in file.every(ast.Call, kernel.node) if plain else ():
                position, keyword = SHAPE_AT.get(operation(file, call), (0, ""))
                for extent in elements(argument(call, position, keyword)) if keyword else ():
                    if isinstance(extent, ast.Name) and extent.id in plain and self._untouched(file, extent):
                        yield self.about.at(
                            file, extent, f"{extent.id} is a run-time parameter of {kernel.name}, not a constant"
                        )

    def _untouched(self, file: SourceFile, name: ast.Name) -> bool:
        return [one.kind for one in file.bindings(name.id, name)] == ["parameter"]


RULE = RuntimeShape()
