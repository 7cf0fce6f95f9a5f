"""Puts a model with convolutions into the memory format channels_last, which cuDNN's fast kernels read directly.

The weights are converted once; a convolution then gives its results in the same format. If the model's code flattens
activations with ``view``, which needs the other format, ``view`` becomes ``reshape``, which gives the same numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.models import MadeModel, is_module, made_models
from tilewright.program.reading.module import Edit, NotSure, ReadModule

CONVOLUTIONS = ("torch.nn.Conv2d", "torch.nn.ConvTranspose2d")


class ChannelsLast(ProgramChange):
    name = "channels_last"
    about = "keeps images and convolutions in the channels_last format, which the GPU's convolutions read directly"
    words = ("channels last", "channels_last", "memory format", "memory_format", "nhwc")
    findings = ("hot-kernel", "short-kernels")
    ran = (r"(?i)nhwc|channels_?last",)
    gone = (r"(?i)nchw",)
    order = 72
    absent = "the program makes no model with convolutions of images"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        if any(self.present(each) for each in module.program):
            return
        made = [each for file in module.program for each in _with_convolutions(file)]
        views, own = list(_views(module)) if made else [], list(_with_convolutions(module))
        if views and not own:
            yield ChangeSite(module.line_of(views[0]), "flattening", tuple(views))
        for model in own:
            try:
                order = module.spelled("torch.channels_last", model.value)
                edit = module.replace(model.value, f"{module.operand(model.value)}.to(memory_format={order})")
                yield ChangeSite(model.value.lineno, f"model {model.name}", (edit, *views))
                views = []
            except NotSure as reason:
                yield NearMiss(reason.line, reason.reason)

    def present(self, module: ReadModule) -> str:
        node = next((node for node in module.file.nodes if module.full(node) == "torch.channels_last"), None)
        return f"{module.place(node)} uses torch.channels_last" if node is not None else ""


def _with_convolutions(module: ReadModule) -> Iterator[MadeModel]:
    return (made for made in made_models(module) if made.calls(*CONVOLUTIONS))


def _views(module: ReadModule) -> Iterator[Edit]:
    """Yields the edits ``x.view(…)`` → ``x.reshape(…)`` in the modules of a file."""
    for owner in module.file.every(ast.ClassDef):
        if not is_module(module, owner):
            continue
        for call in (node for node in ast.walk(owner) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "view" and len(call.args) > 1:
                end = module.span(call.func)[1]
                yield Edit(end - len("view"), end, "reshape")


CHANGE = ChannelsLast()
