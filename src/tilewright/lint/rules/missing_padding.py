"""What lies past the end of K is added to the product.

The loop rounds the number of tiles up, and without padding_mode the elements past the end are undetermined. On Ampere
(sm_80) they are not zero: where K is no multiple of the tile, the sum is wrong. On Hopper and Blackwell the hardware
happens to fill in zeros, so tests there pass.

Fix: padding_mode=ct.PaddingMode.ZERO on the load; check_bounds=False where K is always a multiple.

Sources: cuda-tile 1.7.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.lint.tile_code import operation, tile_functions
from tilewright.source.source_file import Named, SourceFile, argument, keywords, names, text
from tilewright.source.values import called_name

ROUNDS_UP = ("cdiv", "num_tiles", "ceil")
KEEPS_AXES = {"astype"}


class MissingPadding(Rule):
    code = "TW306"
    level = "warning"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for function in tile_functions(file):
            for loop in file.every(ast.For, function):
                if isinstance(loop.target, ast.Name) and _rounds_up(file, loop.iter):
                    yield from self._in(file, loop, loop.target.id)

    def _in(self, file: SourceFile, loop: ast.For, counter: str) -> Iterator[LintFinding]:
        loaded: dict[str, tuple[ast.Call, int]] = {}
        for node in sorted(file.every(ast.stmt, loop), key=lambda statement: (statement.lineno, statement.col_offset)):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                load = _bare_load(file, node.value, counter)
                if load is not None and not _padded_elsewhere(file, load[0]):
                    loaded[name] = load
                elif not (name in loaded and name in names(node.value) and _keeps_axes(node.value)):
                    loaded.pop(name, None)
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr)):
                yield from self._summed(file, node, loaded, counter)

    def _summed(
        self, file: SourceFile, statement: ast.stmt, loaded: dict[str, tuple[ast.Call, int]], counter: str
    ) -> Iterator[LintFinding]:
        """Factors of a product that walk along what it sums over: the last axis of the first, the first of the
        second."""
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
    """Whether a `range` counts tiles with the last one in part."""
    if not isinstance(bound, ast.Call) or file.dotted(bound.func) != "range" or not bound.args:
        return False
    end = file.value(bound.args[:2][-1])
    return isinstance(end, ast.Call) and called_name(end) in ROUNDS_UP


def _bare_load(file: SourceFile, value: ast.expr, counter: str) -> tuple[ast.Call, int] | None:
    """A two-dimensional `ct.load` without padding, and the axis that the loop walks."""
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
    """``ct.astype(a, …)`` and ``a.astype(…)``: still the loaded tile."""
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in KEEPS_AXES


def _padded_elsewhere(file: SourceFile, load: ast.Call) -> bool:
    """Whether another arm of a condition loads the same with padding: the author knows where K is even."""
    for parent, _ in file.above(load):
        if isinstance(parent, Named):
            break
        for call in file.every(ast.Call, parent) if isinstance(parent, ast.If) and load.args else ():
            padded = operation(file, call) == "load" and "padding_mode" in keywords(call) and call.args
            if padded and text(call.args[0]) == text(load.args[0]):
                return True
    return False


RULE = MissingPadding()
