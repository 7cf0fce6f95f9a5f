"""``zero_grad(set_to_none=False)`` → ``zero_grad()``, which drops gradients instead of writing zeros."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.module import ReadModule


class GradientsToNone(ProgramChange):
    name = "gradients_to_none"
    about = "drops gradients before a step instead of writing zeros into them and adding to them"
    words = ("set_to_none", "zero_grad", "gradients to none")
    findings = ("short-kernels", "launch-calls")
    gone = (r"_foreach_zero_|aten::zero_",)
    order = 60
    asked_only = True
    absent = "the program does not keep gradients as zeros"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        reads = [node for node in module.file.every(ast.Attribute) if node.attr == "grad"]
        for call in module.file.every(ast.Call):
            if not isinstance(call.func, ast.Attribute) or call.func.attr != "zero_grad":
                continue
            value = next((each.value for each in call.keywords if each.arg == "set_to_none"), None)
            if not isinstance(value, ast.Constant) or value.value is not False:
                continue
            if reads:
                yield NearMiss(call.lineno, f"line {reads[0].lineno} reads gradients, which may expect zeros")
            elif len(call.keywords) == 1 and not call.args:
                edit = module.replace(call, f"{module.code(call.func)}()")
                note = "a parameter without a gradient is now left out of the update"
                yield ChangeSite(call.lineno, "zero_grad", (edit,), note)


CHANGE = GradientsToNone()
