"""Rules about tile code: its calls, and its loops over arrays."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tilewright.lint.rule import LintFinding, Rule
from tilewright.lint.tile_code import in_tile_code, operation, tile_calls, tile_functions
from tilewright.source.cutile import kernels, passed
from tilewright.source.source_file import SourceFile, argument, assignments, keywords, names, own, parameters
from tilewright.source.values import called_name

NO_METHODS = {"to", "cast", "float", "half", "bfloat16"}
WRITE_INSTEAD = {
    "constexpr": "annotate the parameter with ct.Constant[int]",
    "autotune_launch": "use cuda.tile.tune.exhaustive_search and ct.launch",
    "cast": "use ct.astype",
    "program_id": "use ct.bid",
    "num_programs": "use ct.num_blocks",
    "dot": "use ct.mma",
    "sigmoid": "write 1 / (1 + ct.exp(-x))",
    "clamp": "use ct.minimum and ct.maximum",
}
DEVICE_ONLY = {
    "bid", "num_blocks", "num_tiles", "load", "store", "gather", "scatter", "full", "zeros", "ones", "arange",
    "minimum", "maximum", "min", "max", "sum", "where", "mma", "astype", "exp", "exp2", "log", "log2", "sqrt",
    "rsqrt", "floor", "ceil", "floordiv", "truediv", "mod", "mul", "add", "sub", "pow",
}  # fmt: skip
ROUNDS_UP = ("cdiv", "num_tiles", "ceil")


class NoSuchMethod(Rule):
    """A tile has no such method.

    Only astype changes the type of a tile. The compiler of cuda-tile 1.7 rejects `.to` and `.cast`.
    Fix: write `tile.astype(ct.float32)`.
    Sources: cuda-tile 1.7.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for _, call in tile_calls(file):
            of_module = file.dotted(call.func).split(".")[0] in {"torch", "cuda", "np", "numpy"}
            if isinstance(call.func, ast.Attribute) and call.func.attr in NO_METHODS and not of_module:
                yield self.at(file, call, f"a tile has no method {call.func.attr}; use astype")


class NoSuchName(Rule):
    """cuda.tile has no such name.

    Documents and language models often use names of other languages, such as ct.constexpr, which cuda-tile 1.7 does not
    have. The line raises AttributeError. The rule compares with the names of the installed cuda-tile.
    Fix: see the message, or the list of names in cuda.tile.
    Sources: cuda-tile 1.7.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        known = names_of_cutile() if "cuda" in file.packages else frozenset[str]()
        for node in file.every(ast.Attribute) if known else ():
            if file.dotted(node.value) != "cuda.tile" or node.attr in known or node.attr.startswith("_"):
                continue
            if not any(isinstance(parent, ast.Try) for parent, _ in file.above(node)):
                instead = f"; {WRITE_INSTEAD[node.attr]}" if node.attr in WRITE_INSTEAD else ""
                yield self.at(file, node, f"cuda.tile has no {node.attr}{instead}")


@cache
def names_of_cutile() -> frozenset[str]:
    """Returns the names in `cuda.tile`, read from its source text; empty if cuda-tile is not installed."""
    cuda = importlib.util.find_spec("cuda")
    for folder in cuda.submodule_search_locations or () if cuda is not None else ():
        package = Path(folder) / "tile"
        if (package / "__init__.py").is_file():
            submodules = {path.stem for path in package.iterdir() if not path.name.startswith("_")}
            return frozenset(submodules | SourceFile.read(package / "__init__.py").imports.keys())
    return frozenset()


class KernelCalled(Rule):
    """A kernel is called like a function.

    In cuda-tile 1.7 a kernel can only be launched. A call of a kernel raises TypeError, on the host and in another
    kernel. A function that a kernel calls needs no decorator.
    Fix: launch the kernel with ct.launch, or remove the decorator from a function that kernels call.
    Sources: cuda-tile 1.7.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        decorated = {kernel.node for kernel in kernels(file) if kernel.node.decorator_list}
        for call in file.every(ast.Call) if decorated else ():
            if isinstance(call.func, ast.Name) and file.value(call.func) in decorated:
                fix = "remove its decorator" if in_tile_code(file, call) else "launch it with ct.launch"
                yield self.at(file, call, f"{call.func.id} is a kernel and cannot be called: {fix}")


