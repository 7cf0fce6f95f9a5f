"""TW306: a product's loop over ragged K without a padding mode (playbook A)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.lint.tile_code import operation, tile_functions
from tilewright.source.source_file import Named, SourceFile, argument, keywords, names, text

ROUNDS_UP = ("cdiv", "num_tiles", "ceil")
KEEPS_AXES = {"astype"}


class MissingPadding:
    about = About(
        code="TW306",
        name="missing-padding",
        level="warning",
        title="what lies past the end of K is added to the product",
        why="The loop rounds the number of tiles up, and without padding_mode the elements past the end are "
        "undetermined. On Ampere they are not zero (playbook A): where K is no multiple of the tile, the "
        "sum is wrong. On Hopper and Blackwell the hardware happens to fill in zeros, so tests there pass.",
        fix="padding_mode=ct.PaddingMode.ZERO on the load; check_bounds=False where K is always a multiple",
        sources=("playbook A", "rule 14"),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        for function in tile_functions(file):
            for loop in file.every(ast.For, function):
                if isinstance(loop.target, ast.Name) and self._rounds_up(file, function, loop.iter):
                    yield from self._in(file, loop, loop.target.id)

    def _rounds_up(self, file: SourceFile, function: Named, bound: ast.expr) -> bool:
        """Whether a `range` counts tiles with the last one in part."""
        if not isinstance(bound, ast.Call) or file.dotted(bound.func) != "range":
            return False
        end = bound.args[1] if len(bound.args) > 1 else bound.args[0] if bound.args else None
        value = file.value(end) if end is not None else None
        return isinstance(value, ast.Call) and file.dotted(value.func).rpartition(".")[2] in ROUNDS_UP

    def _in(self, file: SourceFile, loop: ast.For, counter: str) -> Iterator[Finding]:
        loaded: dict[str, tuple[ast.Call, int]] = {}
        for node in sorted(file.every(ast.stmt, loop), key=lambda one: (one.lineno, one.col_offset)):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                load, axis = self._bare_load(file, node.value, counter)
                if load is not None and axis is not None and not self._other_arm(file, load):
                    loaded[name] = (load, axis)
                elif not _same_tile(file, node.value, loaded, name):
                    loaded.pop(name, None)
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr)):
                yield from self._summed(file, node, loaded, counter)

    def _summed(
        self, file: SourceFile, statement: ast.stmt, loaded: dict[str, tuple[ast.Call, int]], counter: str
    ) -> Iterator[Finding]:
        """Factors of a product that walk along what it sums over: the last axis of the first, the first of the
        second."""
        for call in file.every(ast.Call, statement):
            if operation(file, call) not in {"mma", "matmul"}:
                continue
            for position, axis in ((0, 1), (1, 0)):
                factor = argument(call, position, ("x", "y")[position])
                if not isinstance(factor, ast.Name) or factor.id not in loaded:
                    continue
                load, walked = loaded[factor.id]
                if walked == axis:
                    del loaded[factor.id]
                    yield self.about.at(
                        file, load,
                        f"{factor.id} is loaded without padding_mode along {counter}, over which the product sums",
                    )  # fmt: skip

    def _bare_load(self, file: SourceFile, value: ast.expr, counter: str) -> tuple[ast.Call | None, int | None]:
        """A two-dimensional `ct.load` without padding, and the axis that the loop walks."""
        while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in KEEPS_AXES:
            if operation(file, value):
                break
            value = value.func.value
        if not isinstance(value, ast.Call) or operation(file, value) != "load":
            return None, None
        given = keywords(value)
        if {"padding_mode", "check_bounds", "order"} & set(given) or None in {one.arg for one in value.keywords}:
            return None, None
        index = argument(value, 1, "index")
        if not isinstance(index, ast.Tuple) or len(index.elts) != 2:
            return None, None
        walked = [axis for axis, one in enumerate(index.elts) if isinstance(one, ast.Name) and one.id == counter]
        return value, walked[0] if len(walked) == 1 else None

    def _other_arm(self, file: SourceFile, load: ast.Call) -> bool:
        """Whether another arm of a condition loads the same with padding: the author knows where K is even."""
        for parent, _ in file.above(load):
            if isinstance(parent, ast.If):
                twins = [call for call in file.every(ast.Call, parent) if operation(file, call) == "load"]
                if any("padding_mode" in keywords(call) and text(call.args[0]) == text(load.args[0])
                       for call in twins if call.args and load.args):  # fmt: skip
                    return True
            if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
                break
        return False


def _same_tile(file: SourceFile, value: ast.expr, loaded: dict[str, tuple[ast.Call, int]], name: str) -> bool:
    """``a = ct.astype(a, …)``: still the loaded tile."""
    if name not in loaded or name not in names(value) or not isinstance(value, ast.Call):
        return False
    last = value.func.attr if isinstance(value.func, ast.Attribute) else ""
    return last in KEEPS_AXES


RULE = MissingPadding()
