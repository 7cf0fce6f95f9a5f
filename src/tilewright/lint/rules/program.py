"""Rules about the program around the kernels: caches of tuning results, switches, devices."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tilewright.lint.caches import CacheWrite, CoveredByKey, bound_inside, key_parts, strides_vary, tuning_caches
from tilewright.lint.guards import is_memoised, on_a_miss, on_every_call
from tilewright.lint.lengths import length_in
from tilewright.lint.rule import Level, LintFinding, Rule
from tilewright.lint.tile_code import accesses, annotation
from tilewright.source.cutile import kernels_of, searches
from tilewright.source.source_file import TOO_DEEP, Named, SourceFile, elements, names, parameters, remembered, returned

WORDS = r"(auto_?)?tun(e|ing).*(disabled|enabled|allowed)|(disable|enable|use|skip)_(auto)?_?tun(e|ing)"
SWITCHES = re.compile(WORDS, re.I)
VARIABLES = re.compile(r"^(?!.*(LOG|LEVEL|VERBOSE|DEBUG|PRINT|TIMEOUT|CACHE|DIR|PATH)).*(TUNE|TUNING)")
"""Names of environment variables that may turn tuning off. A log level, a folder or a timeout does not."""
READERS = {"os.environ.get", "os.getenv", "os.environ"}
UNREAD_VARIABLES = {
    "DISABLE_AUTOTUNE": "TILEGYM_DISABLE_AUTOTUNE=1 is what TileGym reads",
    "DISABLE_CUTILE_TUNE": "TILEGYM_DISABLE_AUTOTUNE=1 is what TileGym reads",
    "TILEIR_ENABLE_FTZ": "pass flush_to_zero=True to the operations",
    "TILEIR_ENABLE_APPROX": "pass rounding_mode=ct.RoundingMode.APPROX to the operations",
    "TILEIR_OPT_LEVEL": "pass opt_level= to ct.kernel",
    "ENABLE_TILE": "it belongs to Triton's back end",
}
"""Maps an environment variable that neither cuda-tile 1.7 nor TileGym 1.5 reads to the fix in the message."""
SETS = {"os.environ.setdefault", "os.putenv", "monkeypatch.setenv"}
ASK_DEVICE = {"torch.cuda.get_device_capability", "torch.cuda.get_device_properties", "torch.cuda.get_device_name"}


OTHER_REASONS = re.compile("null byte|too many|encoding")
"""Errors of Python's parser that are no question of its version, although libcst may parse such files."""


class CannotBeRead(Rule):
    """The file is not valid Python, or its expressions are nested too deep.

    No rule can look at such a file. If only a newer Python can read the file, the finding is a note.
    Fix: correct the line, run lint with the Python that the file is for, or leave the file out of the paths.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        return iter(())  # a `SourceFile` exists only for a file that could be read

    def because_of(self, path: Path, error: Exception) -> LintFinding:
        why, line, column = str(error).split("\n")[0] or type(error).__name__, 1, 1
        if isinstance(error, SyntaxError):
            why, line, column = error.msg or "not valid Python", error.lineno or 1, error.offset or 1
        elif isinstance(error, RecursionError):
            why = TOO_DEEP
        if isinstance(error, SyntaxError) and not OTHER_REASONS.search(why) and _is_newer_syntax(path):
            version = ".".join(map(str, sys.version_info[:2]))
            return LintFinding(self, "note", path, line, column, f"not read: its syntax is newer than Python {version}")
        return LintFinding(self, self.level, path, line, column, f"cannot be read: {why}")


def _is_newer_syntax(path: Path) -> bool:
    from tilewright.source.syntax import is_newer_syntax  # libcst takes long to import

    return is_newer_syntax(path)


class CacheKey(Rule):
    """The key of a tuning cache leaves out values on which the best configuration depends.

    An entry of one call is then also used for calls that need other code. TMA and vector width depend on strides and
    alignment, and tiles depend on sizes. All code depends on constants. Shapes that a key rounds to the same power of
    two differ by up to a factor of two. A cache on disk also needs the GPU model and the toolkit in its key, because
    `cuda:0` names neither.
    Fix: put every size, constant and dtype of the launch into the key, with strides and address % 16 of each tensor.
    Sources: TileGym 1.5.1: ops/cutile/softmax.py; ops/cutile/matmul.py.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for cache in tuning_caches(file):
            missing: list[str] = []
            rounded: list[str] = []
            dtypes: list[str] = []
            layout = ["strides"] if any(strides_vary(file, write.search) for write in cache.writes) else []
            layout += ["alignment"]
            for write in cache.writes:
                parts = key_parts(file, write.key)
                if parts is None:
                    break
                covered = CoveredByKey(file, parts)
                missing += _missing(file, write, covered)
                rounded += _rounded(file, parts)
                dtypes += _dtypes_of_others(file, write, covered)
                in_key = {"strides"} if covered.mentions("stride", "layout") else set()
                in_key |= {"alignment"} if covered.mentions("align", "data_ptr") else set()
                layout = [part for part in layout if part not in in_key]
            else:
                values = [name for name in dict.fromkeys(missing) if "stride" not in name.lower()]
                left_out = [*values, f"the tensors' {' and '.join(layout)}"] if layout else values
                problems = [f"leaves out {', '.join(left_out)}"] if left_out else []
                if rounded:
                    problems.append(f"rounds {', '.join(dict.fromkeys(rounded))} to a power of two")
                if dtypes:
                    problems.append(f"has a dtype, but not that of {', '.join(dict.fromkeys(dtypes))}")
                if problems:
                    level: Level = "warning" if values or rounded else "note"
                    key, place = cache.writes[0].key, cache.writes[0].place
                    bindings = file.bindings(key.id, key) if isinstance(key, ast.Name) else ()
                    where = next((binding.place for binding in bindings if binding.value is not None), place)
                    yield self.at(file, where, f"the key of {cache.name} {' and '.join(problems)}", level)


