"""The current device is asked, not that of the tensors.

With two models of GPU in a machine, tensors on cuda:1 get the tiles and the grid of cuda:0. cuda-tile itself compiles
for the device of the launch since 1.6.

Fix: pass the tensor's device: `torch.cuda.get_device_capability(x.device)`.

Sources: cuda-tile 1.6.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.source.source_file import SourceFile

ASKED = {"torch.cuda.get_device_capability", "torch.cuda.get_device_properties", "torch.cuda.get_device_name"}


class CurrentDevice(Rule):
    code = "TW208"
    level = "note"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        if not any(origin.startswith(("cuda.tile", "cuda_tile")) for origin in file.imports.values()):
            return
        seen: set[ast.AST | None] = set()
        for call in file.every(ast.Call):
            name, owner = file.dotted(call.func), file.owner(call)
            if name in ASKED and _current(file, call) and owner not in seen:
                seen.add(owner)  # one for each function is enough
                where = f"in {owner.name}" if owner is not None else "when the file is imported"
                yield self.at(file, call, f"{name.rpartition('.')[2]} asks the current device, {where}")


def _current(file: SourceFile, call: ast.Call) -> bool:
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not given:
        return True
    if isinstance(given[0], ast.Constant):
        return given[0].value in ("cuda", None)
    return isinstance(given[0], ast.Call) and file.dotted(given[0].func) == "torch.cuda.current_device"


RULE = CurrentDevice()
