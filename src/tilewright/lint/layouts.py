"""Whether the strides of the tensors that a search passes can differ from one call to the next.

Only where the text shows it: a tensor comes straight from a caller outside the file, and no line on its way makes
it contiguous or asserts that it is.
"""

from __future__ import annotations

import ast

from tilewright.lint.tile_code import annotation, passed_for, taken_by
from tilewright.source.cutile import SearchCall, kernels_of
from tilewright.source.source_file import Named, SourceFile, parameters, returned

VIEWS = {"view", "transpose", "permute", "t", "squeeze", "unsqueeze", "detach", "expand", "narrow"}
"""Methods whose result lies where the tensor lies."""


def strides_vary(file: SourceFile, search: SearchCall) -> bool:
    """Whether some tensor of the search's arguments may lie in memory as the caller likes."""
    functions = file.values(search.args_fn) if search.args_fn is not None else ()
    return any(
        _free(file, tensor, 6)
        for function in functions
        if isinstance(function, (ast.FunctionDef, ast.Lambda))
        for value in returned(function)
        for tensor in _tensors(file, search, value)
    )


def _tensors(file: SourceFile, search: SearchCall, value: ast.AST) -> list[ast.expr]:
    """The arguments of which the kernel's signature, or a use in the file, says that they are arrays."""
    found = [file.value(value)]
    if isinstance(value, ast.Name) and not isinstance(found[0], ast.Tuple):
        found = [file.value(one) for one in passed_for(file, value)]
    tuples = [one for one in found if isinstance(one, ast.Tuple)]
    kernels = kernels_of(file, search.kernel)
    tensors = []
    for one in tuples:
        if len(kernels) == 1 and len(declared := parameters(kernels[0].node)) == len(one.elts):
            pairs = zip(one.elts, declared, strict=True)
            tensors += [passed for passed, into in pairs if not annotation(file, into)]
        else:
            tensors += [passed for passed in one.elts if _used_as_tensor(file, passed)]
    return tensors


def _used_as_tensor(file: SourceFile, node: ast.expr) -> bool:
    owner = taken_by(file, node) if isinstance(node, ast.Name) else None
    return owner is not None and any(
        ast.unparse(one) in {f"{ast.unparse(node)}.dtype", f"{ast.unparse(node)}.device"}
        for one in file.every(ast.Attribute, owner)
    )


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
    if function is None or len(bindings) != 1 or _made_contiguous(file, function, node.id):
        return False
    calls, handed_on = file.calls_of(function)
    if calls:
        return any(_free(file, one, depth - 1) for one in passed_for(file, node))
    return not handed_on


def _made_contiguous(file: SourceFile, function: Named, name: str) -> bool:
    """Whether a function, or its decorator, says anything about how a parameter lies in memory."""
    if any("contiguous" in ast.unparse(decorator) for decorator in function.decorator_list):
        return True
    return any(
        ast.unparse(one) in {f"{name}.contiguous", f"{name}.is_contiguous"}
        for one in file.every(ast.Attribute, function)
    )
