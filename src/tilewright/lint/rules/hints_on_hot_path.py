"""A kernel object is made anew on every call.

Each new kernel object has an empty cache of its own and is specialised again at its launch: 0.04 ms become 16 to 39 ms,
100 to 500 times as long.

Fix: make it once, at the top of the file or where the cache misses, and keep it beside the configuration.

Sources: TileGym 1.5.1: suites/liger/cutile/grpo_loss.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.guards import on_every_call
from tilewright.lint.rule import LintFinding, Rule
from tilewright.source.cutile import hinted, kernels, launches
from tilewright.source.source_file import Named, SourceFile, text


class HintsOnHotPath(Rule):
    code = "TW203"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for made in hinted(file):
            cached = "cache" in file.dotted(made.call.func).lower() or _kept_by_object(file, made.call)
            if not cached and (owner := _launching(file, made.call)):
                what = "replace_hints" if made.keeps else "ct.kernel"
                yield self.at(file, made.call, f"{what} runs on every call of {owner}{_when(file, made.call)}")
        for kernel in kernels(file):
            for decorator in kernel.node.decorator_list[:1]:
                if owner := _launching(file, decorator):
                    yield self.at(file, decorator, f"the kernel {kernel.name} is made on every call of {owner}")


def _launching(file: SourceFile, node: ast.AST) -> str:
    """The function in which a kernel is made on every call, if it or one that calls it also launches. A function that
    only makes kernels may have a cache around it elsewhere."""
    owner = file.owner(node)
    return owner.name if owner is not None and _launches(file, owner) and on_every_call(file, node) else ""


def _launches(file: SourceFile, owner: Named | None, seen: frozenset[ast.AST] = frozenset()) -> bool:
    if owner is None or owner in seen:
        return False
    inside = set(ast.walk(owner))
    return any(launch.call in inside for launch in launches(file)) or any(
        _launches(file, file.owner(call), seen | {owner}) for call in file.calls_of(owner)[0]
    )


def _when(file: SourceFile, node: ast.AST) -> str:
    """The innermost condition around it, for the message."""
    for parent, child in file.above(node):
        if isinstance(parent, Named):
            break
        if isinstance(parent, ast.If) and child in parent.body and len(text(parent.test)) < 60:
            return f" where {text(parent.test)}"
    return ""


def _kept_by_object(file: SourceFile, node: ast.AST) -> bool:
    """Whether the new kernel becomes an attribute, which lives as long as its object."""
    parent = file.parent(node)
    return isinstance(parent, ast.Assign) and any(isinstance(target, ast.Attribute) for target in parent.targets)


RULE = HintsOnHotPath()
