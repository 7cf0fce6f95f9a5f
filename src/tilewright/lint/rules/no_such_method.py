"""A tile has no such method.

A tile changes its type by astype alone; the compiler of cuda-tile 1.7 stops at `.to` and `.cast`.

Fix: write `tile.astype(ct.float32)`.

Sources: cuda-tile 1.7.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.lint.tile_code import tile_functions
from tilewright.source.source_file import SourceFile

NOT = {"to", "cast", "float", "half", "bfloat16"}


class NoSuchMethod(Rule):
    code = "TW301"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for function in tile_functions(file):
            for call in file.every(ast.Call, function):
                of_module = file.dotted(call.func).split(".")[0] in {"torch", "cuda", "np", "numpy"}
                if isinstance(call.func, ast.Attribute) and call.func.attr in NOT and not of_module:
                    yield self.at(file, call, f"a tile has no method {call.func.attr}; use astype")


RULE = NoSuchMethod()