class DeviceOpOnHost(Rule):
    """A grid is computed with an operation of tile code.

    Grids are plain Python integers. Of the operations of cuda-tile 1.7 only cdiv works on the host; the others raise
    'Device functions can only be called from device code'.
    Fix: use Python's own arithmetic, or ct.cdiv.
    Sources: cuda-tile 1.7.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for grid in passed(file, "grid"):
            for call in file.every(ast.Call, grid):
                if (name := operation(file, call)) in DEVICE_ONLY:
                    yield self.at(file, call, f"{name} of cuda.tile does not work on the host")


class SwizzleWithoutClamp(Rule):
    """The last group of the swizzle is not clamped.

    If the number of tile rows is not a multiple of the group's height, some tiles are never computed, and others are
    out of bounds. With groups of 8 rows, for example, 6 of 10×4 tiles are never computed.
    Fix: `group_m = min(num_m - first_m, GROUP_M)`, and use group_m for both the remainder and the quotient.
    Sources: Triton's tutorial on matrix multiplication, which clamps.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for function in tile_functions(file):
            assigned = dict(assignments(own(function, ast.Assign)))
            for first, height in _group_starts(assigned):
                for name, row in assigned.items():
                    is_sum = isinstance(row, ast.BinOp) and isinstance(row.op, ast.Add)
                    if name != first and is_sum and first in names(row) and _remainder_by(file, row, height):
                        message = f"{name} takes the remainder by {height}, but the last group may have fewer rows"
                        yield self.at(file, row, message)


def _group_starts(assigned: dict[str, ast.expr]) -> Iterator[tuple[str, str]]:
    """Yields, for each swizzle, the variable that holds the first row of a group, and the group's height.

    The code is ``group = bid // (height * n)``, then ``first = group * height``; the rows are ``first + … % height``.
    """
    for first, value in assigned.items():
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
            factors = [side for side in (value.left, value.right) if isinstance(side, (ast.Name, ast.Constant))]
            heights = (ast.unparse(factor) for factor in factors)
            yield from ((first, height) for height in heights if _has_group(assigned, value, height))


def _has_group(assigned: dict[str, ast.expr], value: ast.expr, height: str) -> bool:
    for name in names(value) - {height}:
        quotient = assigned.get(name)
        if isinstance(quotient, ast.BinOp) and isinstance(quotient.op, ast.FloorDiv):
            size = quotient.right
            if isinstance(size, ast.Name):
                size = assigned.get(size.id, size)
            if isinstance(size, ast.BinOp) and isinstance(size.op, ast.Mult) and height in names(size):
                return True
    return False


def _remainder_by(file: SourceFile, value: ast.expr, height: str) -> bool:
    remainders = (node for node in file.every(ast.BinOp, value) if isinstance(node.op, ast.Mod))
    return any(ast.unparse(node.right) == height for node in remainders)


