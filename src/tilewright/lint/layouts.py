"""Whether the strides of the tensors that a search passes can differ between calls.

They can where the text shows that a tensor comes directly from a caller outside the file, and no line on the way makes
it contiguous or asserts that it is.
"""

from __future__ import annotations

import ast

from tilewright.lint.tile_code import annotation, passed_for, taken_by
from tilewright.source.cutile import SearchSite, kernels_of
from tilewright.source.source_file import Named, SourceFile, parameters, returned, text

VIEWS = {"view", "transpose", "permute", "t", "squeeze", "unsqueeze", "detach", "expand", "narrow"}
"""Methods whose result shares the tensor's memory."""


def strides_vary(file: SourceFile, search: SearchSite) -> bool:
    """Whether the caller decides the strides of some tensor among the search's arguments."""
    return any(
        _free(file, tensor, 6)
        for function in file.values(search.args_fn)
        for value in returned(function)
        for tensor in _tensors(file, search, value)
    )


def _tensors(file: SourceFile, search: SearchSite, value: ast.AST) -> list[ast.expr]:
    """The arguments that are arrays, by the kernel's signature or by their use in the file."""
    passed = [file.value(value)]
    if isinstance(value, ast.Name) and not isinstance(passed[0], ast.Tuple):
        passed = [file.value(given) for given in passed_for(file, value)]
    kernels = kernels_of(file, search.kernel)
    declared = parameters(kernels[0].node) if len(kernels) == 1 else ()
    tensors: list[ast.expr] = []
    for whole in (given for given in passed if isinstance(given, ast.Tuple)):
        if declared and len(declared) == len(whole.elts):
            pairs = zip(whole.elts, declared, strict=True)
            tensors += [tensor for tensor, into in pairs if not annotation(file, into)]
        else:
            tensors += [tensor for tensor in whole.elts if _used_as_tensor(file, tensor)]
    return tensors


def _used_as_tensor(file: SourceFile, node: ast.expr) -> bool:
    owner = taken_by(file, node) if isinstance(node, ast.Name) else None
    return owner is not None and _mentions(file, owner, node, "dtype", "device")


def _free(file: SourceFile, node: ast.AST, depth: int) -> bool:
    """Whether a tensor is the caller's, or a view of the caller's."""
    if isinstance(node, ast.Call):
        method = node.func
        return isinstance(method, ast.Attribute) and method.attr in VIEWS and _free(file, method.value, depth)
    if not isinstance(node, ast.Name) or not depth:
        return False
    bindings = file.bindings(node.id, node)
    function = taken_by(file, node)
    if len(bindings) == 1 and bindings[0].kind == "value" and bindings[0].value is not None:
        return _free(file, bindings[0].value, depth - 1)
    if function is None or len(bindings) != 1 or _made_contiguous(file, function, node):
        return False
    calls, passed_on = file.calls_of(function)
    if calls:
        return any(_free(file, passed, depth - 1) for passed in passed_for(file, node))
    return not passed_on


def _made_contiguous(file: SourceFile, function: Named, name: ast.Name) -> bool:
    """Whether a function or its decorator makes a parameter contiguous or asks whether it is."""
    if any("contiguous" in ast.unparse(decorator) for decorator in function.decorator_list):
        return True
    return _mentions(file, function, name, "contiguous", "is_contiguous")


def _mentions(file: SourceFile, function: Named, tensor: ast.expr, *attributes: str) -> bool:
    """Whether a function reads one of these attributes of a tensor."""
    chains = {f"{text(tensor)}.{attribute}" for attribute in attributes}
    return any(node.attr in attributes and text(node) in chains for node in file.every(ast.Attribute, function))
