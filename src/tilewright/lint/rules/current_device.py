"""TW208: properties of the current device instead of the tensors' (W7)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.source.source_file import SourceFile

ASKED = {"torch.cuda.get_device_capability", "torch.cuda.get_device_properties", "torch.cuda.get_device_name"}


class CurrentDevice:
    about = About(
        code="TW208",
        name="current-device",
        level="note",
        title="the current device is asked, not that of the tensors",
        why="With two models of GPU in a machine, tensors on cuda:1 get the tiles and the grid of cuda:0 "
        "(W7). cuda-tile itself compiles for the device of the launch since 1.6.",
        fix="pass the tensor's device: `torch.cuda.get_device_capability(x.device)`",
        sources=("W7",),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        if not any(origin.startswith(("cuda.tile", "cuda_tile")) for origin in file.imports.values()):
            return
        seen: set[ast.AST | None] = set()
        for call in file.every(ast.Call):
            name, owner = file.dotted(call.func), file.owner(call)
            if name in ASKED and _current(file, call) and owner not in seen:
                seen.add(owner)  # one for each function is enough
                where = f"in {owner.name}" if owner is not None else "when the file is imported"
                yield self.about.at(file, call, f"{name.rpartition('.')[2]} asks the current device, {where}")


def _current(file: SourceFile, call: ast.Call) -> bool:
    if not call.args and not call.keywords:
        return True
    given = call.args[0] if call.args else call.keywords[0].value
    if isinstance(given, ast.Constant):
        return given.value in ("cuda", None)
    return isinstance(given, ast.Call) and file.dotted(given.func) == "torch.cuda.current_device"


RULE = CurrentDevice()
