"""Puts ``@torch.compile`` above a function that is a chain of small kernels: they become one fused kernel.

A function is changed only if it is at the top of a file, computes its result from its arguments, changes nothing and
draws no random numbers. A model is compiled by `compiled_model`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.module import NotSure, ReadModule
from tilewright.program.reading.often import called_often
from tilewright.program.reading.operations import arithmetic, operation
from tilewright.program.reading.purity import is_pure
from tilewright.source.source_file import returned

FEWEST = 4
"""A function with at least this many kernels is a chain."""
READ = ("item", "cpu", "numpy", "tolist", "nonzero", "unique")
RANDOM = ("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "normal", "bernoulli", "multinomial",
          "dropout", "poisson")  # fmt: skip
FREE = ("size", "view", "reshape", "unsqueeze", "squeeze", "transpose", "permute", "expand", "detach", "dim", "numel",
        "flatten", "t", "chunk", "split", "unbind", "contiguous", "to", "float", "device")  # fmt: skip


class CompiledFunction(ProgramChange):
    name = "compiled_function"
    about = "compiles a function that is a chain of small kernels into fused ones"
    words = ("compile* function", "compile* loss", "fuse* function", "torch.compile function")
    findings = ("short-kernels", "launch-calls", "host-late")
    ran = (r"triton_(poi|red|per|tem)_|CompiledFunction|Torch-Compiled",)
    order = 82
    absent = "the program has no function of its own that is a chain of small kernels"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        often = called_often(module)
        for function in module.file.tree.body:
            if not isinstance(function, ast.FunctionDef) or function.name not in often:
                continue
            try:
                if _kernels(module, function) >= FEWEST and not function.decorator_list:
                    _check(module, function)
                    edit = module.insert_before(function, f"@{module.spelled('torch.compile', function)}")
                    yield ChangeSite(function.lineno, f"function {function.name}", (edit,))
            except NotSure as reason:
                yield NearMiss(reason.line, reason.reason)


def _kernels(module: ReadModule, function: ast.FunctionDef) -> int:
    """Returns about how many kernels a function launches; 0 if no call shows that it computes with tensors."""
    calls = [operation(module, node)[0] for node in ast.walk(function) if isinstance(node, ast.Call)]
    kernels = sum(name not in (*FREE, "") for name in calls)
    sums = sum(isinstance(node, ast.BinOp) and arithmetic(module, node) is not None for node in ast.walk(function))
    return kernels + sums if kernels > 1 else 0


def _check(module: ReadModule, function: ast.FunctionDef) -> None:
    if not returned(function):
        raise NotSure(f"{function.name} returns nothing", function)
    arguments = {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}
    for statement in function.body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if not isinstance(statement, ast.Return) and not is_pure(module, statement):
            raise NotSure(f"line {statement.lineno} may change something", statement)
        for node in ast.walk(statement):
            name = operation(module, node)[0] if isinstance(node, ast.Call) else ""
            if name in (*READ, *RANDOM):
                raise NotSure(f"line {statement.lineno} calls {name}, which is not fused as it is", statement)
            if isinstance(node, ast.Call) and not name and not module.full(node.func):
                if isinstance(node.func, ast.Name) and node.func.id in arguments:
                    raise NotSure(f"line {statement.lineno} calls what is given as '{node.func.id}'", statement)
                if isinstance(statement, ast.Return) and not module.is_builtin(
                    node.func, "len", "float", "int", "range"
                ):
                    raise NotSure(f"line {statement.lineno} calls another function", statement)


CHANGE = CompiledFunction()
