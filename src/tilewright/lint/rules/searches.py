"""Rules about searches: their arguments, and the use of their results."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence

from tilewright.lint.rule import LintFinding, Rule
from tilewright.lint.tile_code import accesses
from tilewright.source import source_file
from tilewright.source.cutile import SEARCHES, SearchSite, kernels_of, launches, searches
from tilewright.source.source_file import Function, SourceFile, elements, keywords, names, own, parameters, returned
from tilewright.source.values import Unread, value_of

MAKES_ARRAY = {"clone", "copy", "empty", "empty_like", "zeros", "zeros_like", "new_empty", "new_zeros", "full"}
RESET_METHODS = {"zero_", "fill_", "copy_"}
ITERATORS = {"map", "filter", "zip", "iter", "itertools.product", "itertools.chain"}
READ_INSTEAD = {
    "best_config": "best.config",
    "best_time_us": "best.mean_us",
    "time_ms": "best.mean_us, in µs",
    "best_time": "best.mean_us",
    "timings": "successes",
    "results": "successes",
}
RESULT_HAS = {"best", "successes", "failures", "summary"}
LARGE_TILE = 256
CAPABILITY = "torch.cuda.get_device_capability"
MOST_CONFIGURATIONS = 64


class InPlaceSearch(Rule):
    """Every trial of the search runs on data that the previous trial wrote.

    A search launches the kernel hundreds of times. If the kernel reads an array that it also writes, all launches but
    the first have other inputs. Then the result is wrong, and the time may be wrong, too. A clone in args_fn is not
    part of the timed region; it costs about 4 µs of wall time for each sample.
    Fix: in args_fn pass a scratch buffer or `tensor.clone()`; let only the final launch work in place.
    Sources: cuda-tile 1.7: cuda.tile.tune.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for search in searches(file):
            one_kernel = len(kernels_of(file, search.kernel)) == 1
            for given in returned(file.function(search.args_fn)) if one_kernel else ():
                passed = elements(file.value(given))  # args = (…); lambda cfg: args
                if not any(isinstance(element, ast.Starred) for element in passed):
                    yield from self._corrupted(file, search, passed)

    def _corrupted(self, file: SourceFile, search: SearchSite, passed: list[ast.expr]) -> Iterator[LintFinding]:
        (kernel,) = kernels_of(file, search.kernel)
        done = accesses(file, kernel.node)
        by_name = dict(zip((parameter.arg for parameter in parameters(kernel.node)), passed, strict=False))
        both = done.both(file)
        for name, value in by_name.items():
            if not isinstance(value, ast.Name) or _is_reset(file, search, value) or _is_scratch(file, search, value):
                continue
            if name in both:
                message = f"the search passes {value.id} itself for {name}, which {kernel.name} reads and writes"
                yield self.at(file, value, message)
            elif name in done.written:
                same = [other for other, array in by_name.items() if other != name and ast.unparse(array) == value.id]
                if (read := next((other for other in same if other in done.read), None)) is not None:
                    how = f"both as {read}, which {kernel.name} reads, and as {name}, which {kernel.name} writes"
                    yield self.at(file, value, f"the search passes {value.id} {how}")


def _is_reset(file: SourceFile, search: SearchSite, value: ast.Name) -> bool:
    """Returns whether args_fn makes or resets the array ``value`` for every trial."""
    function = file.function(search.args_fn)
    if function is None or isinstance(function, ast.Lambda):
        return False
    for call in file.every(ast.Call, function):
        method = call.func
        if isinstance(method, ast.Attribute) and method.attr in RESET_METHODS and value.id in names(method.value):
            return True
    return any(name.id == value.id and isinstance(name.ctx, ast.Store) for name in own(function, ast.Name))


def _is_scratch(file: SourceFile, search: SearchSite, value: ast.Name) -> bool:
    """Returns whether the function that searches makes the array ``value`` and uses it for nothing else."""
    owner = file.owner(search.call)
    made = [binding.value for binding in file.bindings(value.id, value)]
    if owner is None or not made:
        return False
    for call in made:
        method = call.func if isinstance(call, ast.Call) else None
        if not isinstance(method, ast.Attribute) or method.attr not in MAKES_ARRAY:
            return False
    arguments = [launch.arguments for launch in launches(file) if file.owner(launch.call) is owner]
    return not any(used is not None and value.id in names(used) for used in (*arguments, *returned(owner)))


