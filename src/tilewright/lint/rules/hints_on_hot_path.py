"""TW203: kernel objects made on every call (A-47, A-21, W12, Part 7 check 8)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.lint.guards import on_every_call
from tilewright.source.cutile import hinted, kernels, launches
from tilewright.source.module import Module, text


class HintsOnHotPath:
    about = About(
        code="TW203",
        name="hints-on-hot-path",
        level="error",
        title="a kernel object is made anew on every call",
        why="Each new kernel object has an empty cache of its own and is specialised again at its launch: "
        "0.04 ms become 16 to 39 ms, 100 to 500 times as long (A-47).",
        fix="make it once, at the top of the file or where the cache misses, and keep it beside the configuration",
        sources=("A-47", "A-21", "W12"),
    )

    def findings(self, module: Module) -> Iterator[Finding]:
        for one in hinted(module):
            cached = "cache" in module.dotted(one.call.func).lower()
            if cached or _kept_by_object(module, one.call) or not _launched(module, module.owner(one.call)):
                continue
            if on_every_call(module, one.call):
                what = "replace_hints" if one.keeps else "ct.kernel"
                owner, when = self._owner(module, one.call), _when(module, one.call)
                yield self.about.at(module, one.call, f"{what} runs on every call of {owner}{when}")
        for kernel in kernels(module):
            for decorator in kernel.node.decorator_list:
                if _launched(module, module.owner(decorator)) and on_every_call(module, decorator):
                    yield self.about.at(
                        module, decorator,
                        f"the kernel {kernel.name} is made on every call of {self._owner(module, decorator)}",
                    )  # fmt: skip
                    break

    def _owner(self, module: Module, node: ast.AST) -> str:
        owner = module.owner(node)
        return owner.name if owner is not None else ""


def _when(module: Module, node: ast.AST) -> str:
    """The innermost condition around it, for the message."""
    for parent, child in module.above(node):
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            break
        if isinstance(parent, ast.If) and child in parent.body and len(text(parent.test)) < 60:
            return f" where {text(parent.test)}"
    return ""


def _kept_by_object(module: Module, node: ast.AST) -> bool:
    """Whether the new kernel becomes an attribute, which lives as long as its object."""
    parent = module.parent(node)
    return isinstance(parent, ast.Assign) and any(isinstance(one, ast.Attribute) for one in parent.targets)


def _launched(module: Module, owner: ast.AST | None, seen: frozenset[ast.AST] = frozenset()) -> bool:
    """Whether the function that makes a kernel, or one that calls it in this file, also launches. One that only
    makes kernels may have a cache around it elsewhere."""
    if not isinstance(owner, (ast.FunctionDef, ast.AsyncFunctionDef)) or owner in seen:
        return False
    inside = set(ast.walk(owner))
    if any(launch.call in inside for launch in launches(module)):
        return True
    return any(_launched(module, module.owner(call), seen | {owner}) for call in module.calls_of(owner)[0])


RULE = HintsOnHotPath()
