"""Batches in pinned memory, copied without waiting: ``pin_memory`` of the loader, ``non_blocking`` of the copy.

Only copies of a `DataLoader`'s batches to a device are changed. Copies to the host are not: without waiting, the host
would read the values before they have arrived.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.devices import is_device
from tilewright.program.reading.flow import after
from tilewright.program.reading.module import Edit, NotSure, ReadModule
from tilewright.source.source_file import keywords, stored

LOADER = "torch.utils.data.DataLoader"
PLACE = 7
"""The index of pin_memory among the positional arguments of a loader."""
THROUGH = ("enumerate", "tqdm", "zip", "iter")


class PinnedCopies(ProgramChange):
    name = "pinned_copies"
    about = "copies batches from pinned memory while the GPU computes, instead of waiting for each copy"
    words = ("pin* memory", "pinned", "non_blocking", "non blocking", "asynchron* copies", "asynchron* cop*",
             "pageable", "host to device", "data loading", "dataloader", "data loader")  # fmt: skip
    findings = ("pageable-copies", "copies", "host-late", "idle")
    ran = (r"(?i)memcpy htod \(pinned|pin_memory",)
    gone = (r"(?i)memcpy htod \(pageable",)
    order = 35
    absent = "no batch of a DataLoader is copied to a device"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        copies = list(_copies(module))
        for loader in module.calls(LOADER):
            try:
                edit = _pinned(module, loader) if copies else None
                if edit is not None:
                    yield ChangeSite(loader.lineno, "loader", (edit,))
            except NotSure as reason:
                yield NearMiss(reason.line, reason.reason)
        for call in dict.fromkeys(copies):
            if not any(keyword.arg in ("non_blocking", None) for keyword in call.keywords):
                yield ChangeSite(call.lineno, "copy", (module.add_argument(call, "non_blocking=True"),))

    def present(self, module: ReadModule) -> str:
        found = (call for call in module.file.every(ast.Call) if {"pin_memory", "non_blocking"} & set(keywords(call)))
        call = next(found, None)
        return f"{module.place(call)} copies from pinned memory or without waiting" if call else ""


def _pinned(module: ReadModule, loader: ast.Call) -> Edit | None:
    """Makes the edit of a loader; None if it pins already. Raises NotSure."""
    given = keywords(loader).get("pin_memory")
    if any(keyword.arg is None for keyword in loader.keywords) or len(loader.args) > PLACE:
        raise NotSure("the loader's arguments are not all visible", loader)
    if given is not None and not (isinstance(given, ast.Constant) and given.value is False):
        return None
    source = loader.args[0] if loader.args else keywords(loader).get("dataset")
    for value in module.file.values(source) or ((source,) if source is not None else ()):
        words = ("cuda", "device")
        if any(word in module.code(value) for word in words):
            raise NotSure("the data set may be on the device already", loader)
    here = f"{module.spelled('torch.cuda.is_available', loader)}()" if "torch" in module.file.imports else "True"
    return module.replace(given, here) if given is not None else module.add_argument(loader, f"pin_memory={here}")


def _copies(module: ReadModule) -> Iterator[ast.Call]:
    """Yields the calls that copy a part of a loader's batch to a device, in a loop over it or behind ``next``."""
    for loop in module.file.every(ast.For):
        if _over_loader(module, loop.iter):
            yield from _copied(module, loop.target, loop.body)
    for statement in module.file.every(ast.Assign):
        match statement.value:
            case ast.Call(func=ast.Name(id="next"), args=[batches]) if _over_loader(module, batches):
                for target in statement.targets:
                    yield from _copied(module, target, after(module, statement))


def _copied(module: ReadModule, batch: ast.expr, statements: list[ast.stmt]) -> Iterator[ast.Call]:
    fresh = {node.id for node in ast.walk(batch) if isinstance(node, ast.Name)}
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.comprehension) and _root(node.iter) in fresh:
                fresh |= {name.id for name in ast.walk(node.target) if isinstance(name, ast.Name)}
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and _is_copy(module, node) and _root(node.func) in fresh:
                yield node
        if isinstance(statement, ast.Assign) and _root(statement.value) in fresh and not _calls(statement.value):
            fresh |= stored(statement)


def _calls(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Call) for each in ast.walk(node))


def _over_loader(module: ReadModule, node: ast.AST) -> bool:
    """Returns whether an expression is a loader, or goes through one: ``enumerate(loader)``, ``iter(loader)``."""
    if isinstance(node, ast.Call) and node.args and not module.called(node).startswith("torch"):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return name in THROUGH and _over_loader(module, node.args[0])
    values = module.file.values(node) if isinstance(node, ast.Name) else ()
    if values:
        return all(module.called(value) == LOADER or _through(module, value) for value in values)
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return module.called(node) == LOADER or "loader" in name.lower()


def _through(module: ReadModule, value: ast.AST) -> bool:
    return isinstance(value, ast.Call) and not module.full(value.func) and _over_loader(module, value)


def _is_copy(module: ReadModule, call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "cuda":
        return not call.args
    if call.func.attr != "to":
        return False
    target = call.args[0] if call.args else keywords(call).get("device")
    return len(call.args) <= 1 and target is not None and is_device(module, target)


def _root(node: ast.AST) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


CHANGE = PinnedCopies()
