"""Finds values that differ from call to call: numbers of tokens, rows or elements."""

from __future__ import annotations

import ast
import re

from tilewright.source.source_file import Binding, SourceFile
from tilewright.source.values import called_name

COUNTED = "tokens?|toks?|elements?|elems?|numel|rows|boxes|points|nodes|edges|voxels|nnz|pixels|samples"
NAMED_LENGTH = re.compile(
    rf"(^|_)(n|num|total|max|cu|sum)_?({COUNTED})(_[a-z])?$|(^|_)(numel|nnz)(_|$)|seq_?_?len(gth)?s?(_?[a-z]{{1,2}})?$"
    r"|(^|_)n_?ctx(_[a-z])?$|^(context|ctx|kv|prompt|q)_len(gth)?$",
    re.IGNORECASE,
)
"""The name of a number of tokens, rows or elements. A number of heads, groups or features is the model's."""
ROUNDED = re.compile(
    r"bucket|round|pow(er)?_?(of)?_?2|log2|bit_length|cdiv|align|pad|ceil|min|key|autotune", re.IGNORECASE
)
"""A name or a call that shows that a length was rounded before it became a part of a key."""
FIXED = re.compile("group|head|expert|off|indptr|weight|scale|param", re.IGNORECASE)
"""The name of an array whose size is the model's."""
FLATTENS = {"view", "reshape"}
DEPTH = 4


def is_rounded(node: ast.AST) -> bool:
    """Returns whether names or calls in an expression show that it rounds a length, so that lengths share a value."""
    return bool(ROUNDED.search(ast.unparse(node)))


def length_in(file: SourceFile, node: ast.expr, depth: int = DEPTH) -> str:
    """Returns what an expression counts, as it is written; "" if it is not seen to be a length, or if it is rounded.

    A length is a number of elements (`x.numel()`), the first extent of a flattened array (``x.view(-1, n)``), or has
    the name of one.
    """
    text = ast.unparse(node)
    if ROUNDED.search(text) or not depth:
        return ""
    if isinstance(node, ast.Name):
        return _of_name(file, node, depth)
    if isinstance(node, ast.Call) and called_name(node) in {"numel", "nelement"}:
        return "" if FIXED.search(text) else text
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return text if any(length_in(file, side, depth - 1) for side in (node.left, node.right)) else ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
        return text if _is_last(file, node.right) and length_in(file, node.left, depth - 1) else ""
    extent = _extent(node)
    if extent is not None and extent[1] == 0 and _is_flattened(file, extent[0]):
        return text
    return text if isinstance(node, ast.Attribute) and NAMED_LENGTH.search(node.attr) else ""


def _of_name(file: SourceFile, name: ast.Name, depth: int) -> str:
    """Returns the length that a name has: by its values, or else by the name itself."""
    found = [_bound_to(file, name.id, binding, depth) for binding in file.bindings(name.id, name)]
    if found and all(found):
        return found[0]
    unknown = all(binding.kind in ("parameter", "part") for binding in file.bindings(name.id, name))
    return name.id if unknown and NAMED_LENGTH.search(name.id) else ""


def _bound_to(file: SourceFile, name: str, binding: Binding, depth: int) -> str:
    value = binding.value
    if not isinstance(value, ast.expr) or is_rounded(value):
        return ""
    if binding.kind == "value":
        found = length_in(file, value, depth - 1)
        return f"{name} = {found}" if found and found != name else found
    if isinstance(value, ast.Attribute) and value.attr == "shape":
        first = next((one.id for one in ast.walk(binding.place) if isinstance(one, ast.Name)), "")
        is_first = first == name and _is_flattened(file, value.value)
        return f"{name}, the first extent of {ast.unparse(value.value)}" if is_first else ""
    return ""


def _extent(node: ast.expr) -> tuple[ast.expr, int] | None:
    """Returns the array and the dimension of ``x.shape[0]`` or ``x.size(0)``."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
        array, index = node.value.value, node.slice
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "size" and node.args:
        array, index = node.func.value, node.args[0]
    else:
        return None
    return (array, index.value) if isinstance(index, ast.Constant) and isinstance(index.value, int) else None


def _is_flattened(file: SourceFile, array: ast.expr) -> bool:
    """Returns whether an array is ``x.view(-1, …)`` or ``x.reshape(-1, …)``, so that its first extent is a product."""
    values = [array]
    if isinstance(array, ast.Name):
        bindings = file.bindings(array.id, array)
        values = [binding.value for binding in bindings if isinstance(binding.value, ast.expr)]
    for value in values:
        for call in file.every(ast.Call, value):
            first = call.args[0] if call.args else None
            first = first.elts[0] if isinstance(first, (ast.Tuple, ast.List)) and first.elts else first
            if called_name(call) in FLATTENS and first is not None and ast.unparse(first) == "-1":
                return True
            if called_name(call) == "flatten" and ast.unparse(call).endswith(("flatten(0, 1)", "flatten(0, -2)")):
                return True
    return False


def _is_last(file: SourceFile, node: ast.expr) -> bool:
    """Returns whether an expression is the last extent of an array, so that ``x.numel() // node`` is its rows."""
    values = (
        [node, *(binding.value for binding in file.bindings(node.id, node))] if isinstance(node, ast.Name) else [node]
    )
    return any(value is not None and ast.unparse(value).endswith(("shape[-1]", "size(-1)")) for value in values)
