"""``model.compile()`` below the line that makes a model: torch.compile fuses the small kernels of its forward pass.

The method changes neither the model's class nor the names in its state, unlike ``torch.compile(model)``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.models import MadeModel, last_of_making, made_models
from tilewright.program.reading.module import NotSure, ReadModule

PRESENT = ("torch.compile", "torch.jit.script", "torch.jit.trace", "torch.compiler.disable")
WRAPPED = ("torch.nn.DataParallel", "torch.nn.parallel.DistributedDataParallel")


class CompiledModel(ProgramChange):
    name = "compiled_model"
    about = "compiles the model, which fuses chains of small kernels and launches fewer"
    words: tuple[str, ...] = (
        "torch.compile", "torch compile", "compile* model", "inductor", "element wise", "elementwise", "small kernel",
        "kernel fusion", "fuse* operation",
    )  # fmt: skip
    findings = ("short-kernels", "launch-calls", "host-late")
    ran = (r"triton_(poi|red|per|tem)_|CompiledFunction|Torch-Compiled",)
    order = 80
    absent = "the program makes no model of a class of its own"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        if any(self.present(each) for each in module.program):
            return
        for made in made_models(module):
            try:
                yield self.site(module, made)
            except NotSure as reason:
                yield NearMiss(reason.line, reason.reason)

    def site(self, module: ReadModule, made: MadeModel) -> ChangeSite:
        """Returns the site at a model. Raises NotSure."""
        return compiled(module, made, "compile()")

    def present(self, module: ReadModule) -> str:
        for node in module.file.nodes:
            method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "compile"
            if module.full(node) in PRESENT or (method and isinstance(node, ast.Call) and not module.full(node.func)):
                return f"{module.place(node)} compiles"
        return ""


def compiled(module: ReadModule, made: MadeModel, call: str) -> ChangeSite:
    """Returns the site that calls a method of a model below the lines that make it. Raises NotSure."""
    if wrapper := next(module.calls(*WRAPPED), None):
        raise NotSure("the model is distributed: compile each replica by hand", wrapper)
    if any(isinstance(each, (ast.For, ast.While)) for each in module.above(made.statement)):
        raise NotSure("the model is made in a loop", made.statement)
    edit = module.insert_after(last_of_making(made), f"{made.name}.{call}")
    return ChangeSite(made.statement.lineno, f"model {made.name}", (edit,))


CHANGE = CompiledModel()
