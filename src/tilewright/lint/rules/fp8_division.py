"""A value is divided approximately before it is quantised.

An FP8 bucket is 1/8 to 1/16 of its value wide, and an approximate quotient falls on the other side of its edge: the
codes differ from the reference's. The advice to write RoundingMode.FULL is wrong today: in cuda-tile 1.7 with tileiras
13.4.92 FULL and APPROX are both a reciprocal and a product; only the plain division is correctly rounded.

Fix: divide with `/`, or ct.truediv without a rounding mode.

Sources: cuda-tile 1.7; tileiras 13.4.92.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.lint.tile_code import operation, tile_calls
from tilewright.source.source_file import Named, SourceFile, keywords, names, text
from tilewright.source.values import called_name

FP8 = ("float8", "fp8")
LARGEST = {448.0, 57344.0, 240.0}
"""Of e4m3fn, e5m2 and e4m3fnuz: who divides by one of them makes a scale."""


class Fp8Division(Rule):
    code = "TW308"
    level = "warning"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for function, call in tile_calls(file, "truediv"):
            mode = keywords(call).get("rounding_mode")
            name = mode.attr if isinstance(mode, ast.Attribute) else ""
            if name in {"APPROX", "FULL"} and _quantises(file, function):
                message = f"{function.name} quantises to FP8 and divides with RoundingMode.{name}"
                yield self.at(file, call, message, "warning" if name == "APPROX" else "note")


def _quantises(file: SourceFile, function: Named) -> bool:
    """Whether a tile is converted to FP8 here, by the type's name or after clamping to its largest value."""
    calls = list(file.every(ast.Call, function))
    types = [text(call.args[-1]).lower() for call in calls if called_name(call) == "astype" and call.args]
    if any(word in kind for word in FP8 for kind in types):
        return True
    constants = {constant.value for constant in file.every(ast.Constant, function) if type(constant.value) is float}
    named = any("fp8_max" in name.lower() for name in names(function))
    clamps = any(operation(file, call) in {"minimum", "maximum"} for call in calls)
    return clamps and (named or bool(constants & LARGEST))


RULE = Fp8Division()
