"""A constant that is made on the host and copied → made on the device: ``torch.zeros(n, device=device)``.

Random tensors are not changed: the device has a different generator.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.devices import is_device
from tilewright.program.reading.module import ReadModule
from tilewright.source.source_file import keywords

CONSTANT = tuple(f"torch.{name}" for name in ("zeros", "ones", "full", "eye", "arange", "empty"))
EXACT = ("unsqueeze", "squeeze", "view", "reshape", "expand", "repeat", "bool", "long", "int", "float", "t", "flip",
         "transpose", "permute", "tril", "triu", "eq", "flatten")  # fmt: skip
"""Methods that give the same bits on any device."""
RANDOM = tuple(f"torch.{name}" for name in ("rand", "randn", "randint", "randperm", "normal", "bernoulli"))


class MadeOnDevice(ProgramChange):
    name = "made_on_device"
    about = "makes a constant where it is used, instead of making it on the host and waiting for its copy"
    words = ("create tensor device", "made device", "make tensor device", "allocate tensor device", "host allocation")
    findings = ("pageable-copies", "copies", "host-late")
    gone = (r"(?i)memcpy htod",)
    order = 36
    absent = "no constant is made on the host and copied"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        for call in module.file.every(ast.Call):
            made = _made(module, call.func.value) if isinstance(call.func, ast.Attribute) else None
            if not isinstance(made, ast.Call) or not _runs_often(module, call):
                continue
            device = _device(module, call)
            if device and module.called(made) in RANDOM:
                yield NearMiss(call.lineno, "it is random, and the device would draw other numbers")
            elif (
                device and module.called(made) in CONSTANT and not {"device", "out", "pin_memory"} & set(keywords(made))
            ):
                assert isinstance(call.func, ast.Attribute)
                behind = module.text[module.span(made)[1] : module.span(call.func.value)[1]]
                made_there = module.added(made, f"device={device}") + behind.replace("\r\n", "\n")
                yield ChangeSite(call.lineno, module.called(made), (module.replace(call, made_there),))


def _made(module: ReadModule, node: ast.expr) -> ast.expr:
    """Removes methods that only give a tensor another shape, and returns the rest: ``torch.arange(n)`` for
    ``torch.arange(n).unsqueeze(0)``.
    """
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not module.full(node.func):
        if node.func.attr not in EXACT or {"device", "out"} & set(keywords(node)):
            break
        node = node.func.value
    return node


def _device(module: ReadModule, call: ast.Call) -> str:
    """Returns the text of the device to which ``x.to(device)`` or ``x.cuda()`` copies; empty if it does not."""
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr == "cuda" and not call.args and not call.keywords:
        return '"cuda"'
    given = call.args[0] if call.args else keywords(call).get("device")
    more = {keyword.arg for keyword in call.keywords} - {"device", "non_blocking"}
    if call.func.attr != "to" or len(call.args) > 1 or more or given is None or not is_device(module, given):
        return ""
    return module.code(given)


def _runs_often(module: ReadModule, node: ast.AST) -> bool:
    function = module.function_of(node)
    if function is not None and function.name != "__init__":
        return True
    return any(isinstance(each, (ast.For, ast.While)) for each in module.above(node))


CHANGE = MadeOnDevice()
