"""Distinguishes code that runs on every call of a function from code that runs only on a cache miss.

Code runs only on a miss in these places:

- after `key not in cache`, after `cache.get(key)` returned None, and after `if key in cache: return …`;
- in the handler of a KeyError;
- in the body of a function under `functools.cache`;
- in a function whose calls in the file all run only on a miss.
"""

from __future__ import annotations

import ast
import re

from tilewright.source.source_file import Named, SourceFile, remembered

MEMOISED = ("functools.cache", "functools.lru_cache", "cache", "lru_cache", "functools.cached_property")
ONCE = {"__init__", "__post_init__", "__new__", "__init_subclass__", "setUp", "setup", "main"}
FORCED = re.compile(r"\A(not )?[\w.]*(force|retune|refresh|re_?search|overwrite)\w*\Z", re.IGNORECASE)
"""A condition that a caller sets to search again."""
LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


@remembered
def filled_mappings(file: SourceFile) -> set[str]:
    """Returns the names of mappings that functions of the file fill with ``cache[key] = …`` or `setdefault`."""
    writes = [node.value for node in file.every(ast.Subscript) if isinstance(node.ctx, ast.Store) and file.owner(node)]
    writes += [node.value for node in file.every(ast.Attribute) if node.attr == "setdefault" and file.owner(node)]
    return {file.dotted(mapping) for mapping in writes} - {""}


def on_a_miss(file: SourceFile, node: ast.AST) -> ast.AST | None:
    """Returns the node that keeps ``node`` from running on a cache hit: a test, an exception handler or a function.

    Returns None if ``node`` runs on a hit, too. Looks only at the named function around ``node``.
    """
    for parent, child in file.above(node):
        if isinstance(parent, Named):
            if is_memoised(file, parent):
                return parent
            return _after_a_hit(file, parent.body, child)
        if isinstance(parent, (ast.If, ast.IfExp)):
            when_true, when_false = _when_missed(file, parent.test)
            body, orelse = (arm if isinstance(arm, list) else [arm] for arm in (parent.body, parent.orelse))
            if (child in body and when_true) or (child in orelse and when_false):
                return parent.test
        elif isinstance(parent, ast.BoolOp) and child in parent.values:
            missed = 0 if isinstance(parent.op, ast.And) else 1  # ``key not in cache and …``, ``key in cache or …``
            for before in parent.values[: parent.values.index(child)]:
                if _when_missed(file, before)[missed]:
                    return before
        elif isinstance(parent, ast.ExceptHandler) and _catches_key_error(parent):
            return parent
        if isinstance(parent, ast.Lambda):
            call = file.parent(parent)
            if not (isinstance(call, ast.Call) and call.func is parent):
                return parent
        for block in (getattr(parent, name, None) for name in ("body", "orelse", "finalbody")):
            if isinstance(block, list) and child in block and (test := _after_a_hit(file, block, child)) is not None:
                return test
    return None


def is_memoised(file: SourceFile, function: Named) -> bool:
    """Returns whether a decorator such as `functools.cache` keeps the results of a function."""
    called = (each.func if isinstance(each, ast.Call) else each for each in function.decorator_list)
    every = [file.dotted(each) for each in called]
    return any(dotted in MEMOISED or "cache" in dotted.rpartition(".")[2].lower() for dotted in every)


def on_every_call(file: SourceFile, node: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> bool:
    """Returns whether a function that other files call always runs ``node``, also on a cache hit."""
    owner = file.owner(node)
    if owner is None or owner in seen or on_a_miss(file, node) is not None:
        return False
    if owner.name in ONCE or owner.name.startswith(("test_", "bench")):
        return False
    calls, passed_on = file.calls_of(owner)
    if calls:
        return any(on_every_call(file, call, seen | {owner}) for call in calls)
    return not passed_on


def _after_a_hit(file: SourceFile, block: list[ast.stmt], child: ast.AST) -> ast.AST | None:
    """Returns the test of an ``if``, or the ``try``, that leaves ``block`` before ``child`` on a hit; else None."""
    for statement in block:
        if statement is child:
            return None
        leaves = isinstance(statement, (ast.If, ast.Try)) and isinstance(statement.body[-1], LEAVES)
        if leaves and isinstance(statement, ast.If) and _when_missed(file, statement.test)[1]:
            return statement.test
        if leaves and isinstance(statement, ast.Try) and any(map(_catches_key_error, statement.handlers)):
            return statement
    return None


def _catches_key_error(handler: ast.ExceptHandler) -> bool:
    return handler.type is not None and "KeyError" in ast.unparse(handler.type)


def _when_missed(file: SourceFile, test: ast.expr) -> tuple[bool, bool]:
    """Returns whether ``test`` is true only on a cache miss, and whether it is false only on a cache miss."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        when_true, when_false = _when_missed(file, test.operand)
        return when_false, when_true
    if isinstance(test, ast.BoolOp):
        # ``force or key not in cache``: what a caller forces is no call of the hot path
        kept = [part for part in test.values if not FORCED.search(ast.unparse(part))] or test.values
        parts = [_when_missed(file, part) for part in kept]
        if len(parts) == 1:
            return parts[0]
        if isinstance(test.op, ast.And):
            return any(part[0] for part in parts), False
        return False, any(part[1] for part in parts)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        operator, other = test.ops[0], test.comparators[0]
        if isinstance(operator, (ast.In, ast.NotIn)) and file.dotted(other) in filled_mappings(file):
            return isinstance(operator, ast.NotIn), isinstance(operator, ast.In)
        is_none = isinstance(other, ast.Constant) and other.value is None and _looked_up(file, test.left)
        return is_none and isinstance(operator, ast.Is), is_none and isinstance(operator, ast.IsNot)
    return False, _looked_up(file, test)


def _looked_up(file: SourceFile, node: ast.expr) -> bool:
    """Returns whether an expression reads a stored value: `cache.get(key)`, an attribute of self, a global variable."""
    if isinstance(node, ast.NamedExpr):
        return _looked_up(file, node.value)
    if isinstance(node, ast.Attribute):
        return isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
    if isinstance(node, ast.Call):
        cache, _, method = file.dotted(node.func).rpartition(".")
        return method == "get" and (cache in filled_mappings(file) or "cache" in cache.lower())
    if not isinstance(node, ast.Name):
        return False
    owner = file.owner(node)
    if owner is not None and any(node.id in statement.names for statement in file.every(ast.Global, owner)):
        return True
    values = (binding.value for binding in file.bindings(node.id, node))
    return any(isinstance(value, (ast.Call, ast.NamedExpr)) and _looked_up(file, value) for value in values)
