"""Rules about tiles and launches: the shapes, indices and values of tiles, and the arguments of a launch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.lint.tile_code import annotation, extents, operation, shape_of, tile_calls
from tilewright.source.cutile import configurations, kernels, passed, searches
from tilewright.source.source_file import Named, SourceFile, argument, elements, keywords, names, parameters
from tilewright.source.values import called_name
from tilewright.space.knobs import is_power_of_two

TILE = re.compile(r"^(TILE|BLOCK)(_SIZE)?_[A-Z]+$|^(BLOCK|TILE)_SIZE$")
FP8 = ("float8", "fp8")
LARGEST = {448.0, 57344.0, 240.0}
"""The largest values of e4m3fn, e5m2 and e4m3fnuz. A kernel with such a constant quantises to FP8."""


class TileNotPowerOfTwo(Rule):
    """A tile extent is no power of two.

    The compiler of cuda-tile 1.7 rejects the tile with a type error, also with FP8: tiles of 48 or 96 do not work.
    Fix: round up to a power of two, and pad or mask the rest.
    Sources: cuda-tile 1.7.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for _, call in tile_calls(file):
            for extent in _odd_extents(shape_of(file, call)):
                yield self.at(file, extent, f"a tile cannot have an extent of {extent.value!r}")
        records = (record for search in searches(file) for record in configurations(file, search.space))
        for name, value in (pair for record in records for pair in record.items()):
            for extent in _odd_extents(value) if TILE.match(name) else ():
                yield self.at(file, extent, f"{name}={extent.value!r} cannot be a tile's extent")


def _odd_extents(shape: ast.expr | None) -> Iterator[ast.Constant]:
    for node in extents(shape):
        extent = node.value if isinstance(node, ast.Constant) else None
        if isinstance(node, ast.Constant) and type(extent) is int and extent > 0 and not is_power_of_two(extent):
            yield node


class Fp8Division(Rule):
    """A value is divided approximately before it is quantised.

    Neighbouring FP8 numbers differ by 1/8 to 1/16 of their value. An approximate quotient may be rounded to a neighbour
    of the right number, so the result differs from the reference. RoundingMode.FULL does not help: in cuda-tile 1.7
    with tileiras 13.4.92, FULL and APPROX both multiply by a reciprocal; only the plain division is correctly rounded.
    Fix: divide with `/`, or ct.truediv without a rounding mode.
    Sources: cuda-tile 1.7; tileiras 13.4.92.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for function, call in tile_calls(file, "truediv"):
            mode = keywords(call).get("rounding_mode")
            name = mode.attr if isinstance(mode, ast.Attribute) else ""
            if name in {"APPROX", "FULL"} and _quantises(file, function):
                message = f"{function.name} quantises to FP8 and divides with RoundingMode.{name}"
                yield self.at(file, call, message, "warning" if name == "APPROX" else "note")


def _quantises(file: SourceFile, function: Named) -> bool:
    """Returns whether a function converts tiles to FP8: it uses the type's name, or it clamps values to an FP8
    limit."""
    calls = list(file.every(ast.Call, function))
    types = [ast.unparse(call.args[-1]).lower() for call in calls if called_name(call) == "astype" and call.args]
    if any(word in kind for word in FP8 for kind in types):
        return True
    constants = {constant.value for constant in file.every(ast.Constant, function) if type(constant.value) is float}
    named = any("fp8_max" in name.lower() for name in names(function))
    clamps = any(operation(file, call) in {"minimum", "maximum"} for call in calls)
    return clamps and (named or bool(constants & LARGEST))


class ElementIndex(Rule):
    """The index of a load or store counts elements.

    In cuda-tile 1.7 ct.load and ct.store count in tiles of the given shape, so `bid * TILE` is TILE times too far. A
    tile that is completely outside its array is undefined behaviour. Only gather and scatter count elements.
    Fix: drop the factor: `index=(bid,)`.
    Sources: cuda-tile 1.7.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for _, call in tile_calls(file, "load"):
            pairs = zip(extents(argument(call, 1, "index")), extents(argument(call, 2, "shape")), strict=False)
            for index, extent in pairs:
                value = file.value(index)
                if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult):
                    continue
                factors = (ast.unparse(value.left), ast.unparse(value.right))
                if not isinstance(extent, ast.Constant) and ast.unparse(extent) in factors:
                    tiles = f"the index counts tiles of {ast.unparse(extent)}"
                    yield self.at(file, index, f"{ast.unparse(index)} counts elements, but {tiles}")


