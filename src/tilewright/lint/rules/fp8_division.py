"""TW308: an approximate division in front of a conversion to FP8 (A-46 as it is true today)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding, Level
from tilewright.lint.tile_code import operation, tile_functions
from tilewright.source.source_file import Named, SourceFile, keywords, names

FP8 = ("float8", "fp8")
LARGEST = (448.0, 57344.0, 240.0)
"""Of e4m3fn, e5m2 and e4m3fnuz: who divides by one of them makes a scale."""


class Fp8Division:
    about = About(
        code="TW308",
        name="fp8-division",
        level="warning",
        title="a value is divided approximately before it is quantised",
        why="An FP8 bucket is 1/8 to 1/16 of its value wide, and an approximate quotient falls on the other "
        "side of its edge: the codes differ from the reference's (A-46). The advice to write "
        "RoundingMode.FULL is wrong today: in cuda-tile 1.7 with tileiras 13.4.92 FULL and APPROX are both "
        "a reciprocal and a product; only the plain division is correctly rounded.",
        fix="divide with `/`, or ct.truediv without a rounding mode",
        sources=("A-46",),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        for function in tile_functions(file):
            if not self._quantises(file, function):
                continue
            for call in file.every(ast.Call, function):
                if operation(file, call) == "truediv":
                    mode = keywords(call).get("rounding_mode")
                    name = mode.attr if isinstance(mode, ast.Attribute) else ""
                    if name in {"APPROX", "FULL"}:
                        level: Level = "warning" if name == "APPROX" else "note"
                        yield self.about.at(
                            file, call, f"{function.name} quantises to FP8 and divides with RoundingMode.{name}", level
                        )

    def _quantises(self, file: SourceFile, function: Named) -> bool:
        """Whether a tile is converted to FP8 here, by the type's name or after clamping to its largest value."""
        for call in file.every(ast.Call, function):
            last = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            if last == "astype":
                given = ast.unparse(call.args[-1]).lower() if call.args else ""
                if any(word in given for word in FP8):
                    return True
        constants = {one.value for one in file.every(ast.Constant, function) if isinstance(one.value, float)}
        clamps = any(operation(file, call) in {"minimum", "maximum"} for call in file.every(ast.Call, function))
        named = any("fp8_max" in name.lower() for name in names(function))
        return clamps and (bool(constants & set(LARGEST)) or named)


RULE = Fp8Division()