class SpaceIsNoList(Rule):
    """The search space is no list.

    exhaustive_search of cuda-tile 1.7 takes the length of the space and iterates over it several times. A generator
    raises TypeError. A dictionary gives its keys as configurations. A set has no fixed order.
    Fix: pass `list(…)` of the configurations.
    Sources: cuda-tile 1.7: cuda.tile.tune.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for search in searches(file):
            for value in file.values(search.space):
                if wrong := _why_no_list(file, value):
                    yield self.at(file, search.space or search.call, f"the search space is {wrong}")


def _why_no_list(file: SourceFile, value: ast.AST) -> str:
    called = file.dotted(value.func) if isinstance(value, ast.Call) else ""
    if isinstance(value, ast.GeneratorExp):
        return "a generator expression, which has no length"
    if isinstance(value, (ast.Dict, ast.DictComp)) or called == "dict":
        return "a dictionary: its keys are taken for configurations"
    if isinstance(value, (ast.Set, ast.SetComp)):
        return "a set, whose order changes from one process to the next"
    if called in ITERATORS:
        return f"the iterator that {called} returns, which has no length"
    function = file.function(value.func) if isinstance(value, ast.Call) else None
    if isinstance(function, ast.FunctionDef) and [*own(function, ast.Yield), *own(function, ast.YieldFrom)]:
        return f"the generator that {function.name} returns, which has no length"
    return ""


class NoSuchResultAttribute(Rule):
    """A tuning result has no such attribute.

    A TuningResult of cuda-tile 1.7 has best, successes and failures; a Measurement has config, mean_us, num_samples and
    error_margin_us. Some documents name attributes that never existed: the program stops with an AttributeError, after
    minutes of search.
    Fix: read result.best.config and result.best.mean_us.
    Sources: cuda-tile 1.7: cuda.tile.tune.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for node in file.every(ast.Attribute) if searches(file) else ():
            if not isinstance(node.ctx, ast.Load) or node.attr.startswith("_") or node.attr in RESULT_HAS:
                continue
            values = file.values(node.value)
            if values and all(isinstance(call, ast.Call) and file.dotted(call.func) in SEARCHES for call in values):
                instead = f"; read {READ_INSTEAD[node.attr]}" if node.attr in READ_INSTEAD else ""
                yield self.at(file, node, f"the result of a search has no {node.attr}{instead}")


class CompilerTimeout(Rule):
    """Candidates that compile slowly are dropped silently.

    A candidate that exceeds the time limit becomes one of the failures, which the program does not read. So the choice
    depends on how busy the machine is. A matmul tile that spills takes 1 to 4 s on a free core; one took 33 s.
    Fix: compile ahead in parallel with a time limit for each candidate, or report result.failures.
    Sources: TileGym 1.5.1: 12 files of ops/cutile.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for search in searches(file):
            owner = file.owner(search.call)
            if owner is not None and any(node.attr == "failures" for node in file.every(ast.Attribute, owner)):
                continue
            for parent, _ in file.within(search.call):
                for item in parent.items if isinstance(parent, ast.With) else ():
                    call = item.context_expr
                    if isinstance(call, ast.Call) and file.dotted(call.func) == "cuda.tile.compiler_timeout":
                        seconds = ast.unparse(call.args[0]) if call.args else "…"
                        slow = f"candidates of the search in line {search.call.lineno} that need more than {seconds} s"
                        yield self.at(file, call, f"{slow} to compile are dropped, and result.failures is not read")


class HopperTakesBlackwell(Rule):
    """Hopper gets the tiles of Blackwell.

    Hopper has no tensor memory, so accumulators are in registers, and tiles of 256 spill. On sm_90, the largest three
    tiles of TileGym's matmul list have 1240 to 1590 spill stores; attention tiles of 256×128 have 4029.
    Fix: add a branch for capability 9 with tiles of 64 to 128, or use large tiles only with num_ctas 2 and more.
    Sources: TileGym 1.5.1: ops/cutile/matmul.py.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for function in file.every(ast.FunctionDef) if searches(file) else ():
            name = _capability(file, function)
            for chain in file.every(ast.If, function) if name else ():
                above = file.parent(chain)
                is_elif = isinstance(above, ast.If) and chain in above.orelse
                hopper, blackwell = (_branch_taken(chain, name, major) for major in (9, 10))
                place = _too_large(file, hopper) if hopper is blackwell and not is_elif else None
                if place is not None:
                    branch = f"capability 9 takes the same branch of {function.name} as capability 10"
                    yield self.at(file, place, f"{branch}, with tiles of {LARGE_TILE} and more")


