"""``model.compile()`` below the line that makes a model: torch.compile fuses the small kernels of its forward pass.

The method changes neither the model's class nor the names in its state, unlike ``torch.compile(model)``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.flow import after, changes_name
from tilewright.program.reading.models import made_models
from tilewright.program.reading.module import NotSure, ReadModule

PRESENT = ("torch.compile", "torch.jit.script", "torch.jit.trace", "torch.compiler.disable")
WRAPPED = ("torch.nn.DataParallel", "torch.nn.parallel.DistributedDataParallel")


class CompiledModel(ProgramChange):
    name = "compiled_model"
    about = "compiles the model, which fuses chains of small kernels and launches fewer"
    words = ("torch.compile", "torch compile", "compile* model", "inductor", "element wise", "elementwise",
             "small kernel", "kernel fusion", "fuse* operation")  # fmt: skip
    findings = ("short-kernels", "launch-calls", "host-late")
    ran = (r"triton_(poi|red|per|tem)_|CompiledFunction|Torch-Compiled",)
    order = 80
    absent = "the program makes no model of a class of its own"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        if any(self.present(each) for each in module.program):
            return
        for made in made_models(module):
            try:
                yield _compiled(module, made.statement, made.name)
            except NotSure as reason:
                yield NearMiss(reason.line, reason.reason)

    def present(self, module: ReadModule) -> str:
        for node in module.file.nodes:
            method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "compile"
            if module.full(node) in PRESENT or (method and isinstance(node, ast.Call) and not module.full(node.func)):
                return f"{module.place(node)} compiles"
        return ""


def _compiled(module: ReadModule, statement: ast.Assign, name: str) -> ChangeSite:
    if wrapper := next(module.calls(*WRAPPED), None):
        raise NotSure("the model is distributed: compile each replica by hand", wrapper)
    if any(isinstance(each, (ast.For, ast.While)) for each in module.above(statement)):
        raise NotSure("the model is made in a loop", statement)
    last: ast.stmt = statement
    for each in after(module, statement):
        if not isinstance(each, (ast.Assign, ast.AnnAssign, ast.Expr)):
            break  # stop here: a loop or another block may run the model
        if isinstance(each, (ast.Assign, ast.Expr)) and (changes_name(each, name) or _moves(each, name)):
            last = each
    return ChangeSite(statement.lineno, f"model {name}", (module.insert_after(last, f"{name}.compile()"),))


def _moves(statement: ast.stmt, name: str) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=found, attr="to" | "cuda" | "eval" | "train"))):
            return ast.unparse(found) == name
    return False


CHANGE = CompiledModel()
