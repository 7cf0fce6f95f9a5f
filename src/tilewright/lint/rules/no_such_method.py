"""TW301: `.to(…)` and `.cast(…)` on a tile (rule 7)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.lint.tile_code import tile_functions
from tilewright.source.source_file import SourceFile

NOT = {"to", "cast", "float", "half", "bfloat16"}


class NoSuchMethod:
    about = About(
        code="TW301",
        name="no-such-method",
        level="error",
        title="a tile has no such method",
        why="A tile changes its type by astype alone (rule 7); the compiler stops at `.to` and `.cast`.",
        fix="write `tile.astype(ct.float32)`",
        sources=("rule 7",),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        seen = set()
        for function in tile_functions(file):
            for call in file.every(ast.Call, function):
                method = call.func
                if isinstance(method, ast.Attribute) and method.attr in NOT and call not in seen:
                    root = file.dotted(method).split(".")[0]
                    if root not in {"torch", "cuda", "np", "numpy"}:
                        seen.add(call)
                        yield self.about.at(file, call, f"a tile has no method {method.attr}; use astype")


RULE = NoSuchMethod()
