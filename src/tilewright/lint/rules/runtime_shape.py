"""A tile's shape must be constant.

cuda-tile 1.7 fixes the shapes of tiles when the kernel is compiled; a plain parameter is known only at the launch, and
the compiler refuses it.

Fix: annotate the parameter with ct.Constant[int].

Sources: cuda-tile 1.7.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.lint.tile_code import annotation, extents, shape_of
from tilewright.source.cutile import kernels
from tilewright.source.source_file import SourceFile, parameters, text


class RuntimeShape(Rule):
    code = "TW310"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for kernel in kernels(file):
            plain = {
                parameter.arg
                for parameter in parameters(kernel.node)
                if parameter.annotation is None or annotation(file, parameter) == "scalar"
            }
            for call in file.every(ast.Call, kernel.node) if plain else ():
                for extent in extents(shape_of(file, call)):
                    bindings = file.bindings(extent.id, extent) if isinstance(extent, ast.Name) else ()
                    if text(extent) in plain and [binding.kind for binding in bindings] == ["parameter"]:
                        message = f"{text(extent)} is a run-time parameter of {kernel.name}, not a constant"
                        yield self.at(file, extent, message)


RULE = RuntimeShape()