def _missing(file: SourceFile, write: CacheWrite, covered: CoveredByKey) -> list[str]:
    """Returns the names on which the best configuration depends but which the key does not determine."""
    search = write.search
    missing = [] if covered.mentions("dtype") else ["dtypes"]
    missing += [] if covered.mentions("device", "capability") else ["the device"]
    if file.owner(search.call) is not file.owner(write.place):
        return missing  # the search is in another function, with other names
    grid = file.function(search.grid_fn)
    for value in returned(grid):
        missing += covered.missing(value, bound_inside(grid))
    function, kernels = file.function(search.args_fn), kernels_of(file, search.kernel)
    for value in returned(function) if len(kernels) == 1 else ():
        if isinstance(value, ast.Tuple) and not any(isinstance(element, ast.Starred) for element in value.elts):
            for parameter, passed in zip(parameters(kernels[0].node), value.elts, strict=False):
                if annotation(file, parameter) == "constant":
                    missing += covered.missing(passed, bound_inside(function))
    return missing


def _dtypes_of_others(file: SourceFile, write: CacheWrite, covered: CoveredByKey) -> list[str]:
    """Returns the arrays that the kernel reads, whose dtype the key leaves out although it has that of another. Only
    those that the caller gives, because others may be made like one of them."""
    keyed = {text.removesuffix(".dtype") for text in covered.attributes if text.endswith(".dtype")}
    owner, kernels = file.owner(write.place), kernels_of(file, write.search.kernel)
    if not keyed or owner is None or file.owner(write.search.call) is not owner or len(kernels) != 1:
        return []
    own, others = {parameter.arg for parameter in parameters(owner)}, list[str]()
    for value in returned(file.function(write.search.args_fn)):
        for passed, parameter in zip(elements(file.value(value)), parameters(kernels[0].node), strict=False):
            is_array = isinstance(passed, ast.Name) and not annotation(file, parameter)
            if is_array and parameter.arg in accesses(file, kernels[0].node).read:
                others += [name for name in names(passed) if name in own]
    return [name for name in others if name not in keyed and name not in covered.names] if keyed & {*others} else []


def _rounded(file: SourceFile, parts: list[ast.AST]) -> list[str]:
    """Returns the expressions in a key's ``parts`` that are rounded to a power of two, except numbers of tokens, rows
    or elements: exact ones would be searched again and again (`KeyTooExact`)."""
    rounded = []
    for call in (call for part in parts for call in file.every(ast.Call, part)):
        name = file.dotted(call.func).rpartition(".")[2].lower()
        if ("pow" in name and "2" in name) or name == "bit_length":
            rounded += [ast.unparse(given) for given in call.args if not length_in(file, given)]
    return rounded