def _capability(file: SourceFile, function: ast.FunctionDef) -> str:
    """Returns the name of the variable that holds the device's capability; "" if there is none."""
    for name, value in source_file.assignments(file.every(ast.Assign, function)):
        if isinstance(value, ast.Call) and file.dotted(value.func) == CAPABILITY:
            return name
    return ""


def _branch_taken(chain: ast.If, name: str, major: int) -> Sequence[ast.stmt]:
    """Returns the branch for the capability ``(major, 0)``; empty if a condition depends on anything else."""
    holds = value_of(chain.test, {name: [major, 0]})
    if isinstance(holds, Unread) or name not in names(chain.test):
        return ()
    if holds:
        return chain.body
    if len(chain.orelse) == 1 and isinstance(chain.orelse[0], ast.If):
        return _branch_taken(chain.orelse[0], name, major)
    return chain.orelse


def _too_large(file: SourceFile, branch: Sequence[ast.stmt]) -> ast.AST | None:
    """Returns the first configuration in a branch whose tile is too large for Hopper; None if there is none."""
    for call in (call for statement in branch for call in file.every(ast.Call, statement)):
        given = {name: value_of(value, {}) for name, value in keywords(call).items()}
        tiles = [v for k, v in given.items() if k.startswith(("TILE", "BLOCK")) and not k.endswith("_K")]
        extents = [extent for extent in tiles if isinstance(extent, int)]
        ctas = given.get("num_ctas", 1)
        if not extents or not isinstance(ctas, int) or not ctas:
            continue
        if max(extents) >= LARGE_TILE and (ctas == 1 or math.prod(extents) // ctas >= LARGE_TILE * LARGE_TILE):
            return call
    return None


class LargeProduct(Rule):
    """A large product of value lists is compiled one configuration after the other.

    In exhaustive_search, 54 matmul configurations take 39 s to compile on one core, and a single bad one takes 33 s.
    The rule reports products of more than 64 configurations.
    Fix: drop configurations that cannot win before the search, or compile ahead in parallel with a time limit for each.
    Sources: cuda-tile 1.7: cuda.tile.tune.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for search in searches(file):
            function = _generator(file, search.space)
            for node in file.every(ast.Yield, function) if function is not None else ():
                loops = [parent.iter for parent, _ in file.above(node) if isinstance(parent, ast.For)]
                sizes = [len(elements(loop)) for loop in loops if isinstance(loop, (ast.Tuple, ast.List))]
                if math.prod(sizes) > MOST_CONFIGURATIONS:
                    product = " × ".join(map(str, reversed(sizes)))
                    yield self.at(file, node, f"{product} = {math.prod(sizes)} configurations for one search")


def _generator(file: SourceFile, space: ast.expr | None) -> Function | None:
    value = file.value(space)
    if isinstance(value, ast.Call) and file.dotted(value.func) in {"list", "tuple"} and value.args:
        value = file.value(value.args[0])
    return file.function(value.func) if isinstance(value, ast.Call) else None


RULES = (
    InPlaceSearch("TW101"),
    SpaceIsNoList("TW104"),
    NoSuchResultAttribute("TW105"),
    CompilerTimeout("TW108", "warning"),
    HopperTakesBlackwell("TW109", "warning"),
    LargeProduct("TW110", "note"),
)
