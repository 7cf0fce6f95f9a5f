"""TW203: kernel objects made on every call (A-47, A-21, W12, Part 7 check 8)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.lint.guards import on_every_call
from tilewright.source.cutile import hinted, kernels, launches
from tilewright.source.source_file import SourceFile, text


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

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        for one in hinted(file):
            cached = "cache" in file.dotted(one.call.func).lower()
            if cached or _kept_by_object(file, one.call) or not _launched(file, file.owner(one.call)):
                continue
            if on_every_call(file, one.call):
                what = "replace_hints" if one.keeps else "ct.kernel"
                owner, when = self._owner(file, one.call), _when(file, one.call)
                yield self.about.at(file, one.call, f"{what} runs on every call of {owner}{when}")
        for kernel in kernels(file):
            for decorator in kernel.node.decorator_list:
                if _launched(file, file.owner(decorator)) and on_every_call(file, decorator):
                    yield self.about.at(
                        file, decorator,
                        f"the kernel {kernel.name} is made on every call of {self._owner(file, decorator)}",
                    )  # fmt: skip
                    break

    def _owner(self, file: SourceFile, node: ast.AST) -> str:
        owner = file.owner(node)
        return owner.name if owner is not None else ""


def _when(file: SourceFile, node: ast.AST) -> str:
    """The innermost condition around it, for the message."""
    for parent, child in file.above(node):
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            break
        if isinstance(parent, ast.If) and child in parent.body and len(text(parent.test)) < 60:
            return f" where {text(parent.test)}"
    return ""


def _kept_by_object(file: SourceFile, node: ast.AST) -> bool:
    """Whether the new kernel becomes an attribute, which lives as long as its object."""
    parent = file.parent(node)
    return isinstance(parent, ast.Assign) and any(isinstance(one, ast.Attribute) for one in parent.targets)


def _launched(file: SourceFile, owner: ast.AST | None, seen: frozenset[ast.AST] = frozenset()) -> bool:
    """Whether the function that makes a kernel, or one that calls it in this file, also launches. One that only
    makes kernels may have a cache around it elsewhere."""
    if not isinstance(owner, (ast.FunctionDef, ast.AsyncFunctionDef)) or owner in seen:
        return False
    inside = set(ast.walk(owner))
    if any(launch.call in inside for launch in launches(file)):
        return True
    return any(_launched(file, file.owner(call), seen | {owner}) for call in file.calls_of(owner)[0])


RULE = HintsOnHotPath()
