"""Finds statements that provably change no tensor and no state that other statements read."""

from __future__ import annotations

import ast

from tilewright.program.reading.layers import layer_of
from tilewright.program.reading.module import ReadModule

_NAMES = """
    abs add all amax amin any argmax argmin bfloat16 bmm bool chunk clamp clone contiguous cos cpu cuda cumsum
    detach dim div double eq exp expand expand_as flatten flip float floor gather ge gt half index_select int item le
    log log_softmax logical_and logical_not logical_or long lt masked_fill matmul max mean min mm movedim mul
    ndimension ne neg new_full new_ones new_tensor new_zeros norm numel permute pow reciprocal relu repeat
    repeat_interleave reshape roll round rsqrt select sigmoid sign sin size softmax split sqrt square squeeze stride
    sub sum swapaxes t tanh to tolist transpose tril triu type type_as unbind unflatten unfold unsqueeze
    var view view_as where
"""
METHODS = frozenset(_NAMES.split())
"""Methods of tensors that return a new tensor, a view or a number."""
BUILTINS = ("len", "range", "int", "float", "bool", "min", "max", "sum", "tuple", "list", "isinstance", "str", "print",
            "enumerate", "zip", "getattr", "hasattr", "abs", "round", "sorted", "type")  # fmt: skip
ROOTS = ("torch.", "math.", "numpy.")
IMPURE = ("torch.manual_seed", "torch.seed", "torch.save", "torch.load", "torch.compile", "torch.utils.checkpoint",
          "torch.autograd", "torch.optim", "torch.distributed", "torch.set_", "torch.jit", "torch.cuda",
          "torch.nn.init")  # fmt: skip
STATEMENTS = (ast.Assign, ast.AnnAssign, ast.Expr, ast.Assert, ast.Pass, ast.If, ast.Raise)


def is_pure(module: ReadModule, statement: ast.stmt) -> bool:
    """Returns whether a statement only binds names to expressions without side effects."""
    for node in ast.walk(statement):
        if isinstance(node, ast.stmt) and not isinstance(node, STATEMENTS):
            return False
        if isinstance(node, ast.Call) and not is_pure_call(module, node):
            return False
        if isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Lambda)):
            return False
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            return False
    return True


def is_pure_call(module: ReadModule, call: ast.Call) -> bool:
    """Returns whether a call provably changes neither its arguments nor anything else."""
    name = module.full(call.func)
    if any(keyword.arg in ("out", "inplace") for keyword in call.keywords):
        return False
    if name:
        return name.startswith(ROOTS) and not name.startswith(IMPURE) and not name.endswith("_")
    if module.is_builtin(call.func, *BUILTINS):
        return True
    if isinstance(call.func, ast.Attribute):
        return layer_of(module, call.func) != "" or call.func.attr in METHODS
    return False
