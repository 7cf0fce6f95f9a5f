"""The rule about searches that time something else than what is launched."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.lint.tile_code import annotation
from tilewright.source.cutile import LaunchSite, SearchSite, kernels_of, launches, searches
from tilewright.source.source_file import SourceFile, elements, names, parameters, returned

MADE = {"ones", "full", "rand", "randn", "randint", "arange"}
"""Functions that make input data. Those that make scratch arrays, such as ``empty``, are not among them."""


class SearchedOtherwise(Rule):
    """The search times another kernel, another grid or other data than the launch that uses its winner.

    exhaustive_search of cuda-tile 1.7 knows only its own grid, kernel and arguments. The fastest configuration depends
    on all three, so its winner need not be the fastest for what is launched. Clones, and scratch arrays that are made
    like the launched ones, are the same data.
    Fix: write the grid and the arguments as functions of the configuration, and pass them to the search and the launch.
    Sources: cuda-tile 1.7: cuda.tile.tune.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for search in searches(file):
            owner = file.owner(search.call)
            others = [other for other in searches(file) if file.owner(other.call) is owner]
            sites = [site for site in launches(file) if file.owner(site.call) is owner]
            after = [site for site in sites if site.call.lineno > search.call.lineno]
            if owner is None or len(others) > 1 or len(after) != 1:
                continue  # the text does not show which launch uses the winner
            for place, message in _differences(file, search, after[0]):
                yield self.at(file, place, f"{message} (search in line {search.call.lineno})")


def _differences(file: SourceFile, search: SearchSite, launch: LaunchSite) -> Iterator[tuple[ast.AST, str]]:
    timed, launched = kernels_of(file, search.kernel), kernels_of(file, launch.kernel)
    if timed and launched and not {one.node for one in timed} & {one.node for one in launched}:
        text = " or ".join(one.name for one in timed)
        yield launch.kernel or launch.call, f"this launches {launched[0].name}, but the search times {text}"
        return
    grids = _pair(file, search.grid_fn, launch.grid)
    if grids is not None and len(grids[0]) == len(grids[1]):
        for axis, (one, other) in enumerate(zip(*grids, strict=True)):
            if _differ(file, search.grid_fn, one, other):
                what = f"axis {axis} of the grid is {ast.unparse(other)}, but the search times {ast.unparse(one)}"
                yield other, what
    arguments = _pair(file, search.args_fn, launch.arguments)
    if arguments is None or len(timed) != 1 or len(arguments[0]) != len(arguments[1]):
        return
    for one, other, parameter in zip(*arguments, parameters(timed[0].node), strict=False):
        is_constant = annotation(file, parameter) == "constant"
        if is_constant and _differ(file, search.args_fn, one, other):
            what = f"{parameter.arg} is {ast.unparse(other)} here, but {ast.unparse(one)} in the search"
            yield other, what
        elif not is_constant and (how := _other_array(file, one, other)):
            yield other, f"{parameter.arg} is {ast.unparse(other)} here, but the search times {how}"


def _pair(
    file: SourceFile, function: ast.expr | None, launched: ast.expr | None
) -> tuple[list[ast.expr], list[ast.expr]] | None:
    """Returns the elements of the tuple that a search's function returns, and of the launch's tuple; None if the text
    does not show both."""
    values = returned(file.function(function))
    first = file.value(values[0]) if len(values) == 1 else None
    second = file.value(launched)
    return (elements(first), elements(second)) if elements(first) and elements(second) else None


def _differ(file: SourceFile, function: ast.expr | None, timed: ast.expr, launched: ast.expr) -> bool:
    """Returns whether two expressions differ in the values that do not come from the configuration.

    Each reads only literals, and names that both the search's function and the launch see with one value.
    """
    inner = file.function(function)
    own = {one.arg for one in parameters(inner)} if inner is not None else set()
    fields = {node.attr for node in ast.walk(timed) if isinstance(node, ast.Attribute)}
    if names(timed) & own or fields:  # depends on the configuration
        return False
    first, second = file.value(timed), file.value(launched)
    return isinstance(first, ast.Constant) and isinstance(second, ast.Constant) and first.value != second.value


def _other_array(file: SourceFile, timed: ast.expr, launched: ast.expr) -> str:
    """Returns how an array of the search was made, if it is not made like the array of the launch; else ""."""
    text = ast.unparse(launched)
    made = file.value(timed)
    if ast.unparse(timed) == text or not isinstance(launched, ast.Name) or made is file.value(launched):
        return ""
    if isinstance(made, ast.Subscript) and isinstance(made.slice, ast.Slice) and ast.unparse(made.value) == text:
        return f"the part {ast.unparse(made)}"
    if not isinstance(made, ast.Call) or file.dotted(made.func).rpartition(".")[2] not in MADE:
        return ""
    return ast.unparse(made)[:60] if launched.id not in names(made) else ""


RULES = (SearchedOtherwise("TW112", "warning"),)
