"""Whether the strides of the tensors that a search passes can differ from one call to the next.

Only where the text shows it: a tensor comes straight from a caller outside the file, and no line on its way makes
it contiguous or asserts that it is.
"""

from __future__ import annotations

import ast

from tilewright.lint.tile_code import annotation, passed_for, taken_by
from tilewright.source.cutile import Search, kernels_of
from tilewright.source.module import Module, Named, parameters, returned

VIEWS = {"view", "transpose", "permute", "t", "squeeze", "unsqueeze", "detach", "expand", "narrow"}
"""Methods whose result lies where the tensor lies."""


def strides_vary(module: Module, search: Search) -> bool:
    """Whether some tensor of the search's arguments may lie in memory as the caller likes."""
    functions = module.values(search.args_fn) if search.args_fn is not None else ()
    return any(
        _free(module, tensor, 6)
        for function in functions
        if isinstance(function, (ast.FunctionDef, ast.Lambda))
        for value in returned(function)
        for tensor in _tensors(module, search, value)
    )


def _tensors(module: Module, search: Search, value: ast.AST) -> list[ast.expr]:
    """The arguments of which the kernel's signature, or a use in the file, says that they are arrays."""
    found = [module.value(value)]
    if isinstance(value, ast.Name) and not isinstance(found[0], ast.Tuple):
        found = [module.value(one) for one in passed_for(module, value)]
    tuples = [one for one in found if isinstance(one, ast.Tuple)]
    kernels = kernels_of(module, search.kernel)
    tensors = []
    for one in tuples:
        if len(kernels) == 1 and len(declared := parameters(kernels[0].node)) == len(one.elts):
            pairs = zip(one.elts, declared, strict=True)
            tensors += [passed for passed, into in pairs if not annotation(module, into)]
        else:
            tensors += [passed for passed in one.elts if _used_as_tensor(module, passed)]
    return tensors


def _used_as_tensor(module: Module, node: ast.expr) -> bool:
    owner = taken_by(module, node) if isinstance(node, ast.Name) else None
    return owner is not None and any(
        ast.unparse(one) in {f"{ast.unparse(node)}.dtype", f"{ast.unparse(node)}.device"}
        for one in module.every(ast.Attribute, owner)
    )


def _free(module: Module, node: ast.AST, depth: int) -> bool:
    """Whether a tensor is the caller's, or a view of the caller's."""
    if isinstance(node, ast.Call):
        method = node.func
        return isinstance(method, ast.Attribute) and method.attr in VIEWS and _free(module, method.value, depth)
    if not isinstance(node, ast.Name) or not depth:
        return False
    bindings = module.bindings(node.id, node)
    function = taken_by(module, node)
    if len(bindings) == 1 and bindings[0].kind == "value" and bindings[0].value is not None:
        return _free(module, bindings[0].value, depth - 1)
    if function is None or len(bindings) != 1 or _made_contiguous(module, function, node.id):
        return False
    calls, handed_on = module.calls_of(function)
    if calls:
        return any(_free(module, one, depth - 1) for one in passed_for(module, node))
    return not handed_on


def _made_contiguous(module: Module, function: Named, name: str) -> bool:
    """Whether a function, or its decorator, says anything about how a parameter lies in memory."""
    if any("contiguous" in ast.unparse(decorator) for decorator in function.decorator_list):
        return True
    return any(
        ast.unparse(one) in {f"{name}.contiguous", f"{name}.is_contiguous"}
        for one in module.every(ast.Attribute, function)
    )
