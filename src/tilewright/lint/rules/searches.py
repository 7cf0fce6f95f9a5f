"""What a search is given and what it does with it."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence

from tilewright.lint.rule import LintFinding, Rule
from tilewright.lint.tile_code import accesses
from tilewright.source.cutile import SEARCHES, KernelSource, SearchSite, kernels_of, launches, searches
from tilewright.source.source_file import (
    Function,
    SourceFile,
    assignments,
    elements,
    keywords,
    names,
    own,
    parameters,
    returned,
)
from tilewright.source.values import Unread, value_of

FRESH = {"clone", "copy", "empty", "empty_like", "zeros", "zeros_like", "new_empty", "new_zeros", "full"}
RESETS = {"zero_", "fill_", "copy_"}


class InPlaceSearch(Rule):
    """Every trial of the search runs on what the trial before it wrote.

    A search launches the kernel hundreds of times. Where it reads an array that it also writes, all but the first
    launch see another input: the result is wrong, and so may be the time. A clone in args_fn is outside the timed
    region and costs about 4 µs of wall time a sample.
    Fix: in args_fn pass a scratch buffer or `tensor.clone()`; let only the final launch work in place.
    Sources: cuda-tile 1.7: cuda.tile.tune.
    """

    code = "TW101"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for search in searches(file):
            function = file.function(search.args_fn)
            kernels = kernels_of(file, search.kernel)
            for given in returned(function) if function is not None and len(kernels) == 1 else ():
                passed = elements(file.value(given))  # args = (…); lambda cfg: args
                if function is not None and not any(isinstance(element, ast.Starred) for element in passed):
                    yield from self._corrupted(file, search, function, kernels[0], passed)

    def _corrupted(
        self, file: SourceFile, search: SearchSite, function: Function, kernel: KernelSource, passed: list[ast.expr]
    ) -> Iterator[LintFinding]:
        done = accesses(file, kernel.node)
        by_name = dict(zip((parameter.arg for parameter in parameters(kernel.node)), passed, strict=False))
        both = done.both(file)
        for name, value in by_name.items():
            if not isinstance(value, ast.Name) or _reset(file, function, value) or _scratch(file, search, value):
                continue
            if name in both:
                message = f"the search passes {value.id} itself for {name}, which {kernel.name} reads and writes"
                yield self.at(file, value, message)
            elif name in done.written:
                same = (other for other, twin in by_name.items() if _same(twin, value) and other in done.read)
                if (twin := next(same, None)) is not None:
                    yield self.at(
                        file, value,
                        f"the search passes {value.id} as {twin}, which {kernel.name} reads, and as {name}, which it "
                        "writes",
                    )  # fmt: skip


def _same(passed: ast.expr, other: ast.Name) -> bool:
    return isinstance(passed, ast.Name) and passed.id == other.id and passed is not other


def _reset(file: SourceFile, function: Function, value: ast.Name) -> bool:
    """Made anew, or emptied, for every trial."""
    if isinstance(function, ast.Lambda):
        return False
    for call in file.every(ast.Call, function):
        method = call.func
        if isinstance(method, ast.Attribute) and method.attr in RESETS and value.id in names(method.value):
            return True
    return any(name.id == value.id and isinstance(name.ctx, ast.Store) for name in own(function, ast.Name))


def _scratch(file: SourceFile, search: SearchSite, value: ast.Name) -> bool:
    """Made in the function that searches, and used there for nothing else: what becomes of it does not matter."""
    owner = file.owner(search.call)
    made = [binding.value for binding in file.bindings(value.id, value)]
    if owner is None or not made:
        return False
    for call in made:
        method = call.func if isinstance(call, ast.Call) else None
        if not isinstance(method, ast.Attribute) or method.attr not in FRESH:
            return False
    kept = [launch.arguments for launch in launches(file) if file.owner(launch.call) is owner]
    return not any(used is not None and value.id in names(used) for used in (*kept, *returned(owner)))


ITERATORS = {"map", "filter", "zip", "iter", "itertools.product", "itertools.chain"}


class SpaceIsNoList(Rule):
    """The search space is no list.

    exhaustive_search of cuda-tile 1.7 asks for its length and walks it several times: a generator raises TypeError, and
    of a dictionary it takes the keys for configurations. A set has no order that lasts.
    Fix: pass `list(…)` of the configurations.
    Sources: cuda-tile 1.7: cuda.tile.tune.
    """

    code = "TW104"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for search in searches(file):
            for value in file.values(search.space):
                if wrong := _no_list(file, value):
                    yield self.at(file, search.space or search.call, f"the search space is {wrong}")


def _no_list(file: SourceFile, value: ast.AST) -> str:
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


READ_INSTEAD = {
    "best_config": "best.config",
    "best_time_us": "best.mean_us",
    "time_ms": "best.mean_us, in µs",
    "best_time": "best.mean_us",
    "timings": "successes",
    "results": "successes",
}
RESULT_HAS = {"best", "successes", "failures", "summary"}


class NoSuchResultAttribute(Rule):
    """A tuning result has no such attribute.

    A TuningResult of cuda-tile 1.7 has best, successes and failures; a Measurement has config, mean_us, num_samples and
    error_margin_us. Documents name others that never existed: AttributeError, after minutes of search.
    Fix: read result.best.config and result.best.mean_us.
    Sources: cuda-tile 1.7: cuda.tile.tune.
    """

    code = "TW105"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for node in file.every(ast.Attribute):
            if not isinstance(node.ctx, ast.Load) or node.attr.startswith("_") or node.attr in RESULT_HAS:
                continue
            values = file.values(node.value)
            if values and all(isinstance(call, ast.Call) and file.dotted(call.func) in SEARCHES for call in values):
                instead = f"; read {READ_INSTEAD[node.attr]}" if node.attr in READ_INSTEAD else ""
                yield self.at(file, node, f"the result of a search has no {node.attr}{instead}")


class CompilerTimeout(Rule):
    """Candidates that compile slowly are dropped without a word.

    A candidate that runs out of time is one of the failures, which nobody reads: the choice then depends on how busy
    the machine is. A matmul tile that spills takes 1 to 4 s alone on a core, and one took 33 s.
    Fix: compile ahead in parallel with a budget for each candidate, or look at result.failures and say what is gone.
    Sources: TileGym 1.5.1: 12 files of ops/cutile.
    """

    code = "TW108"
    level = "warning"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for search in searches(file):
            owner = file.owner(search.call)
            if owner is not None and any(node.attr == "failures" for node in file.every(ast.Attribute, owner)):
                continue
            for call in _contexts(file, search.call):
                if file.dotted(call.func) == "cuda.tile.compiler_timeout":
                    seconds = ast.unparse(call.args[0]) if call.args else "…"
                    yield self.at(
                        file, call,
                        f"candidates of the search in line {search.call.lineno} that need more than {seconds} s to "
                        "compile are dropped, and its failures are not read",
                    )  # fmt: skip


def _contexts(file: SourceFile, node: ast.AST) -> Iterator[ast.Call]:
    """The calls of the ``with`` statements around a node, inside its function."""
    for parent, _ in file.within(node):
        for item in parent.items if isinstance(parent, ast.With) else ():
            if isinstance(item.context_expr, ast.Call):
                yield item.context_expr


LARGE = 256
CAPABILITY = "torch.cuda.get_device_capability"


class HopperTakesBlackwell(Rule):
    """Hopper is given the tiles of Blackwell.

    Hopper has no tensor memory: accumulators sit in registers, and tiles of 256 spill. Of TileGym's matmul list
    256×256×64, 512×256×64 and 256×256×128 make 1240 to 1590 spill stores on sm_90; attention tiles of 256×128 make
    4029.
    Fix: add a branch for capability 9 with tiles of 64 to 128, or keep large tiles to num_ctas 2 and more.
    Sources: TileGym 1.5.1: ops/cutile/matmul.py.
    """

    code = "TW109"
    level = "warning"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for function in file.every(ast.FunctionDef) if searches(file) else ():
            name = _capability(file, function)
            for chain in file.every(ast.If, function) if name else ():
                above = file.parent(chain)
                is_elif = isinstance(above, ast.If) and chain in above.orelse
                hopper, blackwell = (_taken(chain, name, major) for major in (9, 10))
                place = _large(file, hopper) if hopper is blackwell and not is_elif else None
                if place is not None:
                    yield self.at(
                        file, place,
                        f"capability 9 takes the same branch of {function.name} as capability 10, with tiles of "
                        f"{LARGE} and more",
                    )  # fmt: skip


def _capability(file: SourceFile, function: ast.FunctionDef) -> str:
    """The name that holds the capability."""
    for name, value in assignments(file.every(ast.Assign, function)):
        if isinstance(value, ast.Call) and file.dotted(value.func) == CAPABILITY:
            return name
    return ""


def _taken(chain: ast.If, name: str, major: int) -> Sequence[ast.stmt]:
    """The branch that a capability takes; none where the chain asks for anything else."""
    holds = value_of(chain.test, {name: [major, 0]})
    if isinstance(holds, Unread) or name not in names(chain.test):
        return ()
    if holds:
        return chain.body
    if len(chain.orelse) == 1 and isinstance(chain.orelse[0], ast.If):
        return _taken(chain.orelse[0], name, major)
    return chain.orelse


def _large(file: SourceFile, branch: Sequence[ast.stmt]) -> ast.AST | None:
    """The first configuration of the branch with a large tile and one CTA."""
    for call in (call for statement in branch for call in file.every(ast.Call, statement)):
        given = {name: value_of(value, {}) for name, value in keywords(call).items()}
        tiles = [v for k, v in given.items() if k.startswith(("TILE", "BLOCK")) and not k.endswith("_K")]
        extents = [extent for extent in tiles if isinstance(extent, int)]
        ctas = given.get("num_ctas", 1)
        if not extents or not isinstance(ctas, int) or not ctas:
            continue
        if max(extents) >= LARGE and (ctas == 1 or math.prod(extents) // ctas >= LARGE * LARGE):
            return call
    return None


MOST = 64


class LargeProduct(Rule):
    """A large product of value lists is compiled one by one.

    exhaustive_search compiles its candidates one after the other: 54 matmul configurations take 39 s on one core, and a
    single bad one 33 s. The old rule of at most 30 configurations is outdated: what counts is time; only products of
    more than 64 are named.
    Fix: drop what cannot win before the search, or compile ahead in parallel with a budget for each candidate.
    Sources: cuda-tile 1.7: cuda.tile.tune.
    """

    code = "TW110"
    level = "note"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for search in searches(file):
            function = _generator(file, search.space)
            for node in file.every(ast.Yield, function) if function is not None else ():
                loops = [parent.iter for parent, _ in file.above(node) if isinstance(parent, ast.For)]
                sizes = [len(elements(loop)) for loop in loops if isinstance(loop, (ast.Tuple, ast.List))]
                if math.prod(sizes) > MOST:
                    product = " × ".join(map(str, reversed(sizes)))
                    yield self.at(file, node, f"{product} = {math.prod(sizes)} configurations for one search")


def _generator(file: SourceFile, space: ast.expr | None) -> Function | None:
    value = file.value(space)
    if isinstance(value, ast.Call) and file.dotted(value.func) in {"list", "tuple"} and value.args:
        value = file.value(value.args[0])
    return file.function(value.func) if isinstance(value, ast.Call) else None


RULES = (
    InPlaceSearch(),
    SpaceIsNoList(),
    NoSuchResultAttribute(),
    CompilerTimeout(),
    HopperTakesBlackwell(),
    LargeProduct(),
)