class KeyTooExact(Rule):
    """The key of a tuning cache has a value that differs from call to call.

    Each new value then starts a search. Neither an address nor a factor such as eps changes which configuration is the
    fastest; of an address, only its remainder modulo 16 counts. Of a number of tokens or elements, its power of two is
    enough: compiling 54 matmul configurations for each new number takes 39 s.
    Fix: leave floats out of the key, round lengths, and put `x.data_ptr() % 16` in the place of the address.
    Sources: cuda-tile 1.7: cuda.tile.tune.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for cache in tuning_caches(file):
            for write in cache.writes:
                for part in key_parts(file, write.key) or ():
                    if what := _varying(file, part):
                        yield self.at(file, part, f"the key of {cache.name} has {what}: each new value is searched")


def _varying(file: SourceFile, part: ast.AST) -> str:
    """Returns an address, a length or a float in a part of a key, in words; "" if there is none."""
    if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr == "data_ptr":
        return f"the address {ast.unparse(part)}"
    if isinstance(part, ast.expr) and (length := length_in(file, part)):
        return f"the exact length {length}"
    if not isinstance(part, ast.Name):
        return ""
    given = (binding.place for binding in file.bindings(part.id, part) if binding.kind == "parameter")
    is_float = any(isinstance(each, ast.arg) and ast.unparse(each.annotation or each) == "float" for each in given)
    return f"the float {part.id}" if is_float else ""


class ProcessOnlyCache(Rule):
    """Every process tunes again.

    A dictionary at the top of a module is lost when the process ends. So each worker, rank and restart repeats the
    search, at the same time on the same GPU. The dictionary also grows with every shape. TileGym 1.5.1 has such caches.
    Fix: keep winners in a store on disk, such as `tilewright run` and the tilewright wrapper use.
    Sources: TileGym 1.5.1.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        caches = tuning_caches(file)
        if caches:
            said, verb = ", ".join(cache.name for cache in caches), "lives" if len(caches) == 1 else "live"
            grows = "" if all(_is_bounded(file, cache.name) for cache in caches) else ", and can grow without limit"
            yield self.at(file, caches[0].made, f"{said} {verb} in this process only{grows}")
        else:
            owners = (file.owner(search.call) for search in searches(file))
            for owner in (owner for owner in dict.fromkeys(owners) if owner is not None and is_memoised(file, owner)):
                yield self.at(file, owner, f"the results of {owner.name} are memoised in this process only")
                return


def _is_bounded(file: SourceFile, cache: str) -> bool:
    """Returns whether the file removes entries from a cache: an LRU with ``popitem``, or ``del cache[key]``."""
    removing = [node.value for node in file.every(ast.Attribute) if node.attr in ("popitem", "pop")]
    removing += [node.value for node in file.every(ast.Subscript) if isinstance(node.ctx, ast.Del)]
    return any(ast.unparse(mapping) == cache for mapping in removing)


class SearchOnHotPath(Rule):
    """The search runs on every call.

    A search launches each candidate up to 1000 times, with a flushed L2 before each. This takes tens of milliseconds to
    seconds in place of one launch, and exhaustive_search does not remember its result.
    Fix: look in a cache first, search only on a miss, and store configuration and kernel together.
    Sources: cuda-tile 1.7: cuda.tile.tune.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for search in searches(file):
            owner = file.owner(search.call)
            if owner is not None and on_every_call(file, search.call):
                yield self.at(file, search.call, f"{owner.name} searches without looking in a cache first")


@remembered
def switches(file: SourceFile) -> tuple[ast.AST, ...]:
    """Returns the places that read a tuning switch: calls, environment variables, and names such as ``use_tuning``."""
    asking: list[ast.AST] = []
    for node in file.nodes:
        if isinstance(node, ast.Call):
            called = file.dotted(node.func)
            first = node.args[0] if node.args else None
            word = str(first.value) if isinstance(first, ast.Constant) else ""
            read = ast.unparse(first) if first is not None and called in READERS else ""
            asks = SWITCHES.search(called.rpartition(".")[2]) or SWITCHES.search(word) or VARIABLES.search(read)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            asks = VARIABLES.search(ast.unparse(node.slice)) if file.dotted(node.value) in READERS else None
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            parent = file.parent(node)  # the name of a called function counts as the call
            asks = None if isinstance(parent, ast.Call) and parent.func is node else SWITCHES.search(node.id)
        else:
            continue
        if asks:
            asking.append(node)
    return tuple(asking)


class SwitchAfterCache(Rule):
    """The switch that disables tuning is read after the cache.

    A tuned entry in the cache then wins over the switch. A configuration that is chosen while the switch is set is
    stored as if it had been tuned, and stays after the switch is unset. One file of TileGym 1.5.1 has this mistake.
    Fix: read the switch before the cache and store nothing while the switch is set, or put the switch into the key.
    Sources: TileGym 1.5.1: ops/cutile/fused_neighborhood_attention.py.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for switch in switches(file) if tuning_caches(file) else ():
            test, owner = on_a_miss(file, switch), file.owner(switch)
            if test is None or owner is None or isinstance(test, Named):
                continue
            caches = tuning_caches(file)
            here = [cache.name for cache in caches if any(file.owner(write.place) is owner for write in cache.writes)]
            if here:
                yield self.at(file, switch, f"the switch is read only if {here[0]} misses: a stored entry wins over it")


