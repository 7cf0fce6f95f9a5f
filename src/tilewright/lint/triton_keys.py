"""Finds constants of a tuned Triton kernel that change the best configuration but are not in the key of its tuner.

In Triton 3.9 the key consists of the values of the named parameters and the dtype of each tensor. An optional tensor
that is None has no dtype, so the key also shows whether the tensor is passed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tilewright.lint.caches import CoveredByKey
from tilewright.lint.lengths import is_rounded
from tilewright.source.source_file import (
    DEPTH,
    SourceFile,
    argument,
    elements,
    keywords,
    names,
    own,
    parameters,
    returned,
)
from tilewright.source.triton import TritonKernel, TritonLaunch, launches_of, operation
from tilewright.source.values import called_name

COUNTED = {"range", "static_range", "cdiv"}
EXTENTS = {"arange": (0, 1), "static_range": (0, 1), "zeros": (0,), "full": (0,), "make_block_ptr": (4,),
           "make_tensor_descriptor": (3,)}  # fmt: skip
"""Maps an operation to the positions of the arguments that are extents of a tile, or the length of an unrolled loop."""
EXTENT_NAMES = {"shape", "block_shape", "start", "end"}
HEAVY = {"load", "store", "dot", "dot_scaled", "atomic_add", "atomic_max", "atomic_min", "associative_scan", "sort"}
"""Operations that take long enough to change the best configuration."""
NAMES_A_DTYPE = re.compile(r"(FP|BF|FLOAT|INT|F)\d+|DTYPE", re.IGNORECASE)
"""The name of a flag that follows the dtype of a tensor, which is in the key."""

MODELS = re.compile(
    r"head|dmodel|group|expert|state|conv|width|mult|top_?k|channel|hidden|embed|feat|_dim$|^c$"
    r"|^(block_?)?b?d[hkvq]?$|^(n|num_)?h[ckqv]*$",
    re.IGNORECASE,
)
"""The name of a size that the model fixes. All calls of a program pass the same."""
FEW_VALUES = re.compile(r"pow(er)?_?(of)?_?2|log2|bit_length|\b(min|max)\(", re.IGNORECASE)
"""A call that rounds a size to one of few values."""
BLOCK = re.compile(r"block|blk|tile|^B[A-Z]$", re.IGNORECASE)
"""The name of the size of a block."""


def missing_constants(file: SourceFile, kernel: TritonKernel, key: set[str]) -> tuple[list[str], list[str]]:
    """Returns the constants that are missing in the key: launches pass different values for them, and they are sizes of
    tiles or loops (the first list), or select loops or memory accesses (the second)."""
    tuner, sites = kernel.tuner, [site for site in launches_of(file, kernel) if site.is_whole]
    if tuner is None or not sites or any("key" in name.lower() for name in key):
        return [], []  # a parameter such as shape_key may stand for anything
    known = key | tuner.fields | kernel.computed_late
    sizes, flags = (found - known for found in (_sizes(file, kernel, tuner.fields), _flags(file, kernel)))
    missing: tuple[list[str], list[str]] = [], []
    for name in (one.arg for one in parameters(kernel.node)):
        computed = kernel.computed.get(name)
        if computed is not None:
            differs = name in sizes and _is_open(kernel, computed, key)
        else:
            differs = name in sizes | flags and _differs(file, sites, name, key, name in sizes)
        if differs:
            missing[name not in sizes].append(name)
    return missing


def _sizes(file: SourceFile, kernel: TritonKernel, tuned: set[str]) -> set[str]:
    """Returns the constants that are the extent of a tile, the length of an unrolled loop, or the range of a loop whose
    step is tuned."""
    found: set[str] = set()
    for call in own(kernel.node, ast.Call):
        name = operation(file, call) or called_name(call)
        places = EXTENTS.get(name, ())
        extents = [call.args[place] for place in places if place < len(call.args)]
        extents += [value for word, value in keywords(call).items() if places and word in EXTENT_NAMES]
        found |= set().union(*map(names, extents))
        used = names(call)
        found |= used if name in COUNTED and used & tuned else set()
    return {name for name in found & kernel.constants if not NAMES_A_DTYPE.search(name)}


def _flags(file: SourceFile, kernel: TritonKernel) -> set[str]:
    """Returns the constants that decide whether the kernel loops or accesses memory.

    A constant that only chooses between two pieces of arithmetic hardly changes which configuration is the fastest.
    """
    found: set[str] = set()
    for branch in own(kernel.node, ast.If):
        used = names(branch.test)
        found |= used if used <= kernel.constants and _loops_or_accesses(file, branch) else set()
    return {name for name in found if not NAMES_A_DTYPE.search(name)}


def _loops_or_accesses(file: SourceFile, branch: ast.If) -> bool:
    """Returns whether a branch contains a loop, or an operation that takes long."""
    inside = [node for part in (*branch.body, *branch.orelse) for node in ast.walk(part)]
    calls = (node for node in inside if isinstance(node, ast.Call))
    return any(isinstance(node, (ast.For, ast.While)) for node in inside) or any(
        operation(file, call) in HEAVY for call in calls
    )


def _is_open(kernel: TritonKernel, computed: ast.expr, key: set[str]) -> bool:
    """Returns whether a heuristic depends on a constant that is not in the key. It may depend on dtypes, which are
    always in the key."""
    reads = (node.slice for value in returned(computed) for node in ast.walk(value) if isinstance(node, ast.Subscript))
    return any(isinstance(read, ast.Constant) and read.value in kernel.constants - key for read in reads)


def _differs(file: SourceFile, sites: list[TritonLaunch], name: str, key: set[str], is_size: bool) -> bool:
    """Returns whether launches with the same key may pass different values for the parameter ``name``.

    Most programs pass only one value. So a size counts only if it is seen to vary, or if the file passes different
    values; a flag if the file passes different values, or compares a length.
    """
    literals: dict[frozenset[str], set[str]] = {}
    for site in sites:
        value = site.passed.get(name)
        if isinstance(value, ast.Constant):
            absent = {tensor for tensor, passed in site.passed.items() if ast.unparse(passed) == "None"}
            literals.setdefault(frozenset(absent), set()).add(ast.unparse(value))
            continue
        counts = value is not None and (_varies(file, site, name) if is_size else _compares(file, value))
        if value is not None and counts and not _follows(file, site, value, key):
            return True
    return any(len(values) > 1 for values in literals.values())


def _varies(file: SourceFile, site: TritonLaunch, name: str) -> bool:
    """Returns whether the text shows that the size ``name`` differs between calls.

    It does if the tuner's own function drops configurations by this size, if the file rounds it to one of few values,
    or if it is the extent of a matrix. A plain parameter, and an extent that the model fixes, are the same in most
    programs. A quotient such as ``cdiv(rows, 4)`` has too many values for a key.
    """
    if name in _pruned_by(file, site.kernel):
        return True
    passed = site.passed[name]
    value = _meant(file, passed)
    read = names(passed) | names(value) - file.imports.keys()
    if MODELS.search(name) or any(map(MODELS.search, read)):
        return False
    if isinstance(value, (ast.Call, ast.BinOp, ast.IfExp)):
        is_own = isinstance(value, ast.Call) and file.function(value.func) is not None
        few = is_own or isinstance(value, ast.IfExp) or bool(FEW_VALUES.search(ast.unparse(value)))
        return few and not any(_unpacked(file, one) > 2 for one in ast.walk(value) if isinstance(one, ast.Name))
    return _is_extent(file, passed, value)


def _pruned_by(file: SourceFile, kernel: TritonKernel) -> set[str]:
    """Returns the words in the function that drops configurations before they are timed: names of parameters that it
    reads."""
    given = argument(kernel.tuner.call, 2, "prune_configs_by") if kernel.tuner else None
    pruning = file.value(given)
    functions = [file.function(value) for value in pruning.values] if isinstance(pruning, ast.Dict) else []
    constants = (one.value for each in functions if each is not None for one in file.every(ast.Constant, each))
    return {value for value in constants if isinstance(value, str)}


def _is_extent(file: SourceFile, passed: ast.expr, value: ast.expr) -> bool:
    """Returns whether a value is an extent of an array: ``x.shape[1]``, or one of ``m, n = x.shape``. The extents of an
    array of three and more dimensions are mostly fixed by the model."""
    if isinstance(value, ast.Subscript):
        return isinstance(value.value, ast.Attribute) and value.value.attr == "shape"
    return isinstance(passed, ast.Name) and 0 < _unpacked(file, passed) <= 2


def _unpacked(file: SourceFile, name: ast.Name) -> int:
    """Returns into how many names the expression is unpacked that gives a name its value; 0 if it is not unpacked."""
    places = (binding.place for binding in file.bindings(name.id, name) if binding.kind == "part")
    return max((len(elements(place.targets[0])) for place in places if isinstance(place, ast.Assign)), default=0)


def _compares(file: SourceFile, passed: ast.expr) -> bool:
    """Returns whether a flag compares a number of the call, such as ``length == 1``."""
    value = _meant(file, passed)
    comparators = value.comparators if isinstance(value, ast.Compare) else []
    return any(isinstance(one, ast.Constant) and type(one.value) is int for one in comparators)


def _follows(file: SourceFile, site: TritonLaunch, passed: ast.expr, key: set[str]) -> bool:
    """Returns whether the key of a launch determines the value ``passed``."""
    value = _meant(file, passed)
    others = [each for name, each in site.passed.items() if name not in site.kernel.constants]
    tensors = {ast.unparse(each) for each in others}
    is_flag = any(_is_there_if(file, flag, each) for flag in (passed, value) for each in others)
    if is_flag or isinstance(value, ast.Constant) or _asks_for(value, tensors) or _is_hidden(file, value):
        return True
    parts: list[ast.AST] = [each for name in key & site.passed.keys() for each in _aliases(file, site.passed[name])]
    # a bucket such as cdiv(length, 1024) also stands for what is computed from the length
    parts += [one for one in (_meant(file, site.passed[name]) for name in key & site.passed.keys()) if is_rounded(one)]
    parts += [ast.Attribute(ast.Name(tensor), "dtype") for tensor in tensors if tensor.isidentifier()]
    parts.append(ast.Constant("device"))  # assume that a program uses only one model of GPU
    return not CoveredByKey(file, parts).missing(value, set())


def _is_hidden(file: SourceFile, value: ast.expr) -> bool:
    """Returns whether the text does not show where a value comes from: ``m, n = ctx.dims``, or a block size that the
    caller passes, and that it may have computed from sizes in the key."""
    bindings = file.bindings(value.id, value) if isinstance(value, ast.Name) else ()
    whole = [binding.value for binding in bindings if binding.kind == "part"]
    if any(isinstance(one, ast.Attribute) and one.attr != "shape" for one in whole):
        return True
    is_passed = any(binding.kind == "parameter" for binding in bindings)
    return is_passed and isinstance(value, ast.Name) and bool(BLOCK.search(value.id))


def _meant(file: SourceFile, value: ast.expr, depth: int = DEPTH) -> ast.expr:
    """Returns the expression that gives a name its value. Also follows an attribute that is set once, such as
    ``ctx.chunk_size``."""
    found = file.value(value)
    if not isinstance(found, ast.Attribute) or not depth:
        return found if isinstance(found, ast.expr) else value
    text, stores = ast.unparse(found), file.every(ast.Assign)
    values = [store.value for store in stores if any(ast.unparse(target) == text for target in store.targets)]
    return _meant(file, values[0], depth - 1) if len(values) == 1 else found


def _aliases(file: SourceFile, value: ast.expr) -> Iterator[ast.expr]:
    """Yields an expression, and the expressions of which it is a copy: for ``a`` after ``a = b``, also ``b``."""
    yield value
    bindings = file.bindings(value.id, value) if isinstance(value, ast.Name) else ()
    if len(bindings) == 1 and bindings[0].kind == "value" and isinstance(bindings[0].value, ast.Name):
        yield from _aliases(file, bindings[0].value)


def _is_there_if(file: SourceFile, flag: ast.expr, tensor: ast.expr) -> bool:
    """Returns whether ``flag`` decides if ``tensor`` is a tensor or None, as in ``tensor = torch.empty(…) if flag else
    None``."""
    bindings = file.bindings(tensor.id, tensor) if isinstance(tensor, ast.Name) else ()
    values = [binding.value for binding in bindings]
    choices = [value for value in values if isinstance(value, ast.IfExp)]
    tests = [choice.test for choice in choices if "None" in map(ast.unparse, (choice.body, choice.orelse))]
    if any(isinstance(value, ast.Constant) and value.value is None for value in values):
        above = (parent for binding in bindings for parent, _ in file.within(binding.place))
        tests += [parent.test for parent in above if isinstance(parent, ast.If)]
    return ast.unparse(flag) in map(ast.unparse, tests)


def _asks_for(value: ast.expr, tensors: set[str]) -> bool:
    """Returns whether an expression only tests whether arguments of the launch are tensors or None."""
    if isinstance(value, ast.BoolOp):
        return all(_asks_for(part, tensors) for part in value.values)
    if isinstance(value, ast.UnaryOp):
        return _asks_for(value.operand, tensors)
    if isinstance(value, ast.IfExp):  # True if tensor is not None else False
        is_constant = isinstance(value.body, ast.Constant) and isinstance(value.orelse, ast.Constant)
        return is_constant and _asks_for(value.test, tensors)
    if isinstance(value, ast.Compare):
        return ast.unparse(value.left) in tensors and isinstance(value.ops[0], (ast.Is, ast.IsNot))
    if isinstance(value, ast.Call) and called_name(value) == "isinstance":
        return ast.unparse(value.args[0]) in tensors
    return False