class MissingPadding(Rule):
    """Elements past the end of K are added to the product.

    The loop rounds the number of tiles up, and without padding_mode the elements past the end are undefined. On Ampere
    (sm_80) these elements are not zero, so the sum is wrong if K is not a multiple of the tile. On Hopper and Blackwell
    the hardware happens to fill in zeros, so tests there pass.
    Fix: set padding_mode=ct.PaddingMode.ZERO on the load, or check_bounds=False if K is always a multiple.
    Sources: cuda-tile 1.7.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for function in tile_functions(file):
            for loop in file.every(ast.For, function):
                if isinstance(loop.target, ast.Name) and _rounds_up(file, loop.iter):
                    yield from self._in(file, loop, loop.target.id)

    def _in(self, file: SourceFile, loop: ast.For, counter: str) -> Iterator[LintFinding]:
        loaded: dict[str, tuple[ast.Call, int]] = {}
        for node in sorted(file.every(ast.stmt, loop), key=lambda statement: (statement.lineno, statement.col_offset)):
            for name, value in assignments([node]):
                load = _bare_load(file, value, counter)
                if load is not None and not _padded_elsewhere(file, load[0]):
                    loaded[name] = load
                elif not (name in loaded and name in names(value) and _keeps_axes(value)):
                    loaded.pop(name, None)
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr)):
                yield from self._summed(file, node, loaded, counter)

    def _summed(
        self, file: SourceFile, statement: ast.stmt, loaded: dict[str, tuple[ast.Call, int]], counter: str
    ) -> Iterator[LintFinding]:
        """Yields a finding for each product in ``statement`` that sums over tiles ``loaded`` without padding.

        The sum runs along the last axis of the first factor and along the first axis of the second.
        """
        for call in file.every(ast.Call, statement):
            if operation(file, call) not in {"mma", "matmul"}:
                continue
            for position, axis in ((0, 1), (1, 0)):
                factor = argument(call, position, "xy"[position])
                if not isinstance(factor, ast.Name) or factor.id not in loaded:
                    continue
                load, walked = loaded[factor.id]
                if walked == axis:
                    del loaded[factor.id]
                    message = f"{factor.id} is loaded without padding_mode along {counter}, over which the product sums"
                    yield self.at(file, load, message)


def _rounds_up(file: SourceFile, bound: ast.expr) -> bool:
    """Returns whether ``bound`` is a `range` over tiles whose number is rounded up: the last tile may be partial."""
    if not isinstance(bound, ast.Call) or file.dotted(bound.func) != "range" or not bound.args:
        return False
    end = file.value(bound.args[:2][-1])
    return isinstance(end, ast.Call) and called_name(end) in ROUNDS_UP


def _bare_load(file: SourceFile, value: ast.expr, counter: str) -> tuple[ast.Call, int] | None:
    """Returns a two-dimensional `ct.load` without padding, and the axis that the loop counter indexes."""
    while _keeps_axes(value) and isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if operation(file, value):
            break
        value = value.func.value
    if not isinstance(value, ast.Call) or operation(file, value) != "load":
        return None
    if {"padding_mode", "check_bounds", "order", None} & {keyword.arg for keyword in value.keywords}:
        return None
    index = argument(value, 1, "index")
    if not isinstance(index, ast.Tuple) or len(index.elts) != 2:
        return None
    walked = [axis for axis, part in enumerate(index.elts) if isinstance(part, ast.Name) and part.id == counter]
    return (value, walked[0]) if len(walked) == 1 else None


def _keeps_axes(value: ast.expr) -> bool:
    """Returns whether a call keeps the axes of the loaded tile: ``ct.astype(a, …)`` or ``a.astype(…)``."""
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "astype"


def _padded_elsewhere(file: SourceFile, load: ast.Call) -> bool:
    """Returns whether another branch loads the same array with padding, so that this branch handles whole tiles."""
    arms = (parent for parent, _ in file.within(load) if isinstance(parent, ast.If))
    loads = (call for arm in arms for call in file.every(ast.Call, arm) if operation(file, call) == "load")
    padded = [call for call in loads if "padding_mode" in keywords(call) and call.args and load.args]
    return any(ast.unparse(call.args[0]) == ast.unparse(load.args[0]) for call in padded)


class UnusedParameter(Rule):
    """A kernel does not use a parameter.

    cuda-tile 1.7 packs and passes the parameter at every launch. For each value of an unused constant, another kernel
    is compiled. This is not an error but a matter of style, so the rule is off unless selected.
    Fix: remove the parameter from the signature and the launches.
    Sources: cuda-tile 1.7.
    """

    by_default = False

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for kernel in kernels(file):
            used = {name.id for statement in kernel.node.body for name in file.every(ast.Name, statement)}
            for parameter in parameters(kernel.node):
                if parameter.arg not in used and not parameter.arg.startswith("_"):
                    yield self.at(file, parameter, f"{kernel.name} does not use {parameter.arg}")


RULES = (
    NoSuchMethod("TW301"),
    NoSuchName("TW302"),
    KernelCalled("TW303"),
    DeviceOpOnHost("TW304"),
    SwizzleWithoutClamp("TW305"),
    MissingPadding("TW306", "warning"),
    UnusedParameter("TW311", "note"),
)