class RuntimeShape(Rule):
    """A tile's shape must be constant.

    cuda-tile 1.7 fixes the shapes of tiles at compile time. It rejects a plain parameter, which only the launch knows.
    Fix: annotate the parameter with ct.Constant[int].
    Sources: cuda-tile 1.7.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for kernel in kernels(file):
            declared = parameters(kernel.node)
            plain = {one.arg for one in declared if one.annotation is None or annotation(file, one) == "scalar"}
            for call in file.every(ast.Call, kernel.node) if plain else ():
                for extent in extents(shape_of(file, call)):
                    bindings = file.bindings(extent.id, extent) if isinstance(extent, ast.Name) else ()
                    if ast.unparse(extent) in plain and [binding.kind for binding in bindings] == ["parameter"]:
                        message = f"{ast.unparse(extent)} is a run-time parameter of {kernel.name}, not a constant"
                        yield self.at(file, extent, message)


class NotAnArgument(Rule):
    """A launch cannot take this argument.

    A launch takes arrays, lists of arrays and numbers. None and strings raise TypeError, also in cuda-tile 1.7.
    Fix: replace None by a tensor of one element, and pass a constant that says whether to use the tensor; replace a
    string by a number.
    Sources: cuda-tile 1.7.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for arguments in passed(file, "arguments"):
            for wrong in map(_invalid_argument, elements(arguments)):
                if wrong is not None:
                    what = "None" if wrong.value is None else f"the string {wrong.value!r}"
                    yield self.at(file, wrong, f"{what} is passed to a kernel")


def _invalid_argument(node: ast.expr) -> ast.Constant | None:
    if isinstance(node, ast.IfExp):
        return _invalid_argument(node.body) or _invalid_argument(node.orelse)
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str)):
        return node
    return None


class GridShape(Rule):
    """A grid must be a tuple of one to three integers.

    Other grids raise an error at the launch: 'Grid must be a tuple', 'Grid dimensions must be at most 3'. A true
    division makes a float, which raises an error, too.
    Fix: write `(blocks,)`, with // or ct.cdiv for quotients.
    Sources: cuda-tile 1.7.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for grid in passed(file, "grid"):
            if wrong := _why_no_grid(grid):
                yield self.at(file, grid, wrong)


def _why_no_grid(value: ast.AST) -> str:
    if isinstance(value, (ast.List, ast.Set)):
        return "a list is passed as the grid; it must be a tuple"
    quotient = isinstance(value, ast.BinOp) and isinstance(value.op, (ast.FloorDiv, ast.Div))  # sums may join tuples
    if quotient or isinstance(value, ast.Constant):
        return "a number is passed as the grid; it must be a tuple, such as (blocks,)"
    if isinstance(value, ast.Tuple) and not any(isinstance(element, ast.Starred) for element in value.elts):
        if not 1 <= len(value.elts) <= 3:
            return f"a grid of {len(value.elts)} numbers; it must have one to three"
        if any(isinstance(element, ast.BinOp) and isinstance(element.op, ast.Div) for element in value.elts):
            return "a true division makes a float in this grid; use // or ct.cdiv"
    return ""


class AutotuneLaunch(Rule):
    """autotune_launch no longer exists.

    cuda-tile 1.7 no longer has cuda.tile_experimental.autotune_launch, so its import fails.
    Fix: search with cuda.tile.tune.exhaustive_search, keep the winner, launch with ct.launch.
    Sources: cuda-tile 1.7.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for name, calls in file.calls.items() if "tile_experimental" in file.text else ():
            for call in calls if name.startswith("cuda.tile_experimental.") else ():
                yield self.at(file, call, "autotune_launch no longer exists; use cuda.tile.tune.exhaustive_search")


RULES = (
    TileNotPowerOfTwo("TW307"),
    Fp8Division("TW308", "warning"),
    ElementIndex("TW309"),
    RuntimeShape("TW310"),
    NotAnArgument("TW401"),
    GridShape("TW402"),
    AutotuneLaunch("TW403"),
)