class NoSwitch(Rule):
    """No switch turns the search off.

    CI needs the same kernel every time, and a profiler records every trial. 16 of TileGym's 40 files have no switch.
    Fix: read the switch before the cache, and launch the shipped configuration while the switch is set.
    Sources: TileGym 1.5.1.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        calls = [search.call for search in searches(file)]
        if calls and not switches(file):
            lines = ", ".join(str(call.lineno) for call in calls[1:])
            more = f" (nor before the searches in lines {lines})" if lines else ""
            yield self.at(file, calls[0], f"no switch that turns tuning off is read before this search{more}")


class DeadSwitch(Rule):
    """The program sets an environment variable that nothing reads.

    TileGym reads neither DISABLE_AUTOTUNE nor DISABLE_CUTILE_TUNE, though its own CI sets DISABLE_AUTOTUNE; only
    Tilewright's wrapper reads them. In cuda-tile 1.7 no variable turns on flush-to-zero or approximate arithmetic.
    Fix: set TILEGYM_DISABLE_AUTOTUNE, which TileGym reads, or the operation's own argument.
    Sources: cuda-tile 1.7; TileGym 1.5.1.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        if file.packages & {"triton", "tilewright"} or not file.packages & {"cuda", "tilegym"}:
            return
        if not any(name in file.text for name in UNREAD_VARIABLES):
            return
        read = {name for _, name in _variables(file, READERS, ast.Load)}
        for node, name in _variables(file, SETS, ast.Store):
            if name in UNREAD_VARIABLES and name not in read:
                yield self.at(file, node, f"nothing reads {name}: {UNREAD_VARIABLES[name]}")


def _variables(file: SourceFile, calls: set[str], context: type[ast.Load | ast.Store]) -> Iterator[tuple[ast.AST, str]]:
    """Yields the nodes that read (context ast.Load) or set (ast.Store) an environment variable, with its name.

    Leaves out nodes in which the name is not a literal.
    """
    for node in file.nodes:
        key: ast.expr | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, context):
            key = node.slice if file.dotted(node.value) == "os.environ" else None
        elif isinstance(node, ast.Call) and file.dotted(node.func) in calls:
            key = node.args[0] if node.args else None
        if isinstance(key, ast.Constant):
            yield node, str(key.value)


class CurrentDevice(Rule):
    """The code queries the current device, not the tensors' device.

    With two GPU models, tensors on cuda:1 get the tiles for cuda:0. cuda-tile 1.6 compiles for the launch's device.
    Fix: pass the tensor's device: `torch.cuda.get_device_capability(x.device)`.
    Sources: cuda-tile 1.6.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        if not any(origin.startswith(("cuda.tile", "cuda_tile")) for origin in file.imports.values()):
            return
        seen: set[ast.AST | None] = set()
        for call in file.every(ast.Call):
            name, owner = file.dotted(call.func), file.owner(call)
            if owner is None and _in_main(file, call):
                continue  # a script
            if name in ASK_DEVICE and _asks_current_device(file, call) and owner not in seen:
                seen.add(owner)  # one finding for each function is enough
                where = f"in {owner.name}" if owner is not None else "when the file is imported"
                yield self.at(file, call, f"{name.rpartition('.')[2]} queries the current device, {where}")


def _in_main(file: SourceFile, node: ast.AST) -> bool:
    arms = (parent for parent, _ in file.above(node) if isinstance(parent, ast.If))
    return any("__name__" in ast.unparse(arm.test) for arm in arms)


def _asks_current_device(file: SourceFile, call: ast.Call) -> bool:
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    device = given[0] if given else ast.Constant(None)
    if isinstance(device, ast.Constant):
        return device.value in ("cuda", None)
    return isinstance(device, ast.Call) and file.dotted(device.func) == "torch.cuda.current_device"


RULES = (
    CannotBeRead("TW001"),
    CacheKey("TW201", "warning"),
    ProcessOnlyCache("TW202", "note"),
    SearchOnHotPath("TW204"),
    SwitchAfterCache("TW205", "warning"),
    NoSwitch("TW206", "note"),
    DeadSwitch("TW207", "warning"),
    CurrentDevice("TW208", "note"),
    KeyTooExact("TW209", "warning"),
)
